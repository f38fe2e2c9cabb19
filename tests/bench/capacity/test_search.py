"""Where probes go: within the range, around undecided ones, to an interval that holds the truth; the error budget."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.bench.capacity.rate_search import RateSearch
from otel_llm.bench.capacity.statistics.error_budget import UNDECIDED_PROBES, most_probes, probe_levels


def searched(search: RateSearch, truth: float, blind: float = 0.0) -> list[float]:
    """Answer truly, but undecided within `blind` of the truth; return the rates."""
    rates: list[float] = []
    while (rate := search.next_rate()) is not None and len(rates) < 100:
        rates.append(rate)
        if abs(rate / truth - 1) < blind:
            search.record(rate, "undecided")
        else:
            search.record(rate, "holds" if rate <= truth else "fails")
    return rates


@given(st.floats(1.0, 50.0), st.floats(1.5, 100.0), st.floats(0.0, 1.0), st.sampled_from([0.05, 0.1, 0.3, 1.0]))
def test_true_answers_lead_to_the_truth(bottom: float, span: float, place: float, precision: float) -> None:
    top = bottom * span
    truth = bottom * span**place
    search = RateSearch(bottom, top, precision)
    rates = searched(search, truth)
    assert all(bottom <= rate <= top for rate in rates)
    assert len(rates) <= most_probes(bottom, top, precision) - UNDECIDED_PROBES + 1
    assert (search.low or 0.0) <= truth
    assert truth <= (search.high or top) * (1 + 1e-9)
    assert search.decided or search.low is None or search.low >= top * (1 - 1e-9)


def test_it_begins_in_the_middle_and_doubles() -> None:
    search = RateSearch(1.0, 64.0, 0.5)
    assert search.next_rate() == pytest.approx(8.0)
    search.record(8.0, "holds")
    assert search.next_rate() == 16.0
    search.record(16.0, "fails")
    assert search.next_rate() == pytest.approx(sqrt(8 * 16))


def test_it_halves_where_the_middle_fails_and_ends_below_the_range() -> None:
    search = RateSearch(1.0, 64.0, 0.5)
    assert searched(search, 0.5) == pytest.approx([8.0, 4.0, 2.0, 1.0])
    assert (search.low, search.high, search.decided) == (None, 1.0, False)


def test_it_ends_above_the_range() -> None:
    search = RateSearch(1.0, 50.0, 0.5)
    assert searched(search, 100.0)[-1] == 50.0
    assert (search.low, search.high, search.decided) == (50.0, None, False)


def test_an_undecided_probe_moves_no_end_and_splits_what_is_between() -> None:
    search = RateSearch(8.0, 32.0, 0.2)
    search.record(16.0, "undecided")
    assert search.next_rate() == 32.0, "outwards, as no end is known"
    search.record(32.0, "fails")
    assert search.next_rate() == 8.0
    search.record(8.0, "holds")
    assert (search.low, search.high) == (8.0, 32.0)
    assert search.next_rate() == pytest.approx(sqrt(8 * 16))
    search.record(sqrt(8 * 16), "holds")
    assert search.next_rate() == pytest.approx(sqrt(16 * 32)), "the widest part is above now"


def test_it_gives_up_where_all_is_undecided() -> None:
    search = RateSearch(1.0, 64.0, 0.1)
    rates = searched(search, 20.0, blind=0.2)
    assert len(rates) < 100
    assert not search.decided
    assert search.low is not None
    assert 14 < search.low <= 16, "the rates within a fifth of the truth decide nothing"


def test_the_parts_of_the_budget_add_up() -> None:
    # 1 doubling from the middle of 4..16 to each end at most, 1 + 1; ratio 2 to 1.41 to 1.19: 2 bisections.
    assert most_probes(4, 16, 0.2) == 2 + 2 + UNDECIDED_PROBES
    levels = probe_levels(0.95, 10, 2)
    assert levels.holds == pytest.approx(0.005), "all clauses must be found to hold: none shares with another"
    assert 2 * levels.fails + levels.backlog == pytest.approx(0.005), "each of them decides alone"
    assert levels.backlog < levels.fails
