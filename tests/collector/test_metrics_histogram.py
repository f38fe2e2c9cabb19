from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.collector.telemetry.self_metrics import DECISION_BUCKETS_S
from otel_llm.live.histogram import WAITING_VALUES, Histogram
from otel_llm.slo.metrics import FLUIDITY_BUCKETS, IDLE_BUCKETS_S, TBT_BUCKETS_S, TTFT_BUCKETS_S

IN_SECONDS = [TTFT_BUCKETS_S, TBT_BUCKETS_S, IDLE_BUCKETS_S, DECISION_BUCKETS_S]
T0_NS = 1_790_000_000_000_000_000


def plain(bounds: tuple[float, ...], values: list[float]) -> list[tuple[str, float]]:
    """Count as one reads it: how many values are at most each bound."""
    return [(str(bound), float(sum(value <= bound for value in values))) for bound in bounds] + [
        ("+Inf", float(len(values)))
    ]


@pytest.mark.parametrize("bounds", IN_SECONDS)
def test_a_value_on_a_bound_belongs_to_it_and_the_next_nanosecond_does_not(bounds: tuple[float, ...]) -> None:
    every_ns = [max(0, round(bound * 1e9) + off) for bound in bounds for off in (-1, 0, 1)]
    one_by_one, together = Histogram(bounds), Histogram(bounds)
    for ns in every_ns:
        one_by_one.observe(ns)
    together.observe_all(sorted(every_ns))
    expected = plain(bounds, [ns / 1e9 for ns in every_ns])
    assert one_by_one.cumulative() == expected
    assert together.cumulative() == expected
    assert one_by_one.total == together.total == sum(every_ns) / 1e9


gap_ns = st.one_of(
    st.integers(0, 10**11), st.sampled_from(TBT_BUCKETS_S).map(lambda bound: round(bound * 1e9)), st.just(0)
)


@given(st.lists(st.lists(gap_ns, max_size=60), max_size=8), st.booleans())
def test_the_gaps_of_requests_are_counted_as_a_plain_loop_does(requests: list[list[int]], as_array: bool) -> None:
    counted = Histogram(TBT_BUCKETS_S)
    values: list[float] = []
    total_ns = 0
    for gaps in requests:
        ordered = sorted(gaps)
        counted.observe_all(np.array(ordered, dtype=np.int64) if as_array else ordered)
        values += [gap / 1e9 for gap in gaps]
        total_ns += sum(gaps)
    assert counted.cumulative() == plain(TBT_BUCKETS_S, values)
    assert counted.total == total_ns / 1e9
    assert counted.total == pytest.approx(math.fsum(values))


def test_nothing_is_counted_of_no_values() -> None:
    counted = Histogram(TBT_BUCKETS_S)
    counted.observe_all([])
    assert counted.cumulative()[-1] == ("+Inf", 0.0)
    assert counted.total == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=50))
def test_shares_are_compared_as_they_are(pairs: list[tuple[int, int]]) -> None:
    shares = [min(part, whole) / whole for part, whole in pairs]
    counted = Histogram(FLUIDITY_BUCKETS, per_unit=1)
    for share in shares:
        counted.observe(share)
    assert counted.cumulative() == plain(FLUIDITY_BUCKETS, shares)
    assert counted.total == pytest.approx(math.fsum(shares))


@given(st.lists(st.integers(1, WAITING_VALUES + 5), min_size=1, max_size=6))
def test_what_waits_to_be_counted_is_shown_and_counted_once(numbers: list[int]) -> None:
    counted = Histogram((0.5, 2.0))
    for so_far, number in enumerate(numbers, 1):
        counted.observe_all(np.full(number, 1_000_000_000, dtype=np.int64))
        counted.observe(3_000_000_000)
        whole = sum(numbers[:so_far])
        assert counted.cumulative() == [("0.5", 0.0), ("2.0", float(whole)), ("+Inf", float(whole + so_far))]
        assert counted.total == whole + 3 * so_far
