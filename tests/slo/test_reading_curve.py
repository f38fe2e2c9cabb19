"""The curve of a reader: token by token as the running judgement has it, drawn by few points that keep every stall."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.slo.judgement import Judgement

from otel_llm.slo.classes import SloClass
from otel_llm.slo.live.reading_curve import curve_points, read_by_ns

MS = 1_000_000


def test_a_reader_waits_where_the_text_ends() -> None:
    """At 200 ms a token: two at 100 ms, one at 400 ms while text is left, one at 1,500 ms behind a wait."""
    arrivals = np.array([100, 100, 400, 1500]) * MS
    assert (read_by_ns(arrivals, 200 * MS) // MS).tolist() == [300, 500, 700, 1700]
    assert read_by_ns(arrivals[:0], 200 * MS).tolist() == []


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=60), st.integers(1, 900))
def test_the_last_point_is_where_the_running_judgement_says_that_the_reader_is(gaps: list[int], pace: int) -> None:
    arrivals = np.cumsum(np.array(gaps) * MS)
    judgement = Judgement(SloClass(pace_ns=pace * MS), 0)
    dry_ns = []
    for arrival in arrivals.tolist():
        judgement.apply([arrival])
        dry_ns.append(judgement.now.dry_ns)
    assert read_by_ns(arrivals, pace * MS).tolist() == dry_ns


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300), st.integers(2, 20), st.integers(1, 8))
def test_few_points_keep_both_ends_of_the_longest_gaps(gaps: list[int], most: int, longest: int) -> None:
    arrivals = np.cumsum(np.array(gaps))
    at = curve_points(arrivals, most, longest)
    assert len(at) <= most + 2 * longest
    assert (np.diff(at) > 0).all()
    assert (at[0], at[-1]) == (0, len(arrivals) - 1)
    kept = set(at.tolist())
    between = np.diff(arrivals)
    order = np.argsort(-between, kind="stable")[:longest]
    for before in order.tolist():
        if (between > between[before]).sum() + (
            between == between[before]
        ).sum() <= longest:  # not one of several equal
            assert {before, before + 1} <= kept
