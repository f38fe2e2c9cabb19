"""The quantile sketch keeps its docstring: 1 % of the exact nearest rank, mergeable, bounded."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.slo.quantiles import LARGEST, P50, P99, RELATIVE_ERROR, SMALLEST, Sketch, nearest_rank, rank

values = st.lists(st.just(0.0) | st.floats(SMALLEST, LARGEST), min_size=1, max_size=60)
shares = st.sampled_from((P50, P99, Fraction(1, 10), Fraction(1), Fraction(0)))


def sketch_of(numbers: list[float]) -> Sketch:
    sketch = Sketch()
    for number in numbers:
        sketch.add(number)
    return sketch


@settings(max_examples=examples(300))
@given(values, shares)
def test_a_quantile_is_within_one_percent_of_the_exact_nearest_rank(
    numbers: list[float], share: tuple[int, int] | Fraction
) -> None:
    exact = sorted(numbers)[rank(len(numbers), share)]
    found = sketch_of(numbers).quantile(share)
    assert found is not None
    assert abs(found - exact) <= RELATIVE_ERROR * exact


@given(values, st.integers(0, 60))
def test_merging_is_adding_all_to_one(numbers: list[float], cut: int) -> None:
    left, right = sketch_of(numbers[:cut]), sketch_of(numbers[cut:])
    left.merge(right)
    assert left == sketch_of(numbers)


@given(values)
def test_the_greatest_is_exact(numbers: list[float]) -> None:
    assert sketch_of(numbers).quantile(Fraction(1)) == max(numbers)


def test_ones_among_shares_stay_ones() -> None:
    assert sketch_of([1.0, 1.0, 0.5]).quantile(P50) == 1.0
    assert sketch_of([1.0, 1.0, 7.0]).quantile(P50) == 1.0


def buckets(sketch: Sketch) -> int:
    found = sketch.parts()["buckets"]
    assert isinstance(found, list)
    return len(found)


def test_the_buckets_are_bounded_whatever_comes_in() -> None:
    sketch = sketch_of([10.0**exponent * step for exponent in range(-300, 300) for step in (1, 2, 5)])
    assert buckets(sketch) <= 4300
    wide = sketch_of(np.exp(np.linspace(math.log(SMALLEST), math.log(LARGEST), 20_000)).tolist())
    assert 4000 < buckets(wide) <= 4300
    assert sketch_of([1e30]).quantile(P50) == LARGEST
    assert sketch_of([1e-12]).quantile(P50) == 0.0


def test_nothing_counted_has_no_quantile() -> None:
    assert Sketch().quantile(P50) is None


@pytest.mark.parametrize("value", [-1.0, -1e-12, math.nan])
def test_what_is_no_length_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not 0 or more"):
        Sketch().add(value)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.sampled_from((1, 10, 50, 90, 99, 100)))
def test_nearest_rank_is_numpys_inverted_cdf(numbers: list[int], percent: int) -> None:
    expected = np.percentile(numbers, percent, method="inverted_cdf")
    assert nearest_rank(sorted(numbers), (percent, 100)) == expected
    assert nearest_rank([], P50) is None
