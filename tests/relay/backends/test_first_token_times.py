"""The times to the first token: a median for each length, between and beyond the lengths that were seen."""

from __future__ import annotations

from math import inf, nan

import pytest

from otel_llm.relay.backends.backend import KEPT, LENGTHS, FirstTokenTimes


def test_nothing_is_known_at_first() -> None:
    assert FirstTokenTimes().median(100) is None


def test_one_stall_does_not_change_the_median() -> None:
    times = FirstTokenTimes()
    for seconds in (0.1, 0.2, 0.3, 60.0):
        times.observe(100, seconds)
    assert times.median(100) == times.median(127) == pytest.approx(0.25)
    times.observe(100, 0.2)
    assert times.median(64) == 0.2


def test_lengths_have_medians_of_their_own() -> None:
    times = FirstTokenTimes()
    times.observe(100, 0.1)
    times.observe(10_000, 2.0)
    assert times.median(100) == 0.1
    assert times.median(10_000) == 2.0


@pytest.mark.parametrize(("tokens", "seconds"), [(1, 0.1), (550, 0.55), (2_000, 2.0), (4_096, 4.096)])
def test_other_lengths_are_predicted(tokens: int, seconds: float) -> None:
    times = FirstTokenTimes()
    times.observe(100, 0.1)
    times.observe(2_000, 2.0)
    assert times.median(tokens) == pytest.approx(seconds)


def test_an_empty_prompt_predicts_too() -> None:
    times = FirstTokenTimes()
    times.observe(0, 0.1)
    assert times.median(0) == 0.1
    assert times.median(8) == pytest.approx(0.8)


def test_only_the_last_times_are_kept() -> None:
    times = FirstTokenTimes()
    for _ in range(KEPT):
        times.observe(100, 1.0)
    for _ in range(KEPT // 2 + 1):
        times.observe(100, 3.0)
    assert times.median(100) == 3.0


@pytest.mark.parametrize("seconds", [-1.0, nan, inf])
def test_what_is_no_time_is_not_observed(seconds: float) -> None:
    times = FirstTokenTimes()
    times.observe(100, seconds)
    times.observe(-1, 1.0)
    assert times.median(100) is None


def test_memory_is_bounded_whatever_the_lengths_are() -> None:
    times = FirstTokenTimes()
    for power in range(80):
        for _ in range(2 * KEPT):
            times.observe(2**power, 1.0)
    assert times.kept() <= KEPT * LENGTHS
    assert times.median(2**90) == 1.0
