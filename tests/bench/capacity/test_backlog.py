"""The slope of the backlog: no alarm while a server fills or is stable, one if it is overloaded."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from otel_llm.bench.capacity.statistics.backlog import BacklogTest


def walk(service_s: float, drift: float, requests: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return backlog, times and residences at 10 requests/s; `drift`: growth in s of residence a second."""
    at = np.random.default_rng(seed).exponential(0.1, requests).cumsum()
    ends = at + service_s + drift * at / (1 - drift)
    in_flight = np.arange(requests) - np.searchsorted(ends, at)
    return in_flight.astype(float), at, np.minimum(ends, at[-1]) - at


def alarms(service_s: float, drift: float, requests: int, seed: int, alpha: float = 0.01) -> bool:
    test = BacklogTest(alpha)
    in_flight, at, residence = walk(service_s, drift, requests, seed)
    count = 100
    while count <= requests and not test.grows:
        stays = np.minimum(residence[:count], at[count - 1] - at[:count])
        test.evaluate(in_flight[:count], at[:count], stays)
        count = int(count * 1.2)
    return test.grows


def test_a_server_that_fills_does_not_overflow() -> None:
    # The first 20 s nothing ends: the requests in flight grow as fast as they arrive.
    assert not any(alarms(20.0, 0.0, 3000, seed) for seed in range(10))


def test_an_overloaded_server_overflows() -> None:
    assert all(alarms(2.0, 0.2, 3000, seed) for seed in range(10))
    assert all(alarms(2.0, 0.6, 3000, seed) for seed in range(10))


def test_growth_that_is_tolerated_is_none() -> None:
    assert not any(alarms(2.0, 0.03, 3000, seed) for seed in range(10))


def test_false_alarms_are_as_rare_as_their_level() -> None:
    draw = np.random.default_rng(8)
    wrong = 0
    for _ in range(200):
        test = BacklogTest(0.05)
        backlog = 100 + np.cumsum(draw.normal(0.05, 1.0, 2000))  # a random walk that grows by just 5 %
        for count in range(100, 2000, 100):
            test.evaluate(backlog[:count], np.arange(count) / 10, np.full(count, 0.1))
        wrong += test.grows
    assert wrong <= 0.05 * 200 + 2 * sqrt(0.05 * 200), "two standard errors above the level"


def test_there_is_no_slope_before_the_longest_stay_is_over() -> None:
    test = BacklogTest(0.01)
    at = np.arange(300) / 10
    assert not test.evaluate(np.arange(300.0), at, at[-1] - at)
    assert test.slope is None
    test.evaluate(np.arange(300.0), at, np.full(300, 2.0))
    assert test.slope == pytest.approx(1.0)


def test_the_start_up_must_be_over_twice_and_is_that_of_the_first_requests() -> None:
    at = np.arange(300) / 10
    early, late = BacklogTest(0.01), BacklogTest(0.01)
    early.evaluate(np.arange(300.0), at, np.full(300, 16.0))
    assert early.slope is None, "29.9 s are less than twice 16 s"
    late.evaluate(np.arange(300.0), at, np.where(np.arange(300) < 50, 14.0, 100.0))
    assert late.slope == pytest.approx(1.0), "those that come later do not prolong it"
