"""The best batches under a price of latency: Pareto labels over subsets, with a bound.

The time at which a set of jobs is over depends on its batches. A label of a set is one way to run it: when it is over,
and what it costs so far. A label that another one matches in both is dropped, and so is one that cannot lead to a
schedule better than the one at hand.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.annealing.batches import Batch
    from otel_llm.scheduling.annealing.schedule import Score


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
        waits_ns = sum(max(0, len(of) - place - max_batch) * time_ns for place, time_ns in enumerate(times_ns))
        least_ns = waits_ns // max_batch + sum(ends[job] for job in of)
        rests.append(Rest(len(of), least_ns, tuple(sorted(latest[job] for job in of))))
    return rests
