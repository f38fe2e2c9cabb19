"""Sums of floats that are those of math.fsum, in any order and however merged."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.slo.exact import ExactSum

floats = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@given(st.lists(floats), st.randoms(), st.integers(0, 20))
def test_the_sum_is_fsums_in_any_order_and_merge(terms: list[float], random: Random, cut: int) -> None:
    expected = math.fsum(terms)
    random.shuffle(terms)
    left, right = ExactSum(terms[:cut]), ExactSum(terms[cut:])
    right.merge(left)
    assert right.value == expected
    assert right == ExactSum(reversed(terms))


@given(st.lists(floats))
def test_what_is_added_and_taken_back_leaves_nothing(terms: list[float]) -> None:
    total = ExactSum(terms)
    for term in terms:
        total.add(-term)
    assert total == ExactSum()
    assert total.value == 0.0


def test_tiny_and_huge_terms_both_count() -> None:
    assert ExactSum([1e300, 5e-324, -1e300]).value == 5e-324
    assert ExactSum([1e16, 1.0, 1.0]).value == 1e16 + 2
    assert ExactSum([3, -1]).value == 2.0


@pytest.mark.parametrize(
    ("term", "error"), [(math.inf, OverflowError), (-math.inf, OverflowError), (math.nan, ValueError)]
)
def test_what_is_not_finite_is_refused(term: float, error: type[Exception]) -> None:
    total = ExactSum([1.0])
    with pytest.raises(error):
        total.add(term)
    assert total.value == 1.0


def test_a_sum_beyond_the_floats_is_reported() -> None:
    with pytest.raises(OverflowError):
        _ = ExactSum([1.7e308, 1.7e308]).value
