"""Curves fitted to iterations: their middle, their nodes, and least squares without a coefficient below zero."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from otel_llm.scheduling.profiles.fitted_curve import fit_curve, non_negative
from otel_llm.scheduling.profiles.grid import Point
from otel_llm.scheduling.profiles.recorded_steps import Sample

MS = 1_000_000


def test_as_many_iterations_are_longer_than_predicted_as_are_shorter() -> None:
    curve = fit_curve([Sample(1, 0, 0, 0, length * MS) for length in (1, 2, 3, 4, 100)])
    assert abs(curve.lengths_ns([Point(1, 0, 0, 0)])[0] / MS - 3) < 0.05


def test_a_curve_never_falls() -> None:
    """Larger batches are quicker here: the best that is allowed is level, at the median of equal deviations."""
    samples = [Sample(decodes, 0, 0, 0, (110 - decodes) * MS) for decodes in range(1, 20)]
    curve = fit_curve(samples)
    lengths = curve.lengths_ns([Point(decodes, 0, 0, 0) for decodes in range(1, 20)]) / MS
    assert (np.diff(lengths) >= -1e-9).all()
    assert abs(lengths - 100).max() < 2


def test_a_bend_is_followed_between_nodes() -> None:
    """Up to 8 decodes take 10 ms; each beyond takes 1 ms more."""
    samples = [Sample(decodes, 0, 0, 0, (10 + max(0, decodes - 8)) * MS) for decodes in range(1, 17)] * 30
    curve = fit_curve(samples)
    assert curve.nodes.decodes == (0, 1, 2, 4, 8, 16)
    lengths = curve.lengths_ns([Point(decodes, 0, 0, 0) for decodes in (2, 8, 12, 16, 20)]) / MS
    np.testing.assert_allclose(lengths, [10, 10, 14, 18, 22], rtol=1e-3)


def test_nodes_have_iterations_between_them() -> None:
    """Two iterations of 300 decodes are no reason for a node; the largest size is one all the same."""
    samples = [Sample(4, 0, 0, 0, 10 * MS)] * 40 + [Sample(300, 0, 0, 0, 20 * MS)] * 2
    assert fit_curve(samples).nodes.decodes == (0, 4, 300)


@given(
    arrays.arrays(np.float64, (7, 4), elements=st.integers(0, 9).map(float)),
    arrays.arrays(np.float64, 7, elements=st.integers(-9, 9).map(float)),
)
def test_no_subset_of_the_columns_does_better(columns: np.ndarray, wanted: np.ndarray) -> None:
    found = non_negative(columns, wanted)
    assert (found >= 0).all()
    error = ((columns @ found - wanted) ** 2).sum()
    for count in range(1, 5):
        for chosen in combinations(range(4), count):
            part = list(chosen)
            values, *_ = np.linalg.lstsq(columns[:, part], wanted, rcond=None)
            if (values >= 0).all():
                assert error <= ((columns[:, part] @ values - wanted) ** 2).sum() + 1e-6
