"""A collector under steady load for a long time: does its memory stay flat, and do live windows and audit agree?

    python benchmarks/soak.py [--minutes 20] [--tokens-per-s 20000] [--folder DIR]

Black box: a real `otel-llm collect` with journal, windows and the shipped rules, a process of senders that export over
gRPC in real time. Every few seconds the collector's memory (all of its processes) and CPU are sampled. At the end the
journal is audited, one sender's records at a time so that a long journal fits the memory, and its windows are compared
with those that were written live: every column of every window, exactly. Exit status 1 when something is not as it
must be.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the load and the comparisons are those of the tests
from support.commands import wait_until
from support.integration.interop_compare import (
    Disturbed,
    Group,
    Row,
    audited,
    disturbed,
    given_up,
    missing_tokens,
    read_rows,
    repeated_decisions,
    repeated_windows,
    total_differences,
    window_differences,
)
from support.integration.interop_journal import split_by_sender
from support.integration.interop_service import Service, finish, load, service

from otel_llm.config.durations import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

LATENESS_NS = 5_000_000_000
LOST_AFTER_NS = 20_000_000_000
MIB = 2**20
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SHOWN = 20
"""Lines of the table."""
SETTLED_S = 120
"""Shorter runs say nothing of the memory: tables, caches and threads are still being made."""


AUDIT_S = 3600.0
"""The longest that the audit of one sender's records may take."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The collector at one moment; CPU and tokens since its start."""

    at_s: float
    rss_bytes: int
    cpu_s: float
    tokens: float
    in_flight: float


def main() -> int:
    """Run the soak; return 0 when all is as it must be."""
    options = argparse.ArgumentParser(description="Soak a collector.")
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--tokens-per-s", type=float, default=20_000.0)
    options.add_argument("--stream-tokens-per-s", type=float, default=50.0, help="of one stream while it flows")
    options.add_argument("--stream-s", type=float, default=6.0, help="mean length of a stream")
    options.add_argument("--senders", type=int, default=4)
    options.add_argument("--window", default="10s")
    options.add_argument("--leave", action=argparse.BooleanOptionalAction, default=True, help="some streams never end")
    options.add_argument("--folder", type=Path, help="keep journal, windows and log here [default: thrown away]")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        samples = soak(folder, given)
        show(samples)
        problems = [*memory_problems(samples), *comparison_problems(folder, given.window)]
    print()
    for problem in problems:
        print(problem)
    print("verdict:", "NOT as it must be" if problems else "as it must be: live equals audit")
    return 1 if problems else 0


def soak(folder: Path, given: argparse.Namespace) -> list[Sample]:
    """Run collector and load; return the samples."""
    # A stream's pauses make it slower than it flows: streams are added until the rate is that asked for.
    streams = max(given.senders, round(given.tokens_per_s / given.stream_tokens_per_s * 1.2))
    samples = []
    with (
        service(folder, "--window", given.window, "--lateness", "5s", "--lost-after", "20s") as running,
        load(
            running.grpc, folder / "acknowledged.json",
            *("--streams", str(streams), "--rate", str(given.stream_tokens_per_s)),
            *("--mean-s", str(given.stream_s), "--senders", str(given.senders)),
            *(("--leave",) if given.leave else ()),
        ) as senders,
    ):  # fmt: skip
        print(f"{streams} streams in flight from {given.senders} senders for {given.minutes:g} minutes", flush=True)
        began = time.monotonic()
        every_s = max(0.5, given.minutes * 60 / 240)
        while (at_s := time.monotonic() - began) < given.minutes * 60:
            assert senders.poll() is None, senders.communicate()[0]
            samples.append(sample(running, at_s))
            time.sleep(every_s)
        print(finish(senders).strip())
        wait_until("every stream is judged", lambda: running.metric("otel_llm_collector_in_flight") == 0)
        judged_ns = time.time_ns()
        for name in ("internal_errors", "refused_exports", "unwritten", "late_for_window", "lost"):
            print(f"{name}: {running.metric(f'otel_llm_collector_{name}_total'):.0f}")
        # A window that is open when it stops is not written half: wait for the last one.
        time.sleep((parse_duration_ns(given.window) + LATENESS_NS) / 1e9)
        wait_until("every window is closed that was open then", lambda: running.closed_until_ns() > judged_ns)
        running.stop()
    return samples


