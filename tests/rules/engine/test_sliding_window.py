"""Sliding totals: the same as adding up what is left in the window anew, whatever comes when."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.rules.engine.sliding_window import PARTS, SlidingWindow, Totals, merged
from otel_llm.slo.quantiles import P99

SECOND = 1_000_000_000


def some(number: int) -> Totals:
    found = Totals(requests_ended=number, met_true=number % 3, met_false=number % 2, goodput_tokens=7 * number)
    found.benefit.add(number / 10)
    found.idle.add(number / 7)
    return found


def same(left: Totals, right: Totals) -> bool:
    return left == right


@settings(max_examples=examples(150))
@given(
    window_s=st.sampled_from((60, 300, 3600)),
    steps=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 50), st.booleans()), max_size=60),
)
def test_a_window_is_what_is_left_of_all_that_came(window_s: int, steps: list[tuple[int, int, bool]]) -> None:
    rolling, came, now_s = SlidingWindow(window_s * SECOND), [], 1_790_000_000
    step_s = window_s // PARTS
    for pause_s, number, checked_at in steps:
        now_s += pause_s
        rolling.add(some(number), now_s * SECOND)
        came.append((now_s, some(number)))
        if checked_at:
            # The part that a second lies in ends at the next multiple of its length: it is in for sixty of them.
            left = [one for at_s, one in came if -(-at_s // step_s) > -(-now_s // step_s) - PARTS]
            assert same(rolling.total(now_s * SECOND), merged(left))
    change_ns = rolling.next_change_ns()
    if change_ns is not None:
        before, after = rolling.total(change_ns - 1).requests_ended, rolling.total(change_ns).requests_ended
        assert before > after


@pytest.mark.parametrize("past", [0, 1, 17, 299])
def test_the_reach_is_from_fifty_nine_sixtieths_to_all_of_the_window(past: int) -> None:
    rolling = SlidingWindow(300 * SECOND)
    reach_ns = rolling.reach_ns((1_790_000_100 + past) * SECOND)
    assert 295 * SECOND < reach_ns <= 300 * SECOND
    assert ((1_790_000_100 + past) * SECOND - reach_ns) % (5 * SECOND) == 0


def test_the_order_in_which_totals_come_does_not_matter() -> None:
    parts = [some(number) for number in range(1, 200)]
    assert same(merged(parts), merged(reversed(parts)))
    assert merged(parts).idle.quantile(P99) is not None


def test_fluidity_is_compared_in_integers() -> None:
    from otel_llm.slo.verdict import Verdict

    def verdict(deadlines: int, misses: int) -> Verdict:
        nothing = dict.fromkeys(Verdict._fields)
        reported = {"outcome": "completed", "deadlines": deadlines, "deadline_misses": misses, "tokens_read": 0}
        return Verdict(**{**nothing, **reported})  # type: ignore[arg-type]

    found = Totals()
    for deadlines, misses in ((10, 1), (10, 2), (30, 3), (0, 0), (3, 0)):
        found.count("completed", verdict(deadlines, misses), Fraction(9, 10), cut=misses > 0)
    assert (found.requests_ended, found.fluid, found.fluid_kept) == (5, 4, 3)
    found.count("completed", verdict(10, 0), None, cut=False)
    assert (found.requests_ended, found.fluid) == (6, 4)
