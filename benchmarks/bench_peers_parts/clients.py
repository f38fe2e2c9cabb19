"""The clients as programs: one load each, from a file of prompts, at a constant rate; each writes its result files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm.demo.demo_children import OFFLINE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).parents[2]
VLLM: Final = ROOT / ".venv-vllm"
AIPERF: Final = ROOT / ".venv-aiperf"
VLLM_BENCH, AIPERF_NAME = "vllm bench serve", "AIPerf"
PEERS: Final = (VLLM_BENCH, AIPERF_NAME)
LIMIT_S: Final = 400.0
NOT_VALID: Final = 1
"""Exit code of an `otel-llm bench` that says that its client did not keep out of the result."""


class ClientError(RuntimeError):
    """A client gave no result; the text has the end of its output."""


@dataclass(frozen=True)
class Load:
    """The same load for every client: a prompt a request, `rate` requests/s from its start, replies of `output` tokens.

    `url` ends before `/v1`. `cores`: those that a client and all its processes may use; None leaves it all.
    """

    url: str
    model: str
    api: Literal["chat", "completions"]
    rate: float
    prompts: Sequence[str]
    output: int
    cores: frozenset[int] | None = None


def check() -> None:
    """Exit if an environment is missing."""
    for environment, target in ((VLLM, "vllm-env"), (AIPERF, "aiperf-env")):
        if not (environment / "ready").exists():
            sys.exit(f"no {environment.name}: run `make {target}`")


def vllm_bench(load: Load, folder: Path) -> Path:
    """Run `vllm bench serve`; return its detailed result. Raises ClientError."""
    prompts, result = folder / "prompts.json", folder / "result.json"
    asked = [{"conversations": [{"value": prompt}, {"value": "..."}]} for prompt in load.prompts]
    prompts.write_text(json.dumps(asked), encoding="utf-8")
    backend, path = {"chat": ("openai-chat", "/v1/chat/completions"), "completions": ("openai", "/v1/completions")}[
        load.api
    ]
    run(
        [
            *(
                VLLM / "bin" / "vllm",
                "bench",
                "serve",
                "--base-url",
                load.url,
                "--backend",
                backend,
                "--endpoint",
                path,
            ),
            *("--model", load.model, "--tokenizer", VLLM / "tiny", "--ignore-eos", "--disable-tqdm"),
            *("--dataset-name", "sharegpt", "--dataset-path", prompts, "--sharegpt-output-len", load.output),
            *("--disable-shuffle", "--num-prompts", len(load.prompts)),
            *("--request-rate", load.rate, "--burstiness", "inf", "--percentile-metrics", "ttft,tpot,itl,e2el"),
            *("--save-result", "--save-detailed", "--result-filename", result),
        ],
        folder / "vllm-bench.log",
        {**os.environ, **OFFLINE, "VLLM_PLUGINS": ""},
        load.cores,
    )
    return result


def aiperf(load: Load, folder: Path) -> Path:
    """Run `aiperf profile` with one worker and one record processor; return its folder of results. Raises ClientError.

    Records are at its default level: the gaps between chunks, not their bytes.
    """
    prompts, results = folder / "prompts.jsonl", folder / "results"
    lines = [{"text": prompt, "output_length": load.output} for prompt in load.prompts]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    run(
        [
            *(AIPERF / "bin" / "aiperf", "profile", "--model", load.model, "--url", load.url),
            *("--endpoint-type", load.api, "--streaming", "--tokenizer", VLLM / "tiny", "--use-server-token-count"),
            *("--input-file", prompts, "--custom-dataset-type", "single_turn", "--extra-inputs", "ignore_eos:true"),
            *("--request-rate", load.rate, "--arrival-pattern", "constant", "--request-count", len(load.prompts)),
            *("--workers-max", 1, "--record-processors", 1, "--artifact-dir", results, "--ui", "none"),
            *("--no-server-metrics", "--no-gpu-telemetry"),
        ],
        folder / "aiperf.log",
        # With HF_HUB_OFFLINE AIPerf takes a folder's path for a name on the hub.
        {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"},
        load.cores,
    )
    return results


def otel_llm_bench(load: Load, folder: Path, input_tokens: int, seed: int) -> tuple[dict[str, Any], Path]:
    """Run `otel-llm bench`, which makes up its own prompts; return its JSON and its recording. Raises ClientError."""
    recording = folder / "recording"
    reported = run(
        [
            *(sys.executable, "-m", "otel_llm.cli.main", "bench", load.url, "--model", load.model, "--api", load.api),
            *("--rate", f"{load.rate:g}", "--arrivals", "constant", "--requests", len(load.prompts)),
            *("--input", input_tokens, "--output", load.output, "--warmup", "0s", "--seed", seed),
            *("--out", recording, "--format", "json"),
        ],
        folder / "bench.log",
        os.environ,
        load.cores,
        codes=(0, NOT_VALID),
    )
    result: dict[str, Any] = json.loads(reported)
    return result, recording


def run(
    command: Sequence[object],
    log: Path,
    environment: Mapping[str, str],
    cores: frozenset[int] | None,
    *,
    codes: tuple[int, ...] = (0,),
) -> str:
    """Run a client to its end, with one of these exit codes; return its standard output. Raises ClientError."""
    words = [str(one) for one in command]
    if cores is not None:
        words = ["taskset", "-c", ",".join(map(str, sorted(cores))), *words]
    with log.open("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            words, env=dict(environment), stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            reported, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ClientError(f"{words[0]} took over {LIMIT_S:g} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    if process.returncode not in codes:
        raise ClientError(f"exit {process.returncode}: {(reported + log.read_text(encoding='utf-8'))[-2000:]}")
    return reported
