"""What the relay costs: added time to the first token and a token, CPU a chunk, chunks a second on one core.

    python benchmarks/relay.py [--streams 200] [--pace 50] [--seconds 10] [--stack STACK] [--json OUT]

The relay is pinned to one core, backend and clients to another. Everything is measured straight and through the relay
in turn, in the same run; "added" is the difference of the same quantile. The relay asks for token ids, records every
stream, exports to a socket that takes everything, and evaluates the shipped rules. CPU is
the process's own time. `--stack` puts a proxy that only passes on in the relay's place (`relay_load/stacks.py`): what
asyncio and HTTP cost without it. On a machine with one core the three share it, and the figures say little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from relay_load import engine

LISTENS = re.compile(r"http://127\.0\.0\.1:(\d+)")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def relay(backend: int, core: int, stack: str | None) -> tuple[subprocess.Popen[str], int]:
    """Start a relay, or a bare proxy on some stack, on one core; return it and its port."""
    command = [sys.executable, "-m", "otel_llm.cli.main", "relay", "--backend", f"http://127.0.0.1:{backend}"]
    command += ["--listen", "127.0.0.1:0", "--web", "127.0.0.1:0"]
    if stack is not None:
        command = [sys.executable, "-m", "relay_load.stacks", stack, str(backend)]
    process = subprocess.Popen(
        command,
        cwd=None if stack is None else Path(__file__).parent,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{backend}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        },
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),  # noqa: PLW1509  no threads yet
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := LISTENS.search(line):
            return process, int(found[1])
    raise SystemExit("the relay did not start")


def figures(seen: engine.Seen) -> dict[str, float]:
    quantiles = {}
    for name, values in (("first", seen.first_us), ("token", seen.later_us)):
        for share in (50, 99):
            quantiles[f"{name}_p{share}_us"] = float(np.percentile(values, share)) if values else float("nan")
    return quantiles


async def load(port: int, streams: int, tokens: int, pace: float) -> engine.Seen:
    seen = engine.Seen()

    async def one(number: int) -> None:
        await asyncio.sleep(number / streams * 0.5 if pace else 0.0)
        await engine.read(port, tokens, pace, seen, ids=False)

    await asyncio.gather(*(one(number) for number in range(streams)))
    assert seen.whole == streams, f"{seen.whole} of {streams} replies were whole"
    return seen


async def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    backend = server.sockets[0].getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    process, port = await asyncio.to_thread(relay, backend, cores[-1], chosen.stack)
    found: dict[str, Any] = {}
    try:
        await load(port, 8, 50, 0)  # warm
        tokens = int(chosen.pace * chosen.seconds)
        paced: dict[str, list[dict[str, float]]] = {"straight": [], "relay": []}
        for _ in range(chosen.repetitions):
            for name, at in (("straight", backend), ("relay", port)):
                before, begun = cpu_s(process.pid), time.monotonic()
                seen = await load(at, chosen.streams, tokens, chosen.pace)
                one = figures(seen)
                if name == "relay":
                    one["cpu_us_a_chunk"] = (cpu_s(process.pid) - before) / seen.chunks * 1e6
                    one["busy"] = (cpu_s(process.pid) - before) / (time.monotonic() - begun)
                paced[name].append(one)
        found["paced"] = {
            name: {key: float(np.median([one[key] for one in many])) for key in many[0]} for name, many in paced.items()
        }
        straight, through = found["paced"]["straight"], found["paced"]["relay"]
        found["added_us"] = {key: through[key] - straight[key] for key in straight}
        before, begun = cpu_s(process.pid), time.monotonic()
        seen = await load(port, 16, 4000, 0)
        cpu = cpu_s(process.pid) - before
        found["flat_out"] = {
            "chunks_a_second": seen.chunks / (time.monotonic() - begun),
            "chunks_a_cpu_second": seen.chunks / cpu,
            "cpu_us_a_chunk": cpu / seen.chunks * 1e6,
        }
    finally:
        process.terminate()
        process.wait(20)
        server.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--pace", type=float, default=50.0, help="tokens a second and stream")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--stack", help="bytes, aiohttp or httptools, with or without +uvloop")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    found = asyncio.run(measure(chosen))
    for name, values in {**found["paced"], "added": found["added_us"], "flat out": found["flat_out"]}.items():
        print(f"{name:>9}: " + ", ".join(f"{key} {value:,.2f}" for key, value in values.items()))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
