"""How fast many requests are judged, all metrics in one pass, against a plain Python loop for the fluidity-index alone.

    python benchmarks/slo_speed.py [--requests 4000] [--repeat 5]

Prints one line a workload: tokens/s of `judge_many`, and of two loops on the same tokens in the same run (the paper's
algorithm as it is written, and the leanest Python that gives the same counts), with the ratios; then what the other
forms cost. Nothing is asserted: the numbers are those of the machine.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.batch.many import judge_many
from otel_llm.slo.batch.recorded import Recorded
from otel_llm.slo.classes import OUTCOMES, Deadline, Fluidity, SloClass
from otel_llm.slo.fluid.fluid_search import fluid_tbt_many
from otel_llm.slo.request import judge
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

CHAT = SloClass()
CLASSES = [
    CHAT,
    SloClass("code", pace_ns=50_000_000, fluidity=Fluidity(500_000_000, 25_000_000)),
    SloClass("voice", pace_ns=307_692_308, deadline=Deadline("dslo", 500_000_000, 60_000_000)),
    SloClass("agent", reads=(0, 1, 2), deadline=Deadline("ttft_tbt", 2_000_000_000, 200_000_000)),
]
T0_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class Workload:
    """Requests as arrays, with what is known about them."""

    name: str
    requests: Recorded
    classes: list[SloClass]
    class_index: NDArray[np.intp]

    @property
    def tokens(self) -> int:
        return len(self.requests.tokens_ns)


def make(
    name: str,
    count: int,
    *,
    gap_ms: float = 22,
    stalled: float = 0.3,
    burst: int = 1,
    classes: list[SloClass] | None = None,
    kinds: bool = False,
) -> Workload:
    """Draw replies of 50 to 1,500 tokens; a share stalls while other prompts are prefilled, some are cut off."""
    generator = np.random.default_rng(11)
    lengths = np.clip(generator.lognormal(np.log(300), 0.8, count), 50, 1500).astype(np.int64)
    total = int(lengths.sum())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    owner = np.repeat(np.arange(count), lengths)
    gaps = generator.lognormal(np.log(gap_ms * 1e6), 0.4, total).astype(np.int64)
    gaps[generator.integers(0, burst, total) > 0] = 0
    late = (generator.random(total) < 0.01) & (generator.random(count) < stalled)[owner]
    gaps[late] += generator.lognormal(np.log(5e8), 0.8, int(late.sum())).astype(np.int64)
    gaps[offsets[:-1]] = generator.lognormal(np.log(4e8), 0.7, count).astype(np.int64)
    commit = T0_NS + np.sort(generator.integers(0, 600_000_000_000, count))
    since = np.cumsum(gaps)
    times = since - np.repeat(since[offsets[:-1]] - gaps[offsets[:-1]], lengths) + np.repeat(commit, lengths)
    outcomes = np.where(generator.random(count) < 0.1, generator.integers(1, len(OUTCOMES), count), 0)
    classes = classes or [CHAT]
    codes = None
    if kinds:  # a first part that is thinking
        codes = (np.arange(total) - offsets[owner] < 100).astype(np.uint8)
    recorded = Recorded(times, offsets, commit, times[offsets[1:] - 1] + 1_000_000, outcomes.astype(np.uint8), codes)
    return Workload(name, recorded, classes, generator.integers(0, len(classes), count))


def fluidity_loop(read: list[int], first_due: int, tbt: int) -> tuple[int, int]:
    """Count deadlines as Etalon's algorithm is written; the plainest Python that does it."""
    slack = met = missed = previous = 0
    target = first_due
    for now in read:
        gap = now - previous
        previous = now
        if gap <= target + slack:
            slack += target - gap
            met += 1
        else:
            missed += 1 + (gap - slack - target) // tbt
            slack = 0
        target = tbt
    return met, missed


def lean_loop(read: list[int], due: int, tbt: int) -> tuple[int, int]:
    """Count the same with one running deadline."""
    met = missed = 0
    for now in read:
        if now <= due:
            met += 1
        else:
            missed += 1 + (now - due) // tbt
            due = now
        due += tbt
    return met, missed


def best_s(work: Callable[[], object], repeat: int) -> float:
    """Return the least wall time of some runs: what the machine can do when nothing else disturbs it."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def lists_of(work: Workload) -> list[list[int]]:
    offsets = work.requests.offsets.tolist()
    since = work.requests.tokens_ns - np.repeat(work.requests.commit_ns, np.diff(work.requests.offsets))
    return [since[low:high].tolist() for low, high in pairwise(offsets)]


def stream_all(lists: list[list[int]], cut: int) -> None:
    for times in lists:
        stream = Stream(CHAT, 0)
        for start in range(0, len(times), cut):
            stream.extend(times[start : start + cut])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    count, repeat = options.requests, options.repeat
    workloads = [
        make("one class, 30 % of replies stalled", count),
        make("one class, all healthy", count, stalled=0),
        make("one class, every reply stalled", count, stalled=1),
        make("one class, bursts of three", count, burst=3, gap_ms=60),
        make("one class, slower than its target", count, gap_ms=70),
        make("four classes, mixed", count, classes=CLASSES),
        make("four classes, thinking first", count, classes=CLASSES, kinds=True),
    ]
    print(f"{'tokens, M/s':36}{'tokens':>10}{'judge_many':>12}{'paper loop':>12}{'lean loop':>11}{'ratios':>12}")
    for work in workloads:
        lists = lists_of(work)
        many = best_s(lambda work=work: judge_many(work.requests, work.classes, work.class_index), repeat)  # type: ignore[misc]
        paper, lean = (
            best_s(
                lambda loop=loop, lists=lists: [loop(times, 1_000_000_000, 50_000_000) for times in lists],  # type: ignore[misc]
                max(1, repeat // 2),
            )
            for loop in (fluidity_loop, lean_loop)
        )
        speeds = [work.tokens / taken / 1e6 for taken in (many, paper, lean)]
        print(
            f"{work.name:36}{work.tokens:>10,}{speeds[0]:>12.1f}{speeds[1]:>12.1f}{speeds[2]:>11.1f}"
            f"{paper / many:>6.1f}{lean / many:>6.1f}"
        )
    work, lists = workloads[0], lists_of(workloads[0])
    some = lists[: max(1, count // 8)]
    tokens = sum(map(len, some))
    print(f"\n{'other forms, on the first workload':38}{'ns a token':>10}")
    rows: list[tuple[str, Callable[[], object], int]] = [
        ("fluid token rate, all requests", lambda: fluid_tbt_many(work.requests, work.classes), work.tokens),
        ("judge, one request after the other", lambda: [judge(t, 0, t[-1], "completed", CHAT) for t in some], tokens),
        ("stream, ten tokens a batch", lambda: stream_all(some, 10), tokens),
        ("stream, token by token", lambda: stream_all(some, 1), tokens),
    ]
    for name, run, size in rows:
        print(f"{name:38}{best_s(run, max(1, repeat // 2)) / size * 1e9:>10.0f}")


if __name__ == "__main__":
    main()
