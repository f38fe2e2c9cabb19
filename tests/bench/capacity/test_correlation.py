"""Inflation, control variates, virtual queues and quantiles of Student's t, against loops and known figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.bench.capacity.statistics.estimate import as_strong, estimate_share, residual_variance, slope, strengths
from otel_llm.bench.capacity.statistics.inflation import exceedances, inflation, long_run_variance
from otel_llm.bench.capacity.statistics.student import student_quantile
from otel_llm.bench.capacity.statistics.virtual_queue import Load, series_of, virtual_queues, waiting_work


def load_of(requests: int, seed: int, rate: float = 1.0) -> Load:
    at = np.random.default_rng(seed).exponential(1 / rate, requests).cumsum()
    return Load(at, np.ones(requests), np.ones(requests))


def waits_of(load: Load, service_s: float) -> np.ndarray:
    """Return the waits of a single server: exactly the work that a virtual queue knows."""
    return waiting_work(load.at, np.full(len(load.at), service_s), 1.0)


def test_independent_values_are_hardly_inflated_and_repeated_ones_by_their_number() -> None:
    values = (np.random.default_rng(3).random(20_000) < 0.1).astype(float)
    assert 1.0 <= inflation(values) < 2.0
    assert 15 <= inflation(np.repeat(values[:4000], 20)) <= 35
    assert inflation(np.ones(100)) == inflation(np.empty(0)) == 1.0


def test_the_long_run_variance_of_blocks_by_hand() -> None:
    # Two blocks of 2 with the means 0 and 1: their variance is 0.5.
    assert long_run_variance(np.array([0.0, 0.0, 1.0, 1.0]), 2) == pytest.approx(2 * 0.5)
    assert long_run_variance(np.array([0.0]), 2) == 0.0


def test_a_tenth_of_the_values_exceeds() -> None:
    assert exceedances(np.arange(100.0), 0.9).sum() == 10
    assert exceedances(np.zeros(100), 0.9).sum() == 0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5)), min_size=1, max_size=40), st.floats(0.2, 0.9))
def test_waiting_work_is_lindleys_recursion(rows: list[tuple[float, float]], utilisation: float) -> None:
    at = np.cumsum([gap for gap, _ in rows])
    work = np.array([size for _, size in rows])
    found, wanted = waiting_work(at, work, utilisation), [0.0]
    for place in range(1, len(rows)):
        left = wanted[-1] + work[place - 1] - (at[place] - at[place - 1]) / utilisation
        wanted.append(max(0.0, left))
    assert found == pytest.approx(wanted, abs=1e-9)


def test_a_virtual_queue_knows_its_mean_at_every_rate() -> None:
    queues = virtual_queues(load_of(200_000, 1), 0.9)
    assert [queue.mean for queue in queues] == pytest.approx([0.1] * len(queues), abs=0.002)
    for rate in (0.3, 7.0):
        deviations = series_of(queues, load_of(200_000, 2, rate), rate)
        assert np.abs(deviations.mean(axis=1)).max() < 0.03
    assert [queue.inflation for queue in queues] == sorted(queue.inflation for queue in queues)


def test_constant_arrivals_and_lengths_have_no_queue_to_learn_from() -> None:
    even = Load(np.arange(1000.0), np.ones(1000), np.ones(1000))
    assert virtual_queues(even, 0.9) == []


def test_the_strongest_series_gives_the_slope() -> None:
    draw = np.random.default_rng(5)
    noise, series = draw.normal(size=(2, 4096))
    values = 2 * series + 0.01 * noise
    found = strengths(values, np.stack([noise, series, -series]))
    assert as_strong(found).tolist() == [1, 2]
    assert slope(values, series) == pytest.approx(2, abs=0.02)
    assert as_strong(np.zeros(3)).tolist() == []


def test_a_calm_stretch_makes_an_adjusted_mean_uncertain() -> None:
    draw = np.random.default_rng(6)
    residual, series = draw.normal(size=(2, 1600))
    plain = residual_variance(residual, series - series.mean(), 16)
    assert residual_variance(residual, series - series.mean() - 1.0, 16) > 5 * plain
    assert residual_variance(residual, np.zeros(1600), 16) == float("inf")


@dataclass
class Errors:
    adjusted: list[float]
    raw: list[float]
    in_errors: list[float]


def test_adjusting_sharpens_an_estimate_and_keeps_it_honest() -> None:
    queues = virtual_queues(load_of(300_000, 1), 0.9)
    truth = float((waits_of(load_of(2_000_000, 9), 0.66) <= 1.2).mean())
    found = Errors([], [], [])
    for seed in range(60):
        load = load_of(3000, 100 + seed)
        waits = waits_of(load, 0.66)
        held = (waits <= 1.2).astype(float)
        one = estimate_share(held, waits, waits, 0.9, queues, series_of(queues, load, 1.0), 0.005)
        error = np.sqrt(truth * (1 - truth) / one.independent)
        found.adjusted.append(one.value - truth)
        found.raw.append(one.raw - truth)
        found.in_errors.append((one.value - truth) / error)
        assert one.enough
    assert np.std(found.adjusted) < 0.5 * np.std(found.raw)
    assert np.mean(np.abs(found.in_errors) < 2) > 0.9


def test_no_verdict_before_there_are_enough() -> None:
    queues = virtual_queues(load_of(300_000, 1), 0.9)
    load = load_of(150, 3)
    waits = waits_of(load, 0.66)
    few = estimate_share((waits <= 1e9).astype(float), waits, waits, 0.9, queues, series_of(queues, load, 1.0), 0.005)
    assert few.value == few.raw == 1.0
    assert few.inflation > 1.5, "the virtual queues that correlate with the waits say so"
    assert not few.enough
    assert estimate_share(np.ones(150), np.zeros(150), np.zeros(150), 0.9, [], np.empty((0, 150)), 0.005).enough


def test_few_blocks_are_not_adjusted() -> None:
    queues = virtual_queues(load_of(300_000, 1), 0.9)
    load = load_of(1500, 4)
    waits = waits_of(load, 0.66)
    held = (waits <= 1.2).astype(float)
    found = [
        estimate_share(held, waits, waits, 0.9, queues, series_of(queues, load, 1.0), 0.005, least_inflation=known)
        for known in (1.0, 50.0)
    ]
    assert found[0].value != found[0].raw
    assert found[1].value == found[1].raw, "1,500 requests are 15 blocks of twice the inflation"
    assert found[1].inflation == 50.0


def test_a_correction_that_turns_the_verdict_is_not_enough() -> None:
    queues = virtual_queues(load_of(300_000, 1), 0.9)
    load = load_of(6000, 5)
    waits = waits_of(load, 0.66)
    held, deviations = (waits <= 1.2).astype(float), series_of(queues, load, 1.0)
    one = estimate_share(held, waits, waits, 0.9, queues, deviations, 0.005)
    low, high = sorted((one.raw, one.value))
    between = estimate_share(held, waits, waits, (low + high) / 2, queues, deviations, 0.005)
    above = estimate_share(held, waits, waits, high + (high - low) / 2, queues, deviations, 0.005)
    assert low < high
    assert not between.enough
    assert above.enough


@pytest.mark.parametrize(
    ("probability", "freedom", "wanted"),
    [(0.975, 10, 2.2281), (0.995, 15, 2.9467), (0.9995, 30, 3.6460), (0.999, 12, 3.9296), (0.5, 20, 0.0)],
)
def test_quantiles_of_student_are_those_of_the_tables(probability: float, freedom: int, wanted: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(wanted, abs=0.004)
