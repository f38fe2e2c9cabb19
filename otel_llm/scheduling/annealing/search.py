"""Simulated annealing over the order and the batches of jobs (section 4.3, algorithm 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.scheduling.annealing.batches import BatchTable
from otel_llm.scheduling.annealing.schedule import Schedule, plan_of, starting_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from otel_llm.scheduling.annealing.batches import Batch
    from otel_llm.scheduling.annealing.jobs import Job, Plan
    from otel_llm.scheduling.annealing.prediction import Predictor, Profile


class Change(NamedTuple):
    """New batches for those from `at` to before `stop`."""

    at: int
    stop: int
    new: list[Batch]


def squeeze(table: BatchTable, batches: Sequence[Batch], at: int, job: int) -> Change | None:
    """Move a job of batch `at` into the batch before it."""
    if at == 0:
        return None
    wider = table.get(batches[at - 1].members | 1 << job)
    if wider is None:
        return None
    return Change(at - 1, at + 1, [wider, *_without(table, batches[at], job)])


def delay(table: BatchTable, batches: Sequence[Batch], at: int, job: int) -> Change | None:
    """Move a job of batch `at` into the next batch; from the last batch into a new one."""
    rest = _without(table, batches[at], job)
    if at == len(batches) - 1:
        return Change(at, at + 1, [*rest, table.alone(job)]) if rest else None
    wider = table.get(batches[at + 1].members | 1 << job)
    return None if wider is None else Change(at, at + 2, [*rest, wider])


def swap(table: BatchTable, batches: Sequence[Batch], at: int, job: int, other_at: int, other: int) -> Change | None:
    """Exchange a job of batch `at` and one of batch `other_at`."""
    if at == other_at:
        return None
    both = 1 << job | 1 << other
    if at > other_at:
        at, other_at = other_at, at
    left, right = table.get(batches[at].members ^ both), table.get(batches[other_at].members ^ both)
    if left is None or right is None:
        return None
    return Change(at, other_at + 1, [left, *batches[at + 1 : other_at], right])


def _without(table: BatchTable, batch: Batch, job: int) -> list[Batch]:
    """Return the batch without a job: none if it was the only one."""
    rest = table.get(batch.members ^ 1 << job) if batch.size > 1 else None
    return [] if rest is None else [rest]


@dataclass(frozen=True, slots=True)
class Cooling:
    """A cooling schedule: from `start` down to `end`, times `factor` a level, with `moves` moves at each level.

    A temperature is a difference of the objective (1/s). If `relative`, its unit is the best objective so far over
    the number of jobs: about what one of them adds.
    """

    start: float
    end: float
    factor: float
    moves: int
    relative: bool

    def temperatures(self) -> Iterator[float]:
        """Yield the temperature of each level."""
        temperature = self.start
        while temperature >= self.end:
            yield temperature
            temperature *= self.factor


SCHEDULES: Final[Mapping[str, Cooling]] = {
    # Section 5.1. The objective is a few tenths, so that every move is accepted: a random walk that keeps its best.
    "paper": Cooling(500.0, 20.0, 0.95, 100, relative=False),
    # Chosen by shares of the optimum of drawn jobs (`benchmarks/annealing.py`): 38 levels, 3,800 moves.
    "scaled": Cooling(1.0, 0.02, 0.9, 100, relative=True),
}
"""Cooling schedules by name."""


def anneal(
    jobs: Sequence[Job],
    profile: Profile | Predictor,
    max_batch: int = 1,
    seed: int = 0,
    schedule: str | Cooling = "scaled",
) -> Plan:
    """Return the best plan that the search passes; the same arguments give the same plan.

    The start is the better of arrival order and shortest first, in batches as large as they may be. `schedule`: a name
    of `SCHEDULES`, or a cooling schedule of your own.

    Raises: ValueError for an unknown schedule, or for a `max_batch` or a job that the profile forbids.
    """
    cooling = schedule if isinstance(schedule, Cooling) else SCHEDULES.get(schedule)
    if cooling is None:
        raise ValueError(f"no schedule is named {schedule!r}; give one of {', '.join(SCHEDULES)}")
    table = BatchTable(jobs, profile, max_batch)
    arrival, shortest = map(Schedule, starting_batches(table))
    # With every target met, shortest first is the optimum for single jobs. The paper stops there for batches, too.
    all_met = shortest.score.met == len(jobs) and (max_batch == 1 or not cooling.relative)
    start = shortest if all_met or not arrival.score.better(shortest.score) else arrival
    return plan_of(start.batches if all_met or len(jobs) < 2 else _search(table, start, cooling, Random(seed)))  # noqa: S311 - reproducible


def _search(table: BatchTable, current: Schedule, cooling: Cooling, draw: Random) -> Sequence[Batch]:
    """Return the best batches that the search passes."""
    jobs = len(table.jobs)
    where = [0] * jobs
    _note_places(where, current.batches, range(len(current.batches)))
    best, best_score = list(current.batches), current.score
    g = best_g = best_score.g
    for level in cooling.temperatures():
        temperature = level * best_g / jobs if cooling.relative else level
        for _ in range(cooling.moves):
            change = _draw_move(table, current, where, draw)
            if change is None:
                continue
            score = current.changed(*change)
            if score.g < g and (temperature <= 0.0 or draw.random() >= math.exp((score.g - g) / temperature)):
                continue
            g = score.g
            current.replace(*change)
            as_many = len(change.new) == change.stop - change.at
            moved = (change.at, change.stop - 1) if as_many else range(change.at, len(current.batches))
            _note_places(where, current.batches, moved)
            if g >= best_g and score.better(best_score):
                best, best_score, best_g = list(current.batches), score, g
                temperature = level * best_g / jobs if cooling.relative else level
    return best


def _draw_move(table: BatchTable, current: Schedule, where: list[int], draw: Random) -> Change | None:
    """Draw one of the possible moves of a random job; with single jobs only swaps are."""
    jobs = len(where)
    job = int(draw.random() * jobs)
    kind = int(draw.random() * 3) if table.max_batch > 1 else 2
    if kind == 0:
        change = squeeze(table, current.batches, where[job], job)
    elif kind == 1:
        change = delay(table, current.batches, where[job], job)
    else:
        change = None
    if change is None:
        other = int(draw.random() * (jobs - 1))
        other += other >= job
        change = swap(table, current.batches, where[job], job, where[other], other)
    return change


def _note_places(where: list[int], batches: Sequence[Batch], places: Iterable[int]) -> None:
    """Note the batch of each job of the batches at these places."""
    for at in places:
        for job in batches[at].jobs:
            where[job] = at
