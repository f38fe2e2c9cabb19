"""The optimum of the objective, exactly: Dinkelbach's method on a ratio.

The objective is a ratio. At the best ratio found so far, met and latency have a price each; a schedule whose value is
positive at these prices has a better ratio, and there is none once the largest value is 0 (Dinkelbach, 1967).
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_llm.scheduling.annealing.batches import BatchTable
from otel_llm.scheduling.annealing.schedule import Schedule, plan_of
from otel_llm.scheduling.annealing.search import anneal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from otel_llm.scheduling.annealing.batches import Batch
    from otel_llm.scheduling.annealing.jobs import Job, Plan
    from otel_llm.scheduling.annealing.prediction import Predictor, Profile
    from otel_llm.scheduling.annealing.schedule import Score


def best_order(alone: Sequence[Batch], over: Score) -> list[Batch]:
    """Return the order of the batches of one job with the largest (met x `over.latency_ns` - latency x `over.met`).

    Arithmetic is exact: in 64 bits if they suffice, else in Python's integers.
    """
    count = len(alone)
    span_ns = sum(batch.duration_ns for batch in alone)
    largest = count * (over.latency_ns + 1) + count * span_ns * (over.met + 1)
    exactly = np.int64 if largest < 1 << 62 else object
    starts = np.zeros(1 << count, dtype=exactly)
    for index, batch in enumerate(alone):
        starts[1 << index : 2 << index] = starts[: 1 << index] + batch.duration_ns
    best = np.full(1 << count, -largest - 1, dtype=exactly)
    best[0] = 0
    sets = np.arange(1 << count)
    sizes = np.bitwise_count(sets)
    for size in range(count):
        layer = sets[sizes == size]
        for index, batch in enumerate(alone):
            before = layer[layer >> index & 1 == 0]
            after = before | 1 << index
            best[after] = np.maximum(best[after], best[before] + _gain(batch, starts[before], over))
    order = []
    left = (1 << count) - 1
    while left:
        for index, batch in enumerate(alone):
            before_last = left & ~(1 << index)
            if before_last != left and best[left] == best[before_last] + _gain(batch, starts[[before_last]], over)[0]:
                order.append(batch)
                left = before_last
                break
    return order[::-1]


def _gain(batch: Batch, starts_ns: NDArray[Any], over: Score) -> NDArray[Any]:
    """Return what a batch of one job adds when it starts at these times."""
    met: NDArray[Any] = (starts_ns <= batch.latest_ns[0]).astype(starts_ns.dtype)
    latency_ns: NDArray[Any] = starts_ns + batch.duration_ns
    gain: NDArray[Any] = met * over.latency_ns - latency_ns * over.met
    return gain


class Label(NamedTuple):
    """One way to run a set of jobs: its end, its cost, its last batch, and the label before that."""

    over_ns: int
    cost: int
    last: Batch | None
    before: Label | None


class Rest(NamedTuple):
    """The least that a set of jobs costs from any time on: their number, least latency (ns), latest starts (ns)."""

    size: int
    latency_ns: int
    latest_ns: tuple[int, ...]

    def least_cost(self, now_ns: int, over: Score) -> int:
        """Return a lower bound of the cost of these jobs when the first of them starts now."""
        met = self.size - bisect_left(self.latest_ns, now_ns)
        return (self.size * now_ns + self.latency_ns) * over.met - met * over.latency_ns


class BatchOptimum:
    """The search over the batches that some jobs may run in; `possible` holds them all."""

    def __init__(self, possible: Sequence[Batch], jobs: int, max_batch: int) -> None:
        self._possible = possible
        self._everything = (1 << jobs) - 1
        self._rests = _rests(possible, jobs, max_batch)

    def better(self, over: Score) -> list[Batch] | None:
        """Return the batches with the least cost, None if that is not below 0.

        The cost is latency x `over.met` - met x `over.latency_ns`: below 0, the objective is greater than `over`.
        """
        rests, everything = self._rests, self._everything
        labels: dict[int, list[Label]] = {0: [Label(0, 0, None, None)]}
        for done in range(everything):
            ways = _undominated(labels.pop(done, []))
            if not ways:
                continue
            for batch in self._possible:
                if batch.members & done:
                    continue
                after = done | batch.members
                rest = rests[everything ^ after]
                for way in ways:
                    start_ns = way.over_ns
                    cost = way.cost + batch.latency_ns(start_ns) * over.met - batch.met(start_ns) * over.latency_ns
                    over_ns = start_ns + batch.duration_ns
                    if cost + rest.least_cost(over_ns, over) < 0:
                        labels.setdefault(after, []).append(Label(over_ns, cost, batch, way))
        ends = labels.get(everything)
        return _path(min(ends, key=lambda label: label.cost)) if ends else None


def _undominated(labels: list[Label]) -> list[Label]:
    """Return the labels that no other matches in both time and cost, earliest first."""
    kept: list[Label] = []
    for label in sorted(labels, key=lambda label: label[:2]):
        if not kept or label.cost < kept[-1].cost:
            kept.append(label)
    return kept


def _path(label: Label) -> list[Batch]:
    """Return the batches of a label, first to last."""
    found = []
    way: Label | None = label
    while way is not None and way.last is not None:
        found.append(way.last)
        way = way.before
    return found[::-1]


def _rests(possible: Sequence[Batch], jobs: int, max_batch: int) -> list[Rest]:
    """Return the bound of each set of jobs that may be left.

    A batch lasts as long as the shortest batch of each of its jobs, so at least the sum of these times over
    `max_batch`. Of n jobs one after another, at least n - i - `max_batch` wait for the batch of job i; the sum of the
    waits is least with the shortest first. The bound holds for any profile, also for one that is not monotone.
    """
    shortest, ends, latest = [0] * jobs, [0] * jobs, [0] * jobs
    for job in range(jobs):
        batches = [batch for batch in possible if batch.members >> job & 1]
        shortest[job] = min(batch.duration_ns for batch in batches)
        times = [batch.times[batch.jobs.index(job)] for batch in batches]
        ends[job] = min(end_ns for end_ns, _ in times)
        latest[job] = max(latest_ns for _, latest_ns in times)
    rests = []
    for left in range(1 << jobs):
        of = [job for job in range(jobs) if left >> job & 1]
        times_ns = sorted(shortest[job] for job in of)
        waits_ns = sum(max(0, len(of) - index - max_batch) * time_ns for index, time_ns in enumerate(times_ns))
        least_ns = waits_ns // max_batch + sum(ends[job] for job in of)
        rests.append(Rest(len(of), least_ns, tuple(sorted(latest[job] for job in of))))
    return rests


MOST_JOBS: Final = 16
"""With single jobs: 65,536 subsets."""
MOST_JOBS_IN_BATCHES: Final = 12


def exact(jobs: Sequence[Job], profile: Profile | Predictor, max_batch: int = 1) -> Plan:
    """Return a plan with the greatest objective that any order and batches have.

    Raises: ValueError for more than 16 jobs, or 12 in batches; for a `max_batch` or a job that the profile forbids.
    """
    table = BatchTable(jobs, profile, max_batch)
    most = MOST_JOBS if max_batch == 1 else MOST_JOBS_IN_BATCHES
    if len(jobs) > most:
        raise ValueError(f"exact takes at most {most} jobs with max_batch {max_batch}, not {len(jobs)}; use anneal")
    # A good start saves rounds, and leaves little that could be better.
    start = anneal(jobs, profile, max_batch)
    batches = [batch for members in start.batches if (batch := table.get(sum(1 << index for index in members)))]
    return plan_of(best_from(table, batches)) if jobs else start


def best_from(table: BatchTable, batches: Sequence[Batch]) -> list[Batch]:
    """Return the best batches there are, from any schedule of all jobs; `batches` if none are better."""
    better: Callable[[Score], list[Batch] | None]
    count = len(table.jobs)
    if table.max_batch == 1:
        better = partial(best_order, [table.alone(index) for index in range(count)])
    else:
        better = BatchOptimum(_possible(table), count, table.max_batch).better
    best = Schedule(batches)
    while (found := better(best.score)) is not None:
        schedule = Schedule(found)
        if not schedule.score.better(best.score):
            break
        best = schedule
    return best.batches


def _possible(table: BatchTable) -> list[Batch]:
    """Return all batches that fit, smallest first."""
    jobs = range(len(table.jobs))
    sizes = range(1, min(table.max_batch, len(jobs)) + 1)
    members = (sum(1 << job for job in some) for size in sizes for some in combinations(jobs, size))
    return [batch for some in members if (batch := table.get(some)) is not None]
