"""What one core of each client carries: its own times beside those at which a server wrote, by number of streams."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from bench_load.truth_comparison import OURS, Row, compared, plan_of, truth_of, truth_server
from bench_load.truth_comparison import ours as ours_row

from bench_peers_parts.clients import AIPERF_NAME, PEERS, VLLM_BENCH, ClientError, Load, aiperf, vllm_bench
from bench_peers_parts.figures import recorded
from otel_llm.bench.client.learning import learn
from otel_llm.bench.client.target import Target
from otel_llm.bench.plan.prompts import Prompts, PromptSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from otel_llm.bench.client.learning import Learned
    from otel_llm.bench.plan.load_plan import LoadPlan

BOUNDS_MS: Final = (1.0, 10.0)
INPUT: Final = 16
PAUSE_S: Final = 1.0
EARLY_NS: Final = -500_000
"""A read so long before its write belongs to another request, or to another clock."""
FAILED: Final = "failed"
WORKER: Final = "otel-llm bench, its worker"
"""With a core for the worker, while the process that reads from it shares the server's."""
CLIENTS: Final = (OURS, WORKER, *PEERS)


class Measurement:
    """The loads of all clients against one server; the clients have one core, the server another."""

    def __init__(self, port: int, cores: Sequence[int], options: argparse.Namespace, folder: Path) -> None:
        self.port, self.options, self.folder = port, options, folder
        self.server_core, self.core = cores[0], cores[-1]
        self.spec = PromptSpec(options.seed)
        self.target = Target.read(f"http://127.0.0.1:{port}", model="bench")
        self.learned: Learned = learn(self.target, self.spec)
        self.number = 0
        self.rows: list[Row] = []

    def sweep(self, sweep: int) -> None:
        """Put the growing loads on, by each client until it has not carried two."""
        missed = dict.fromkeys(CLIENTS, 0)
        for streams in self.options.streams:
            for name in missed:
                if missed[name] >= 2:
                    continue
                plan, tokens = plan_of(streams, self.options.seconds, self.options.pace, self.number)
                self.number += streams
                time.sleep(PAUSE_S)
                row = self.row(name, plan, tokens)
                self.rows.append(row)
                missed[name] += worst(row) > BOUNDS_MS[-1]
                print(f"sweep {sweep + 1}: {row}", flush=True)

    def row(self, name: str, plan: LoadPlan, tokens: int) -> Row:
        """Return how far one client is from the truth under one load; all differences infinite if it failed."""
        truth_of(self.port)
        try:
            if name in (OURS, WORKER):
                os.sched_setaffinity(0, {self.core if name == OURS else self.server_core})
                row = ours_row(self.port, self.target, self.learned, self.spec, plan, self.core)
                return replace(row, client=name)
            return self.peer(name, plan, tokens)
        except ClientError as error:
            print(f"{name}: {error}")
            infinite = float("inf")
            return Row(name, len(plan), 0.0, FAILED, 0.0, infinite, infinite, infinite, infinite, infinite)

    def peer(self, name: str, plan: LoadPlan, tokens: int) -> Row:
        """Put a load on by a peer. Raises ClientError."""
        prompts = Prompts(self.spec)
        texts = [prompts.text(plan.first_number + place, INPUT) for place in range(len(plan))]
        url, cores = f"http://127.0.0.1:{self.port}", frozenset({self.core})
        load = Load(url, "bench", "chat", float(len(plan)), texts, tokens, cores)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        shift_ns = 0
        if name == AIPERF_NAME:
            before_ns = wall_ahead_ns()
            path = aiperf(load, folder)
            shift_ns = (before_ns + wall_ahead_ns()) // 2
        else:
            path = vllm_bench(load, folder)
        truth = truth_of(self.port)
        # Both begin the requests in the order of their files, and none waits: the k-th to begin has the k-th prompt.
        streams = recorded(path).streams
        reads = {text: [at - shift_ns for at in one.times_ns] for text, one in zip(texts, streams, strict=False)}
        commits = {text: one.commit_ns - shift_ns for text, one in zip(texts, streams, strict=False)}
        if name == VLLM_BENCH:  # it counts the chunks before and behind the text, too
            reads = {text: times[1:-1] for text, times in reads.items()}
        self.check(name, texts, truth, reads)
        return replace(compared(name, plan, truth, reads, commits), client=name)

    @staticmethod
    def check(
        name: str, texts: Sequence[str], truth: Mapping[str, Sequence[int]], reads: Mapping[str, Sequence[int]]
    ) -> None:
        """Check that every token was read, once and by the clock of the server. Raises ClientError."""
        wrong = sum(len(reads.get(text, ())) != len(truth.get(text, ())) or text not in truth for text in texts)
        if wrong:
            raise ClientError(f"{name}: {wrong} of {len(texts)} replies were not read whole")
        early = sum(bool((np.array(reads[text]) - np.array(truth[text])).min() < EARLY_NS) for text in texts)
        if early > len(texts) // 100:
            raise ClientError(f"{name}: {early} of {len(texts)} replies were read before they were written")


