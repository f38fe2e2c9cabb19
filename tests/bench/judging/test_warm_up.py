"""MSER-5 beside its definition, and by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.bench.judging import BATCH, FEWEST_BATCHES, mser5


def _slowly(values: list[int]) -> int | None:
    """Return the answer by the definition, in fractions; the first least wins."""
    batches = len(values) // BATCH
    if batches < FEWEST_BATCHES:
        return 0
    means = [Fraction(sum(values[place * BATCH : (place + 1) * BATCH]), BATCH) for place in range(batches)]
    errors = []
    for cut in range(batches // 2 + 1):
        rest = means[cut:]
        mean = sum(rest) / len(rest)
        errors.append(sum((one - mean) ** 2 for one in rest) / len(rest) ** 2)
    found = errors.index(min(errors))
    return None if found == batches // 2 else found * BATCH


def test_a_slow_start_is_cut() -> None:
    assert mser5([10.0] * 15 + [1.0, 2.0] * 50) == 15


def test_a_steady_run_is_not_cut() -> None:
    assert mser5([1.0, 2.0, 3.0, 2.0, 1.0] * 20) == 0


def test_a_run_that_never_settles() -> None:
    assert mser5([float(place) for place in range(100)]) is None


@pytest.mark.parametrize("count", [0, 1, 5 * FEWEST_BATCHES - 1])
def test_a_short_run_is_not_cut(count: int) -> None:
    assert mser5([9.0] * (count // 2) + [1.0] * (count - count // 2)) == 0


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 1000), min_size=50, max_size=120))
def test_as_the_definition_has_it(values: list[int]) -> None:
    wanted = _slowly(values)
    found = mser5([float(value) for value in values])
    if found != wanted:  # two cuts as good as each other, but for the last bit
        assert found is not None
        assert wanted is not None
        assert _error(values, found) == pytest.approx(_error(values, wanted), rel=1e-9, abs=1e-12)


def _error(values: list[int], cut: int) -> float:
    means = [
        Fraction(sum(values[place : place + BATCH]), BATCH) for place in range(cut, len(values) // BATCH * BATCH, BATCH)
    ]
    mean = sum(means) / len(means)
    return float(sum((one - mean) ** 2 for one in means) / len(means) ** 2)
