"""Measure an engine with a random model on a GPU: a ladder of loads, three rates, two searches for the capacity.

    python examples/gpu/run_gpu.py out --server-python GPU/bin/python [--engine vllm]

`--server-python` has torch, the engine and otel-llm; this interpreter has otel-llm[collector]. The engine records its
side too, and a profile is fitted to the ladder. Each step has a time limit; one that fails is named in `summary.json`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_figures import gap_percentiles, simulator_errors

from otel_llm.demo.children import Child
from otel_llm.demo.demo_children import LISTENING, OFFLINE, START_S, collector, quiet_environment, telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
H200 = ROOT / "examples" / "h200"
OTEL_LLM = (sys.executable, "-m", "otel_llm.cli.main")
ENGINES = {
    "transformers": ("-P", str(H200 / "serve.py"), "serve", "{model}", "--device", "{device}", "--continuous-batching"),
    "vllm": (
        *("-m", "vllm.entrypoints.cli.main", "serve", "{model}", "--no-enable-prefix-caching"),
        *("--middleware", "otel_llm.instrumentation.asgi.StreamMiddleware"),
    ),
}
SETTLE_S = 3.0  # the engine's recordings of requests that are over have reached the journal by then


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=lambda text: Path(text).absolute())
    parser.add_argument("--server-python", default=sys.executable)
    parser.add_argument("--engine", choices=ENGINES, default="transformers")
    parser.add_argument("--more", default="", help="more options of the engine, in one text")
    parser.add_argument("--shape", default="llama-3.2-1b", help="of ../h200/make_model.py")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--input", default="32..256", help="tokens of a prompt")
    parser.add_argument("--output", default="16..64", help="tokens of a reply")
    parser.add_argument("--levels", default="1,4,16,64,128", help="requests at once on the ladder")
    parser.add_argument("--level-s", type=int, default=5)
    parser.add_argument("--shares", default="0.3,0.6,0.85", help="loads, in shares of the ladder's most requests/s")
    parser.add_argument("--seconds", type=int, default=30, help="of each load")
    parser.add_argument("--budget", default="10m", help="of each search")
    parser.add_argument("--sizes", nargs=3, default=["262144", "1024", "1024"], metavar=("KV", "BATCH", "TOKENS"))
    return parser.parse_args()


class Steps:
    """What each step gave, written after each of them; a step that fails costs itself."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "summary.json"
        self._results: dict[str, Any] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Collect the figures of a step, how long it took, and why it failed."""
        began_s, found = time.monotonic(), dict[str, Any]()
        try:
            yield found
        except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
            found["failed"] = f"{type(error).__name__}: {error}"
        found["took_s"] = round(time.monotonic() - began_s, 1)
        self._results[name] = found
        print(f"{name}: {found.get('failed', 'done')} ({found['took_s']} s)", flush=True)
        self._file.write_text(json.dumps(self._results, indent=1) + "\n", encoding="utf-8")


def otel_llm(*words: object, limit_s: float) -> dict[str, Any]:
    """Run a command of ours; return the JSON that it prints. Raises RuntimeError if it prints none."""
    command = [*OTEL_LLM, *map(str, words), "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-1500:]}")
    return {"command": " ".join(["otel-llm", *command[3:]]), **json.loads(done.stdout)}


def make_model(args: argparse.Namespace, folder: Path) -> None:
    command = [args.server_python, "-P", str(H200 / "make_model.py"), args.shape, str(folder)]
    with subprocess.Popen([sys.executable, "-m", "otel_llm.core"], cwd=ROOT):  # compiles our kernels meanwhile
        subprocess.run(command, env=quiet_environment() | OFFLINE, timeout=300, check=True)


def serve(args: argparse.Namespace, model: Path, grpc: str) -> Child:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = [word.format(model=model, device=args.device) for word in ENGINES[args.engine]]
    words += ["--host", "127.0.0.1", "--port", str(port), *args.more.split()]
    environment = quiet_environment() | OFFLINE | telemetry(grpc, args.engine) | {"VLLM_PLUGINS": "otel-llm-vllm"}
    return Child("server", [args.server_python, *words], environment, args.out / "server.log")


def measure(args: argparse.Namespace, steps: Steps, url: str, model: Path) -> None:
    lengths = ("--input", args.input, "--output", args.output)
    common = [url, "--model", model, "--slo", "examples/capacity/slo.yaml", *lengths]
    best, runs = 0.0, [args.out / f"load-{share}" for share in args.shares.split(",")]
    for level in map(int, args.levels.split(",")):
        with steps.step(f"ladder {level}") as found:
            closed = ["--concurrency", level, "--duration", f"{args.level_s}s", "--seed", level]
            found.update(otel_llm("bench", *common, *closed, limit_s=args.level_s + 120))
            best = max(best, *(places["client"]["throughput_req_s"] for places in found["classes"].values()))
    time.sleep(SETTLE_S)
    shutil.copytree(args.out / "journal", args.out / "ladder")
    for run, share in zip(runs, map(float, args.shares.split(",")), strict=True):
        with steps.step(run.name) as found:
            kept = ["--rate", f"{share * best:.3g}", "--duration", f"{args.seconds}s", "--out", run]
            found.update(otel_llm("bench", *common, *kept, "--html", f"{run}.html", limit_s=args.seconds + 120))
            found.update(gap_percentiles(run))
    for seed in (1, 2):
        with steps.step(f"capacity {seed}") as found:
            search = ["--between", f"{best / 16:.3g}..{best * 4:.3g}", "--precision", "1.0", "--seed", seed]
            search += ["--budget", args.budget, "--html", args.out / f"capacity-{seed}.html"]
            found.update(otel_llm("capacity", *common, *search, limit_s=1200))
    with steps.step("profile") as found:
        names = ("--kv-tokens", "--max-batch", "--max-batched-tokens")
        sizes = [word for pair in zip(names, args.sizes, strict=True) for word in pair]
        fit = ["profile", "fit", str(args.out / "ladder"), "--out", str(args.out / "profile"), *sizes]
        subprocess.run([*OTEL_LLM, *fit], timeout=120, check=True)
        found["errors"] = {run.name: simulator_errors(run, args.out / "profile.yaml") for run in runs}


def main() -> None:
    args = options()
    args.out.mkdir(parents=True)
    steps, model = Steps(args.out), args.out / "model"
    make_model(args, model)
    with collector(args.out) as receiving:
        grpc = receiving.wait_for(LISTENING, START_S).group(1)
        with serve(args, model, grpc) as server:
            server.wait_for(r"Application startup complete", 600)
            port = server.command[server.command.index("--port") + 1]
            measure(args, steps, f"http://127.0.0.1:{port}/v1", model)


if __name__ == "__main__":
    main()
