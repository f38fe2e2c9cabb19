"""What watching a stream costs: CPU added to each chunk, on every stack, beside the peers; and what is got for it.

    python benchmarks/overhead.py [--stack NAME ...] [--variant NAME ...] [--mode sync|async|both] [--repetitions 3]
                                  [--protocol grpc|http/protobuf] [--python PATH ...] [--json OUT]

Replies come from a transport in the measured process, one network read a chunk, so that the library's own work is the
floor (aiohttp, requests, urllib3 and lm15, which have no such place, read from a server in another process). In each
process four replies are read bare and four watched, in turns; the CPU time of the process (all threads: encoding and
sending count, to a sink in another process, flushed at the end) over the number of chunks is the figure. Processes of
the variants take turns. Other work on the machine only ever adds: `added` is the difference of each process's
quietest turns, the median over the processes; the median over all pairs of turns, and their quartiles, stand beside
it. Bare is, for ours, instrumentation suppressed; for the peers (half ignore that) the SDK's own
functions put back. Each turn collects its own garbage. The peers get no MeterProvider: with one, those that record
metrics cost more.

Then a real server sends 2,000 tokens, the first after a frame that bears no text, and what each variant recorded of
them stands beside what the server knows.

Last, what a stream that is none of ours costs a reader of `http.client`, per read and per request.

`--paced N` reads N concurrent replies of the OpenAI SDK at 50 chunks/s each instead: what a flush every 250 ms costs
when there is little to send at a time.

A stack or a peer that an interpreter cannot import is looked for in the next `--python`, then listed as missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from overhead_parts import servers
from overhead_parts.stacks import STACKS
from overhead_parts.variants import HTTP_SINK, OURS, PEERS

PEERS_ON = "openai chat"
"""The stack on which the peers are measured too."""
MISSING = 3
Turns = list[list[list[float]]]
"""Processes, pairs of turns, CPU us a chunk: bare and watched."""


class Bench:
    """Runs workers, in whichever interpreter has what they need."""

    def __init__(self, pythons: list[str], protocol: str, sink: list[int], replies: str, paced: int) -> None:
        self._pythons = pythons
        self._paced = str(paced)
        self._replies = replies
        self.missing: dict[tuple[str, str], str] = {}
        grpc_port, http_port = sink
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc_port if protocol == 'grpc' else http_port}",
            "OTEL_SERVICE_NAME": "benchmark",
            "PYTHONPATH": str(Path(__file__).resolve().parent),
        }
        self._http_sink = {HTTP_SINK: f"http://127.0.0.1:{http_port}"}

    def run(self, what: str, stack: str, variant: str, mode: str) -> Any:
        """Return a worker's result, None if no interpreter has what it needs."""
        if (stack, variant) in self.missing:
            return None
        arguments = ["-m", "overhead_parts.worker", what, stack, variant, mode, "--paced", self._paced]
        if what == "truth" or STACKS[stack].served:
            arguments += ["--served", self._replies]
        environment = {**self._environment, **(self._http_sink if what == "cpu" else {})}
        lacking = ""
        for python in self._pythons:
            done = subprocess.run([python, *arguments], env=environment, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return json.loads(done.stdout.splitlines()[-1])
            if done.returncode != MISSING:
                self.missing[stack, variant] = "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1]
                print(f"# {stack}, {variant}, {mode}: {done.stderr}", file=sys.stderr)
                return None
            lacking = done.stdout.strip()
        self.missing[stack, variant] = f"no {lacking}"
        return None

    def foreign(self) -> Any:
        """Return the pairs of turns over a stream that is not recorded."""
        command = [self._pythons[0], "-m", "overhead_parts.foreign"]
        return json.loads(subprocess.run(command, env=self._environment, stdout=subprocess.PIPE, check=True).stdout)


def quietest(turns: Turns) -> float:
    """Return what is added between the quietest turns of a process, the median over the processes."""
    return statistics.median(min(full for _, full in pairs) - min(bare for bare, _ in pairs) for pairs in turns)


def line(name: str, mode: str, turns: Turns, ours: float | None) -> str:
    bare = statistics.median(min(bare for bare, _ in pairs) for pairs in turns)
    added = quietest(turns)
    low, middle, high = statistics.quantiles([full - bare for pairs in turns for bare, full in pairs], n=4)
    times = f"{added / ours:.1f}x" if ours else ""
    return f"{name:19}{mode:6}{bare:>8.1f}{added:>9.2f}{times:>8}   {middle:.2f} ({low:.2f} .. {high:.2f})"


def cpu_table(bench: Bench, chosen: argparse.Namespace, modes: list[str], result: list[dict[str, Any]]) -> None:
    """Measure and print, stack by stack; the processes of a stack's variants take turns."""
    print(f"CPU us a chunk, all threads, {chosen.protocol}; the peers on {PEERS_ON}", flush=True)
    print(f"{'':25}{'bare':>8}{'added':>9}{'x ours':>8}   all pairs: median (quartiles)", flush=True)
    for stack in chosen.stack:
        variants = [v for v in chosen.variant if v == OURS or stack == PEERS_ON]
        for mode in [mode for mode in modes if mode in STACKS[stack].modes]:
            turns: dict[str, Turns] = {}
            for _ in range(chosen.repetitions):
                for variant in variants:
                    if (pairs := bench.run("cpu", stack, variant, mode)) is not None:
                        turns.setdefault(variant, []).append(pairs)
            ours = quietest(turns[OURS]) if OURS in turns else None
            for variant, measured in turns.items():
                name = stack if variant == OURS else f"  {variant}"
                print(line(name, mode, measured, ours if variant != OURS else None), flush=True)
                result.append({"stack": stack, "variant": variant, "mode": mode, "turns": measured})


def truth_table(bench: Bench, chosen: argparse.Namespace, modes: list[str], result: list[dict[str, Any]]) -> None:
    """Ask each variant for one reply whose every detail the server knows."""
    print("\nof a reply of 2,000 tokens whose first frame bears no text: what was recorded, and the time to the first")
    print(f"{'':25}{'tokens timed':>13}{'gaps':>7}{'TTFT s':>9}{'true s':>8}{'off by ms':>11}   taken from", flush=True)
    for stack in chosen.stack:
        for variant in [v for v in chosen.variant if v == OURS or stack == PEERS_ON]:
            for mode in [mode for mode in modes if mode in STACKS[stack].modes]:
                if stack in ("ASGI middleware", "track()"):
                    continue  # not served over a network
                if (got := bench.run("truth", stack, variant, mode)) is None:
                    continue
                name = stack if variant == OURS else f"  {variant}"
                ttft, true = got["ttft_s"], got["true_ttft_s"]
                reported = f"{ttft:>9.3f}{true:>8.3f}{(ttft - true) * 1e3:>+11.1f}" if ttft else f"{'-':>9}{true:>8.3f}"
                where = got["ttft_from"] or "nothing says it"
                print(f"{name:19}{mode:6}{got['timed']:>13}{got['gaps'] or '-':>7}{reported:28}   {where}", flush=True)
                if got["recorded_while_off"]:
                    print(f"  ! {variant} recorded while it was off: its bare figure is not bare", flush=True)
                result.append({"stack": stack, "variant": variant, "mode": mode, **got})


def foreign_table(bench: Bench, chosen: argparse.Namespace, result: list[list[Any]]) -> None:
    """Measure and print what is added if nothing is recorded."""
    for _ in range(chosen.repetitions):
        result += bench.foreign()
    print("\na stream over http.client that is none of ours, ns: bare, and added, median (quartiles)", flush=True)
    for index, name in enumerate(("a read", "a request")):
        bare = statistics.median(pair[0][index] for pair in result)
        low, middle, high = statistics.quantiles([pair[1][index] - pair[0][index] for pair in result], n=4)
        print(f"{name:25}{bare:>8.0f}{middle:>+9.0f}   ({low:+.0f} .. {high:+.0f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stack", action="append", choices=STACKS)
    parser.add_argument("--variant", action="append", choices=(OURS, *PEERS))
    parser.add_argument("--mode", choices=("sync", "async", "both"), default="both")
    parser.add_argument("--protocol", choices=("grpc", "http/protobuf"), default="grpc")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", choices=("cpu", "truth", "foreign"))
    parser.add_argument("--python", action="append", help="an interpreter to measure in, tried in this order")
    parser.add_argument("--paced", type=int, default=0, help="concurrent replies of openai chat at 50 chunks/s each")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    chosen.stack, chosen.variant = chosen.stack or [*STACKS], chosen.variant or [OURS, *PEERS]
    modes = ["sync", "async"] if chosen.mode == "both" else [chosen.mode]
    if chosen.paced:
        chosen.stack, chosen.only, modes = [PEERS_ON], "cpu", ["async"]
    cpu: list[dict[str, Any]] = []
    known: list[dict[str, Any]] = []
    foreign: list[list[Any]] = []
    with servers.process("sink") as sink, servers.process("replies") as (port,):
        bench = Bench(
            chosen.python or [sys.executable], chosen.protocol, sink, f"http://127.0.0.1:{port}", chosen.paced
        )
        if chosen.only in (None, "cpu"):
            cpu_table(bench, chosen, modes, cpu)
        if chosen.only in (None, "truth"):
            truth_table(bench, chosen, modes, known)
        if chosen.only in (None, "foreign"):
            foreign_table(bench, chosen, foreign)
    for (stack, variant), why in bench.missing.items():
        print(f"not measured: {stack}, {variant}: {why}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps({"cpu": cpu, "truth": known, "foreign": foreign}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