def sample(running: Service, at_s: float) -> Sample:
    """Look at the collector now."""
    assert running.process is not None
    rss_bytes, cpu_ticks = 0, 0
    for pid in tree(running.process.pid):
        try:
            rss_bytes += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # a short-lived child
            continue
        cpu_ticks += int(fields[11]) + int(fields[12])
    tokens = running.metric("otel_llm_collector_tokens_total")
    in_flight = running.metric("otel_llm_collector_in_flight")
    return Sample(at_s, rss_bytes, cpu_ticks / TICKS, tokens, in_flight)


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a short-lived thread
            for child in children.read_text(encoding="ascii").split():
                yield from tree(int(child))


def show(samples: list[Sample]) -> None:
    """Print the samples as a table, some left out where there are many."""
    print(f"\n{'at':>8}{'MiB':>9}{'tokens/s':>11}{'CPU':>7}{'tokens/CPU s':>14}{'in flight':>11}")
    step = max(1, len(samples) // SHOWN)
    for before, now in zip(samples[::step], samples[step::step], strict=False):
        seconds, cpu_s, tokens = now.at_s - before.at_s, now.cpu_s - before.cpu_s, now.tokens - before.tokens
        print(
            f"{now.at_s:7.0f}s{now.rss_bytes / MIB:9.1f}{tokens / seconds:11.0f}{cpu_s / seconds:7.1%}"
            f"{tokens / cpu_s if cpu_s else 0:14.0f}{now.in_flight:11.0f}"
        )


def memory_problems(samples: list[Sample]) -> list[str]:
    """Compare the second quarter with the last: by then every table has its size."""
    if samples[-1].at_s < SETTLED_S:
        print(f"\nmemory: not judged in less than {SETTLED_S} s")
        return []
    quarter = len(samples) // 4
    early, late = (
        statistics.median(one.rss_bytes for one in part)
        for part in (samples[quarter : 2 * quarter], samples[-quarter:])
    )
    print(f"\nmemory: {early / MIB:.1f} MiB in the second quarter, {late / MIB:.1f} MiB in the last")
    return [f"memory grew by {(late - early) / MIB:.1f} MiB"] if late > early * 1.05 + 8 * MIB else []


def comparison_problems(folder: Path, window: str) -> list[str]:
    """Compare what was reported live with the audit of the journal."""
    rows: list[Row] = []
    windows: list[Row] = []
    left_out, silent = Disturbed(), Counter[Group]()
    for part in split_by_sender(folder / "journal", folder / "parts"):
        found = audited(part, folder, window, AUDIT_S)
        left_out.add(disturbed(part, found[0], LATENESS_NS, LOST_AFTER_NS))
        silent += given_up(part, found[0], LOST_AFTER_NS)
        rows += found[0]
        windows += found[1]
    live, decisions = read_rows(folder / "windows.jsonl"), read_rows(folder / "decisions.jsonl")
    acknowledged = json.loads((folder / "acknowledged.json").read_text(encoding="utf-8"))
    compared = sum(not left_out.touches(row) for row in windows)
    print(
        f"{len(rows)} streams, {sum(row['tokens'] for row in rows)} tokens, {len(live)} windows of groups,"
        f" {len(decisions)} decisions; {compared} of {len(windows)} windows compared"
    )
    return [
        *(f"tokens (acknowledged, audited): {one}" for one in list(missing_tokens(acknowledged, rows).items())[:10]),
        *(f"window written twice: {one}" for one in repeated_windows(live)[:10]),
        *window_differences(live, windows, left_out)[:10],
        *total_differences(live, windows, silent)[:10],
        *(f"decided twice: {one}" for one in repeated_decisions(decisions)[:10]),
    ]


if __name__ == "__main__":
    sys.exit(main())
