"""The latency predictor: cases by hand, the closed form beside a loop, and batches beside a walk token by token."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chance import chances
from support.scheduling.annealing_oracle import PLAIN, Hidden, Linear, Profile, Terms, Uneven, batch_times, drawn_jobs

from otel_llm.scheduling import Job
from otel_llm.scheduling.annealing import Predictor
from otel_llm.scheduling.annealing.prediction import floor_sum, line_sum

ROUND = Linear(Terms(Fraction(1000), Fraction(100), Fraction(10), Fraction(5)))
"""1,000 ns, 100 a decode, 10 a KV token, 5 a chunk token."""


def test_one_job_by_hand() -> None:
    """Prefill 1000 + 3 x 5; then tokens 2 and 3 with contexts of 4 and 5: 1100 + 40, 1100 + 50."""
    assert Predictor(ROUND).times([Job(3, 3)]) == (1015, (1015 + 1140 + 1150,))


def test_one_token_ends_with_the_prefill() -> None:
    assert Predictor(ROUND).times([Job(3, 1)]) == (1015, (1015,))


def test_a_batch_by_hand() -> None:
    """Prefill of 3 + 7 is 1050. Token 2: two decodes, contexts 4 + 8: 1320. Then one with 9: 1190."""
    assert Predictor(ROUND).times([Job(3, 2), Job(7, 3)]) == (1050, (1050 + 1320, 1050 + 1320 + 1190))


FLOORED = Linear(Terms(Fraction(1, 3), Fraction(5, 7), Fraction(1, 2), Fraction(1), floor_ns=30))
"""Fractions of a ns, which are rounded, and a floor that holds for the first tokens."""


@pytest.mark.parametrize("profile", [PLAIN, Hidden(PLAIN), Uneven(), FLOORED])
@given(chance=chances())
def test_batches_take_as_long_as_token_by_token(profile: Profile, chance: Random) -> None:
    jobs = drawn_jobs(chance)
    first_ns, ends_ns = batch_times(jobs, range(len(jobs)), profile)
    assert Predictor(profile).times(jobs) == (first_ns, tuple(ends_ns))


@pytest.mark.parametrize("blocks", [1, 1000])
def test_sums_over_many_blocks(blocks: int) -> None:
    """Contexts of different remainders share no block, whether blocks are forgotten or not."""
    predictor = Predictor(Uneven(), blocks)
    for decodes, kv_tokens, steps in [(1, 5, 1000), (3, 7, 400), (3, 8, 400), (1, 64, 64), (1, 63, 2), (2, 0, 1)]:
        expected = sum(Uneven().iteration_ns(decodes, kv_tokens + step * decodes) for step in range(steps))
        assert predictor.decodes_ns(decodes, kv_tokens, steps) == expected


def test_a_linear_profile_is_not_asked_for_each_token() -> None:
    class Counting(Linear):
        asked = 0

        def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
            Counting.asked += 1
            return super().iteration_ns(decodes, kv_tokens, chunk, prior)

    found = Predictor(Counting(PLAIN.terms)).times([Job(1000, 5000), Job(10, 100)])
    assert Counting.asked == 1, "the prefill"
    assert found == Predictor(Hidden(PLAIN)).times([Job(1000, 5000), Job(10, 100)])


def test_a_predictor_asks_once_for_each_iteration() -> None:
    asked: list[int] = []

    class Counting(Uneven):
        def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
            asked.append(kv_tokens)
            return super().iteration_ns(decodes, kv_tokens, chunk, prior)

    predictor = Predictor(Counting())
    for _ in range(10):
        predictor.decodes_ns(1, 100, 50)
        predictor.decodes_ns(1, 120, 30)
    assert len(asked) == len(set(asked)) <= 192


numbers = st.integers(-200, 200)


@given(st.integers(0, 50), st.integers(1, 50), numbers, numbers, st.integers(-20, 20))
def test_the_closed_form_is_the_loop(count: int, divisor: int, step: int, start: int, floor: int) -> None:
    """The floor may hold at either end, and the line may fall."""
    loop = sum(max(floor, (start + at * step) // divisor) for at in range(count))
    assert line_sum(count, divisor, step, start, floor) == loop


@given(st.integers(0, 50), st.integers(1, 50), numbers, numbers)
def test_the_sum_of_floors_is_the_loop(count: int, divisor: int, step: int, start: int) -> None:
    assert floor_sum(count, divisor, step, start) == sum((start + at * step) // divisor for at in range(count))
