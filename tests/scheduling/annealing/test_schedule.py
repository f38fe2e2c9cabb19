"""A schedule: the objective by hand, from scratch beside a walk, incremental beside from scratch."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from support.chance import chances
from support.scheduling.annealing_oracle import NS, PLAIN, Profile, Uneven, drawn_jobs, walk

from otel_llm.scheduling import Job, Plan
from otel_llm.scheduling.annealing import evaluate, in_order
from otel_llm.scheduling.annealing.batches import BatchTable
from otel_llm.scheduling.annealing.schedule import Schedule
from otel_llm.scheduling.annealing.search import Change, delay, squeeze, swap


class Seconds:
    """A profile to reckon with: a prefill lasts as many seconds as its chunk has tokens, a decode one second."""

    kv_tokens = 100
    max_batch = 8

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        return (chunk or 1) * NS


JOBS = [Job(2, 3, e2e=4.0), Job(1, 2, ttft=5.0, tpot=1.0), Job(1, 1, e2e=3.0)]
"""Alone they last 2 + 2 = 4 s, 1 + 1 = 2 s, 1 s."""


def test_single_jobs_by_hand() -> None:
    """Ends at 4, 6, 7: the last misses its 3 s. Shortest first they end at 1, 3, 7: the long one misses its 4 s."""
    assert in_order([0, 1, 2], JOBS, Seconds()) == Plan([[0], [1], [2]], 2 / 17, 2)
    assert in_order([2, 1, 0], JOBS, Seconds()) == Plan([[2], [1], [0]], 2 / 11, 2)


def test_a_batch_by_hand() -> None:
    """Prefills of 2 + 1 together end at 3, then ends at 5 and 4; the last job ends at 6. Only the second is met."""
    assert in_order([0, 1, 2], JOBS, Seconds(), max_batch=2) == Plan([[0, 1], [2]], 1 / 15, 1)


def test_a_target_is_met_at_its_very_end() -> None:
    end = in_order([0], [Job(2, 3, e2e=4.0, ttft=2.0, tpot=1.0)], Seconds())
    assert end.met == 1
    for late in ({"e2e": 3.999999999}, {"ttft": 1.999999999}, {"tpot": 0.999999999}):
        assert in_order([0], [Job(2, 3, **late)], Seconds()).met == 0, late


def test_a_job_without_targets_is_met_and_one_token_has_no_gap() -> None:
    assert in_order([0, 1], [Job(5, 5), Job(5, 1, tpot=0.001)], Seconds()).met == 2


def test_batches_are_as_large_as_the_cache_allows() -> None:
    jobs = [Job(40, 5), Job(40, 5), Job(10, 5), Job(50, 10), Job(90, 10)]
    assert in_order(range(5), jobs, Seconds(), max_batch=3).batches == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("profile", [PLAIN, Uneven()])
@given(chance=chances())
def test_the_objective_is_that_of_a_walk(profile: Profile, chance: Random) -> None:
    jobs = drawn_jobs(chance, 1, 8)
    order = chance.sample(range(len(jobs)), len(jobs))
    plan = in_order(order, jobs, profile, chance.randrange(1, 5))
    met, latency_ns = walk(jobs, plan.batches, profile)
    assert (plan.met, plan.g) == (met, met * NS / latency_ns)
    assert evaluate(plan.batches, jobs, profile) == plan


@given(chance=chances())
def test_a_change_is_worth_what_the_changed_schedule_is(chance: Random) -> None:
    """Random moves, taken or not: the incremental score, that of a new schedule and that of a walk agree."""
    jobs = drawn_jobs(chance, 2, 9)
    table = BatchTable(jobs, PLAIN, chance.randrange(1, 5))
    schedule = Schedule(table.fill(range(len(jobs))))
    for _ in range(12):
        change = drawn_change(chance, table, schedule)
        if change is None:
            continue
        foreseen, before = schedule.changed(*change), list(schedule.batches)
        batches = [*before[: change.at], *change.new, *before[change.stop :]]
        assert foreseen == Schedule(batches).score
        assert foreseen[1:] == walk(jobs, [batch.jobs for batch in batches], PLAIN)
        assert schedule.batches == before, "looking changes nothing"
        if chance.random() < 0.7:
            schedule.replace(*change)
            assert (schedule.batches, schedule.score) == (batches, foreseen)
            assert sorted(job for batch in batches for job in batch.jobs) == list(range(len(jobs)))
            assert all(1 <= batch.size <= table.max_batch for batch in batches)


def drawn_change(chance: Random, table: BatchTable, schedule: Schedule) -> Change | None:
    """Return a change by one of the moves; None if the one drawn is not possible."""
    batches = schedule.batches
    at, other_at = chance.randrange(len(batches)), chance.randrange(len(batches))
    job, other = chance.choice(batches[at].jobs), chance.choice(batches[other_at].jobs)
    move = chance.randrange(3)
    if move == 0:
        return swap(table, batches, at, job, other_at, other)
    return (squeeze if move == 1 else delay)(table, batches, at, job)


def members(change: Change | None) -> tuple[int, int, list[tuple[int, ...]]] | None:
    return None if change is None else (change.at, change.stop, [batch.jobs for batch in change.new])


def test_the_moves_by_hand() -> None:
    table = BatchTable([Job(1, 1)] * 5, PLAIN, 2)
    batches = [table.fill(some)[0] for some in ([0, 1], [2], [3, 4])]
    assert members(squeeze(table, batches, 0, 1)) is None, "there is no batch before the first"
    assert members(squeeze(table, batches, 1, 2)) is None, "the one before is full"
    assert members(squeeze(table, batches, 2, 4)) == (1, 3, [(2, 4), (3,)])
    assert members(delay(table, batches, 0, 0)) == (0, 2, [(1,), (0, 2)])
    assert members(delay(table, batches, 1, 2)) is None, "the next is full"
    assert members(delay(table, batches, 2, 3)) == (2, 3, [(4,), (3,)]), "behind the last is a new one"
    assert members(swap(table, batches, 2, 4, 0, 1)) == (0, 3, [(0, 4), (2,), (1, 3)])
    assert members(swap(table, batches, 0, 0, 0, 1)) is None, "that changes nothing"


def test_moves_that_empty_a_batch_remove_it() -> None:
    table = BatchTable([Job(1, 1)] * 2, PLAIN, 2)
    batches = table.fill([0])[:1] + table.fill([1])[:1]
    assert members(squeeze(table, batches, 1, 1)) == (0, 2, [(0, 1)])
    assert members(delay(table, batches, 0, 0)) == (0, 2, [(0, 1)])
    assert members(delay(table, batches, 1, 1)) is None, "a last batch of its own is where it is already"


def test_moves_keep_to_the_cache() -> None:
    table = BatchTable([Job(40, 10), Job(10, 5), Job(60, 10), Job(20, 5)], Seconds(), 2)
    batches = [table.fill(some)[0] for some in ([0, 1], [2, 3])]
    assert members(swap(table, batches, 0, 1, 1, 3)) == (0, 2, [(0, 3), (1, 2)])
    assert members(swap(table, batches, 0, 1, 1, 2)) is None, "40 + 10 + 60 + 10 are more than 100"
    assert members(delay(table, [table.alone(0), table.alone(2)], 0, 0)) is None
    assert members(squeeze(table, [table.alone(0), table.alone(2)], 1, 2)) is None


@pytest.mark.parametrize("batches", [[[0, 1]], [[0, 1], [1, 2]], [[0], [1], [2], [3]]])
def test_a_plan_that_does_not_hold_each_job_once_is_refused(batches: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="each of the jobs 0 to 2 once"):
        evaluate(batches, JOBS, Seconds())
    with pytest.raises(ValueError, match="each of the jobs 0 to 2 once"):
        in_order([0, 0, 1], JOBS, Seconds())


def test_a_batch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="KV cache; make it smaller"):
        evaluate([[0, 1]], [Job(50, 10), Job(50, 10)], Seconds())
