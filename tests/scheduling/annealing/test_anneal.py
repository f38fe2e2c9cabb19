"""The searches: the optimum beside every schedule there is, annealing beside the optimum, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chance import chances
from support.examples import examples
from support.scheduling.annealing_oracle import (
    NS,
    PLAIN,
    STEEP,
    Hidden,
    Linear,
    Profile,
    Uneven,
    batch_times,
    best_of_all,
    drawn_job,
    drawn_jobs,
    walk,
)

from otel_llm.scheduling import Job, Plan, anneal, exact
from otel_llm.scheduling.annealing import Predictor, evaluate, in_order
from otel_llm.scheduling.annealing.batches import BatchTable
from otel_llm.scheduling.annealing.optimum import best_from
from otel_llm.scheduling.annealing.schedule import Schedule, starting_batches
from otel_llm.scheduling.annealing.search import SCHEDULES

SEARCHES = [exact, anneal, partial(anneal, schedule="paper")]
SMALL = Linear(STEEP.terms, kv_tokens=100)
"""A cache for one or two drawn jobs."""


def objective(plan: Plan, jobs: list[Job], profile: Profile) -> Fraction:
    """Return the objective of a plan by a walk (1/ns), having checked the plan."""
    assert sorted(job for batch in plan.batches for job in batch) == list(range(len(jobs)))
    met, latency_ns = walk(jobs, plan.batches, profile)
    assert (plan.met, plan.g) == (met, met * NS / latency_ns)
    return Fraction(met, latency_ns)


@pytest.mark.parametrize("max_batch", [1, 2, 4])
@pytest.mark.parametrize("profile", [PLAIN, STEEP, Hidden(SMALL), Uneven()])
@given(chance=chances())
@settings(max_examples=examples(40))
def test_exact_is_the_best_of_all_schedules(profile: Profile, max_batch: int, chance: Random) -> None:
    jobs = drawn_jobs(chance, 1, 5)
    plan = exact(jobs, profile, max_batch)
    assert objective(plan, jobs, profile) == best_of_all(jobs, profile, max_batch)
    assert all(len(batch) <= max_batch for batch in plan.batches)


@pytest.mark.parametrize("max_batch", [1, 2, 4])
@pytest.mark.parametrize("profile", [PLAIN, STEEP, Hidden(SMALL), Uneven()])
@given(chance=chances())
@settings(max_examples=examples(40))
def test_the_optimum_is_found_from_any_start(profile: Profile, max_batch: int, chance: Random) -> None:
    """Annealing mostly finds it alone. From a drawn order the programmes have to, and through several rounds."""
    jobs = drawn_jobs(chance, 1, 5)
    table = BatchTable(jobs, profile, max_batch)
    batches = best_from(table, table.fill(chance.sample(range(len(jobs)), len(jobs))))
    plan = evaluate([batch.jobs for batch in batches], jobs, profile)
    assert objective(plan, jobs, profile) == best_of_all(jobs, profile, max_batch)


@pytest.mark.parametrize(("max_batch", "seed"), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)])
def test_exact_is_the_best_of_all_schedules_of_seven_jobs(max_batch: int, seed: int) -> None:
    chance = Random(seed)
    jobs = [drawn_job(chance) for _ in range(7)]
    best = best_of_all(jobs, STEEP, max_batch)
    assert objective(exact(jobs, STEEP, max_batch), jobs, STEEP) == best
    table = BatchTable(jobs, STEEP, max_batch)
    assert Fraction(*Schedule(best_from(table, table.fill(range(7)))).score[1:]) == best


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(chance=chances(), seed=st.integers(0, 3))
@settings(max_examples=examples(15))
def test_annealing_is_at_most_the_optimum_and_at_least_its_starts(schedule: str, chance: Random, seed: int) -> None:
    jobs, max_batch = drawn_jobs(chance, 1, 8), chance.choice([1, 2, 4])
    plan = anneal(jobs, PLAIN, max_batch, seed, schedule)
    assert all(1 <= len(batch) <= max_batch for batch in plan.batches)
    g = objective(plan, jobs, PLAIN)
    assert g <= objective(exact(jobs, PLAIN, max_batch), jobs, PLAIN)
    shortest = sorted(range(len(jobs)), key=lambda job: batch_times(jobs, [job], PLAIN)[1])
    for order in (list(range(len(jobs))), shortest):
        assert g >= objective(in_order(order, jobs, PLAIN, max_batch), jobs, PLAIN)


class Seconds:
    """A profile to reckon with: a prefill lasts as many seconds as its chunk has tokens, a decode one second."""

    kv_tokens = 100
    max_batch = 8

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        return (chunk or 1) * NS


@pytest.mark.parametrize("search", SEARCHES)
def test_an_order_by_hand(search: Any) -> None:
    """Shortest first meets two, G = 2 / (1 + 3 + 6). The long one first, the patient one last: 3 / (3 + 5 + 6)."""
    jobs = [Job(3, 1, e2e=3.0), Job(1, 1, e2e=9.0), Job(2, 1, e2e=5.0)]
    assert in_order([1, 2, 0], jobs, Seconds()) == Plan([[1], [2], [0]], 0.2, 2)
    assert search(jobs, Seconds()) == Plan([[0], [2], [1]], 3 / 14, 3)
    table = BatchTable(jobs, Seconds(), 1)
    assert [batch.jobs for batch in best_from(table, table.fill([1, 2, 0]))] == [(0,), (2,), (1,)]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_job_that_is_late_anyway_waits_by_hand(search: Any) -> None:
    """Figure 5: job 0 lasts 4 s, and misses its 3 s even at once. First in line it lets job 1 miss, too."""
    jobs = [Job(4, 1, e2e=3.0), Job(5, 1, e2e=5.0)]
    assert search(jobs, Seconds()) == Plan([[1], [0]], 1 / 14, 1)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_batch_that_is_too_slow_by_hand(search: Any) -> None:
    """Figure 4: together both end at 4 s, and job 0 misses its 2 s; one after the other they end at 2 and 4."""
    jobs = [Job(2, 1, e2e=2.0), Job(2, 1, e2e=9.0)]
    assert in_order([0, 1], jobs, Seconds(), 2) == Plan([[0, 1]], 1 / 8, 1)
    assert search(jobs, Seconds(), 2) == Plan([[0], [1]], 2 / 6, 2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_same_seed_gives_the_same_plan(schedule: str) -> None:
    chance, differs = Random(5), False
    for max_batch in (1, 4):
        jobs = [drawn_job(chance, 100) for _ in range(14)]
        plans = [anneal(jobs, PLAIN, max_batch, seed, schedule) for seed in (0, 0, 1, 2)]
        assert plans[0] == plans[1] == anneal(jobs, Predictor(PLAIN), max_batch, 0, schedule)
        differs = differs or plans[0] not in plans[2:]
    assert differs, "the seed matters"


def test_the_schedules_are_those_described() -> None:
    """63 levels of 100 moves, and 38 of 100."""
    assert {name: len(list(one.temperatures())) * one.moves for name, one in SCHEDULES.items()} == {
        "paper": 6300,
        "scaled": 3800,
    }


def test_a_cooling_schedule_of_ones_own_is_followed() -> None:
    chance = Random(11)
    jobs = [drawn_job(chance, 100) for _ in range(12)]
    for name, cooling in SCHEDULES.items():
        assert anneal(jobs, PLAIN, schedule=cooling) == anneal(jobs, PLAIN, schedule=name)
    # Without a move the start stays: the better of arrival order and shortest first.
    starts = [Schedule(start) for start in starting_batches(BatchTable(jobs, PLAIN, 1))]
    still = replace(SCHEDULES["scaled"], moves=0)
    assert anneal(jobs, PLAIN, schedule=still).g == max(start.score.g for start in starts)
    assert anneal(jobs, PLAIN).g > anneal(jobs, PLAIN, schedule=still).g


def test_scaled_temperatures_come_closer_to_the_optimum_than_those_of_the_paper() -> None:
    chance = Random(11)
    cases = [[drawn_job(chance, 100) for _ in range(12)] for _ in range(6)]
    best = [exact(jobs, PLAIN).g for jobs in cases]
    shares = {
        name: [anneal(jobs, PLAIN, schedule=name).g / g for jobs, g in zip(cases, best, strict=True)]
        for name in SCHEDULES
    }
    mean = {name: sum(found) / len(found) for name, found in shares.items()}
    assert mean["scaled"] > max(0.98, mean["paper"])


def test_where_no_target_can_be_met_the_shortest_is_first() -> None:
    jobs = [Job(30, 30, e2e=0.001), Job(10, 10, e2e=0.001), Job(20, 20, e2e=0.001)]
    for plan in (exact(jobs, PLAIN), anneal(jobs, PLAIN), anneal(jobs, PLAIN, schedule="paper")):
        assert plan == Plan([[1], [2], [0]], 0.0, 0)


@pytest.mark.parametrize("search", SEARCHES)
def test_where_no_target_can_be_met_a_batch_is_as_small_as_is_quick(search: Any) -> None:
    """Together both end at 10 s, one after the other at 1 and 10."""
    jobs = [Job(1, 1, e2e=0.1), Job(9, 1, e2e=0.1)]
    assert search(jobs, Seconds(), 2) == Plan([[0], [1]], 0.0, 0)


def test_only_the_paper_stops_where_shortest_first_meets_every_target() -> None:
    """Together both end at 10 s, one after the other at 1 and 10: every target is met, the latency is not the least."""
    jobs = [Job(1, 1, e2e=20.0), Job(9, 1, e2e=20.0)]
    assert anneal(jobs, Seconds(), 2, schedule="paper") == Plan([[0, 1]], 2 / 20, 2)
    assert anneal(jobs, Seconds(), 2) == exact(jobs, Seconds(), 2) == Plan([[0], [1]], 2 / 11, 2)


def test_no_jobs_and_one_job() -> None:
    for search in (exact, anneal):
        assert search([], PLAIN) == Plan([], 0.0, 0)
        assert search([Job(1, 1)], Seconds()) == Plan([[0]], 1.0, 1)
        assert search([Job(1, 1)], Seconds(), 4) == Plan([[0]], 1.0, 1)


def test_exact_takes_sixteen_jobs_and_refuses_more() -> None:
    chance = Random(3)
    jobs = [drawn_job(chance, 100) for _ in range(17)]
    assert exact(jobs[:16], PLAIN).g >= anneal(jobs[:16], PLAIN).g > 0.0
    for count, max_batch in ((17, 1), (13, 2)):
        with pytest.raises(
            ValueError, match=rf"at most {count - 1} jobs with max_batch {max_batch}, not {count}; use anneal"
        ):
            exact(jobs[:count], PLAIN, max_batch)


def test_times_beyond_64_bits_are_exact_too() -> None:
    class Ages(Seconds):
        def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
            return super().iteration_ns(decodes, kv_tokens, chunk, prior) * 1_000_000_000

    jobs = [Job(3, 1, e2e=3e9), Job(1, 1, e2e=9e9), Job(2, 1, e2e=5e9)]
    plan = exact(jobs, Ages())
    assert (plan.batches, plan.met) == ([[0], [2], [1]], 3)
    assert plan.g == pytest.approx(3e-9 / 14)


WRONG: list[dict[str, Any]] = [
    *({name: value} for name in ("input", "output") for value in (0, -1, 1.5, True, "7", None, math.nan)),
    *(
        {name: value}
        for name in ("e2e", "ttft", "tpot")
        for value in (0, 0.0, -1.0, math.nan, math.inf, True, "1s", 1e-10, 1e300, 10**400)
    ),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_job_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"{name} is .*; give"):
        Job(**{"input": 1, "output": 1} | wrong)


@pytest.mark.parametrize("search", [exact, anneal])
def test_what_the_profile_forbids_is_refused(search: Any) -> None:
    for max_batch in (0, -1, 65, 1.0, True, None):
        with pytest.raises(ValueError, match=r"max_batch is .* give a number from 1 to the profile's max_batch, 64"):
            search([Job(1, 1)], PLAIN, max_batch)
    with pytest.raises(ValueError, match=r"job 1 has 60 \+ 41 tokens, the profile's KV cache holds 100; leave"):
        search([Job(60, 40), Job(60, 41)], Seconds())


def test_an_unknown_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="no schedule is named 'fast'; give one of paper, scaled"):
        anneal([], PLAIN, schedule="fast")
