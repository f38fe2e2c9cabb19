"""The confidence sequence of a share: exact sums, its coverage at all times, and its order."""

from __future__ import annotations

from math import comb, exp, isinf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.bench.capacity.statistics.shares import log_evidence, share_interval

SHARES = st.floats(0.02, 0.98)


def test_one_request_by_hand() -> None:
    # The mixture expects that a request holds with the mean of the prior.
    assert log_evidence(1, 0, 0.6, 0.9) == pytest.approx(log(0.9 / 0.6))
    assert log_evidence(0, 1, 0.6, 0.9) == pytest.approx(log(0.1 / 0.4))
    assert isinf(log_evidence(1, 0, 0.0, 0.9))


@given(st.integers(1, 30), SHARES, SHARES)
def test_the_expected_evidence_against_the_truth_is_1(count: int, share: float, centre: float) -> None:
    expected = sum(
        comb(count, held)
        * share**held
        * (1 - share) ** (count - held)
        * exp(log_evidence(held, count - held, share, centre))
        for held in range(count + 1)
    )
    assert expected == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("share", [0.9, 0.99])
def test_evidence_against_the_truth_is_rare_at_all_times_together(share: float) -> None:
    draw = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        held = np.cumsum(draw.random(1500) < share)
        counts = range(20, 1500, 20)
        wrong += any(log_evidence(held[n - 1], n - held[n - 1], share, share) >= log(1 / 0.05) for n in counts)
    assert wrong <= 0.05 * 400


def test_an_interval_ends_where_the_evidence_suffices() -> None:
    found = share_interval(450, 50, 0.9, 0.01, 0.05)
    assert log_evidence(450, 50, found.low, 0.9) == pytest.approx(log(1 / 0.01))
    assert log_evidence(450, 50, found.high, 0.9) == pytest.approx(log(1 / 0.05))


@given(st.floats(0, 500), st.floats(0, 500), st.floats(0.5, 0.99))
def test_an_interval_holds_its_mean_and_narrows_with_the_level(held: float, missed: float, centre: float) -> None:
    wide = share_interval(held, missed, centre, 0.001, 0.001)
    narrow = share_interval(held, missed, centre, 0.1, 0.1)
    assert 0.0 <= wide.low <= narrow.low <= narrow.high <= wide.high <= 1.0
    if held + missed > 0:
        assert narrow.low <= held / (held + missed) <= narrow.high


def test_more_of_the_same_narrows_the_interval() -> None:
    few, many = (share_interval(9 * size, size, 0.9, 0.01, 0.01) for size in (10, 1000))
    assert few.low < many.low < 0.9 < many.high < few.high
    assert share_interval(0, 0, 0.9, 0.01, 0.01) == (0.0, 1.0)
