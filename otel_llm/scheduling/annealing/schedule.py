"""A schedule: batches one after another, its objective, and what a change of some of them does to it."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from otel_llm.scheduling.annealing.batches import Batch, BatchTable
from otel_llm.scheduling.annealing.jobs import NS_PER_S, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.scheduling.annealing.jobs import Job
    from otel_llm.scheduling.annealing.prediction import Predictor, Profile


class Score(NamedTuple):
    """The objective: `g` (1/s), the jobs that meet their targets over all end-to-end latencies (section 3.1, eq. 2)."""

    g: float
    met: int
    latency_ns: int

    def better(self, other: Score) -> bool:
        """Tell whether this objective is greater, exactly; of equal ones the shorter latency is better."""
        left, right = self.met * other.latency_ns, other.met * self.latency_ns
        return left > right or (left == right and self.latency_ns < other.latency_ns)


def score_of(met: int, latency_ns: int) -> Score:
    """Return the score of these sums; `g` is 0.0 without any job."""
    return Score(met * NS_PER_S / latency_ns if latency_ns else 0.0, met, latency_ns)


class Schedule:
    """Batches with running sums, so that a change is evaluated from the first changed batch on."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self.batches: list[Batch] = []
        self._starts_ns = [0]
        self._latency_ns = [0]
        self._met = [0]
        self.replace(0, 0, batches)

    @property
    def score(self) -> Score:
        """The sums of the whole schedule."""
        return score_of(self._met[-1], self._latency_ns[-1])

    def changed(self, at: int, stop: int, new: Iterable[Batch]) -> Score:
        """Return the score with `new` in the place of the batches from `at` to before `stop`; nothing is changed.

        Later batches are counted again only if they start at another time.
        """
        starts_ns = self._starts_ns
        now_ns, latency_ns, met = starts_ns[at], self._latency_ns[at], self._met[at]
        for size, duration_ns, ends_ns, latest_ns, *_ in new:
            met += size - bisect_left(latest_ns, now_ns)
            latency_ns += size * now_ns + ends_ns
            now_ns += duration_ns
        if now_ns == starts_ns[stop]:
            met += self._met[-1] - self._met[stop]
            return score_of(met, latency_ns + self._latency_ns[-1] - self._latency_ns[stop])
        for size, duration_ns, ends_ns, latest_ns, *_ in self.batches[stop:]:
            met += size - bisect_left(latest_ns, now_ns)
            latency_ns += size * now_ns + ends_ns
            now_ns += duration_ns
        return score_of(met, latency_ns)

    def replace(self, at: int, stop: int, new: Iterable[Batch]) -> None:
        """Put `new` in the place of the batches from `at` to before `stop`."""
        self.batches[at:stop] = new
        del self._starts_ns[at + 1 :], self._latency_ns[at + 1 :], self._met[at + 1 :]
        now_ns, latency_ns, met = self._starts_ns[at], self._latency_ns[at], self._met[at]
        for batch in self.batches[at:]:
            met += batch.met(now_ns)
            latency_ns += batch.latency_ns(now_ns)
            now_ns += batch.duration_ns
            self._starts_ns.append(now_ns)
            self._latency_ns.append(latency_ns)
            self._met.append(met)


def plan_of(batches: Iterable[Batch]) -> Plan:
    """Return the plan of some batches in their order."""
    schedule = Schedule(batches)
    return Plan([list(batch.jobs) for batch in schedule.batches], schedule.score.g, schedule.score.met)


def evaluate(batches: Sequence[Sequence[int]], jobs: Sequence[Job], profile: Profile | Predictor) -> Plan:
    """Return the plan of given batches, for instance of one made with predicted lengths, by the true ones.

    Raises: ValueError if the batches do not hold each job once, or if one does not fit into the KV cache.
    """
    if sorted(chain.from_iterable(batches)) != list(range(len(jobs))):
        raise ValueError(f"the batches must hold each of the jobs 0 to {len(jobs) - 1} once, but are {batches!r}")
    table = BatchTable(jobs, profile, max(map(len, batches), default=1))
    found = [table.get(sum(1 << index for index in batch)) for batch in batches if batch]
    fitting = [batch for batch in found if batch is not None]
    if len(fitting) < len(found):
        raise ValueError("a batch does not fit into the profile's KV cache; make it smaller")
    return plan_of(fitting)


def in_order(order: Sequence[int], jobs: Sequence[Job], profile: Profile | Predictor, max_batch: int = 1) -> Plan:
    """Return the plan of jobs in a given order, each batch as large as it may be.

    Raises: ValueError if the order does not hold each job once; for a `max_batch` or a job that the profile forbids.
    """
    if sorted(order) != list(range(len(jobs))):
        raise ValueError(f"the order must hold each of the jobs 0 to {len(jobs) - 1} once, but is {order!r}")
    return plan_of(BatchTable(jobs, profile, max_batch).fill(order))


def starting_batches(table: BatchTable) -> tuple[list[Batch], list[Batch]]:
    """Return the two starts of the search: arrival order, and shortest predicted latency first (section 4.3)."""
    arrival = range(len(table.jobs))
    return table.fill(arrival), table.fill(sorted(arrival, key=lambda index: table.alone(index).duration_ns))