def wall_ahead_ns() -> int:
    """Return by how much the wall clock is ahead of the monotonic one: the closest of some readings."""
    best = (1 << 62, 0)
    for _ in range(100):
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        took_ns = time.monotonic_ns() - before_ns
        best = min(best, (took_ns, wall_ns - before_ns - took_ns // 2))
    return best[1]


def worst(row: Row) -> float:
    """Return by what a load is carried: the 99th percentile of the errors of reads or of gaps, ms."""
    return max(row.late, row.tbt)


def measure(options: argparse.Namespace) -> list[Row]:
    """Run all sweeps; the server has the first core, a client the last."""
    cores = sorted(os.sched_getaffinity(0))
    with truth_server(options.pace, cores[0]) as port, tempfile.TemporaryDirectory() as work:
        try:
            measurement = Measurement(port, cores, options, Path(work))
            for sweep in range(options.sweeps):
                measurement.sweep(sweep)
        finally:
            os.sched_setaffinity(0, cores)
    return measurement.rows


def carried(rows: Sequence[Row], name: str, bound_ms: float) -> float:
    """Return the most chunks/s that a client carried within a bound, of the loads that it carried in most sweeps."""
    best = 0.0
    for streams in {row.streams for row in rows}:
        of_load = [row for row in rows if row.client == name and row.streams == streams]
        good = [row.chunks_s for row in of_load if worst(row) <= bound_ms]
        if 2 * len(good) > len(of_load):
            best = max(best, float(np.median(good)))
    return best


def page(rows: Sequence[Row]) -> str:
    """Return the tables, ready for the documentation."""
    lines = ["| streams | client | chunks/s | reads, ms | TTFT, ms | gaps, ms |", "|---|---|---|---|---|---|"]
    keys = sorted({(row.streams, CLIENTS.index(row.client)) for row in rows})
    for streams, place in keys:
        name = CLIENTS[place]
        same = [row for row in rows if (row.streams, row.client) == (streams, name)]
        middle = [float(np.median([getattr(row, key) for row in same])) for key in ("chunks_s", "late", "ttft", "tbt")]
        lines.append(f"| {streams} | {name} | {middle[0]:,.0f} | {' | '.join(f'{one:.3g}' for one in middle[1:])} |")
    lines += ["", f"| one core carries, chunks/s | {' | '.join(f'within {one:g} ms' for one in BOUNDS_MS)} |"]
    lines.append(f"|---|{'---|' * len(BOUNDS_MS)}")
    for name in CLIENTS:
        cells = []
        for bound_ms in BOUNDS_MS:
            most, whole, worker = (carried(rows, one, bound_ms) for one in (name, OURS, WORKER))
            ratio = f"; ours {whole / most:.1f} times, its worker {worker / most:.1f}" if most and name in PEERS else ""
            cells.append(f"{most:,.0f}{ratio}" if most else "none of these loads")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the rows and the loads carried as JSON values."""
    most = {name: {f"{bound:g}ms": carried(rows, name, bound) for bound in BOUNDS_MS} for name in CLIENTS}
    return {"rows": [vars(row) for row in rows], "carried_chunks_s": most}
