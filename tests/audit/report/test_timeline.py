"""The geometry of a delivery agrees with the arithmetic, whatever the tokens do."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.audit.report.charts.timeline import Timeline, build, cut, thin
from otel_llm.slo.classes import SloClass
from otel_llm.slo.request import judge, stalls

MS = 1_000_000
FOUR = SloClass(pace_ns=250 * MS)
FIGURE_1B = [100, 200, *range(1200, 2101, 100)]

gaps_ms = st.lists(st.integers(0, 1500), max_size=30)


def timeline_of(gaps: list[int], tail: int, outcome: str, slo: SloClass) -> Timeline:
    times = [sum(gaps[: i + 1]) * MS for i in range(len(gaps))]
    return build(times, (times[-1] if times else 0) + tail * MS, outcome, slo)


def test_figure_1b_waits_450_ms_in_one_stall_behind_two_tokens() -> None:
    timeline = build([at * MS for at in FIGURE_1B], 2100 * MS, "completed", FOUR)

    assert [(one.start_ns // MS, one.end_ns // MS, one.waited_ns // MS) for one in timeline.stalls] == [
        (750, 1200, 450)
    ]
    assert timeline.reader(10**12) == [
        (250 * MS, 0.0),
        (750 * MS, 2.0),
        (1200 * MS, 2.0),
        (3700 * MS, 12.0),
    ]


def test_tokens_late_one_after_the_other_are_one_stall_that_waited_less_than_it_lasted() -> None:
    timeline = build([250 * MS, 750 * MS, 1250 * MS], 1250 * MS, "completed", FOUR)

    (stall,) = timeline.stalls
    assert (stall.start_ns, stall.end_ns, stall.waited_ns) == (500 * MS, 1250 * MS, 500 * MS)


@given(gaps_ms, st.integers(0, 3000), st.sampled_from(["completed", "error", "cancelled"]), st.integers(0, 2000))
def test_waits_add_up_to_the_idle_time_and_group_into_the_stalls(
    gaps: list[int], tail: int, outcome: str, start: int
) -> None:
    slo = SloClass(pace_ns=333 * MS, start_ns=start * MS)
    timeline = timeline_of(gaps, tail, outcome, slo)
    verdict = judge(timeline.tokens_ns, 0, timeline.end_ns, outcome, slo)
    spans = stalls(timeline.tokens_ns, 0, timeline.end_ns, outcome, slo)

    if verdict.judged:
        assert timeline.idle_ns == verdict.idle_ns
        assert len(timeline.stalls) == verdict.stalls
        assert [(one.end_ns, one.waited_ns) for one in timeline.stalls] == [(end, end - start) for start, end in spans]


@given(gaps_ms, st.integers(0, 3000), st.sampled_from(["completed", "error"]))
def test_the_reader_never_reads_what_has_not_arrived_and_waits_only_without_text(
    gaps: list[int], tail: int, outcome: str
) -> None:
    timeline = timeline_of(gaps, tail, outcome, SloClass(pace_ns=200 * MS))
    arrived = timeline.tokens_ns

    for at_ns, tokens in timeline.reader(10**15):
        assert tokens <= bisect_right(arrived, at_ns)
    corners = dict(timeline.reader(10**15))
    for wait in timeline.waits:
        assert corners[wait.end_ns] == bisect_left(arrived, wait.end_ns), "the reader has used up all that came before"


@given(gaps_ms, st.integers(0, 3000), st.sampled_from(["completed", "error"]), st.integers(1, 400))
def test_the_tangent_touches_the_delivery_and_nowhere_crosses_it(
    gaps: list[int], tail: int, outcome: str, smallest: int
) -> None:
    timeline = timeline_of(gaps, tail, outcome, SloClass(pace_ns=200 * MS))
    tangent_ns = timeline.first_deadline_ns + timeline.idle_ns
    reached = [tangent_ns + count * timeline.pace_ns - at_ns for count, at_ns in enumerate(timeline.tokens_ns)]

    assert all(distance >= 0 for distance in reached)
    if timeline.waits and timeline.waits[-1].end_ns in timeline.tokens_ns:
        assert 0 in reached


@given(gaps_ms, st.integers(0, 3000), st.sampled_from(["completed", "error"]), st.integers(1, 20_000))
def test_phases_tile_the_time_without_gap_or_overlap(gaps: list[int], tail: int, outcome: str, until: int) -> None:
    timeline = timeline_of(gaps, tail, outcome, SloClass(pace_ns=200 * MS))
    phases = timeline.phases(until * MS)

    assert all(one.start_ns < one.end_ns <= until * MS for one in phases)
    assert all(left.end_ns == right.start_ns for left, right in pairwise(phases))
    assert all(left.name != right.name for left, right in pairwise(phases))
    if phases:
        assert phases[0].start_ns == 0


def test_a_sliver_of_reading_between_two_waits_is_drawn_as_waiting() -> None:
    timeline = build([100 * MS, *(at * MS for at in range(1000, 5001, 500))], 5000 * MS, "completed", FOUR)

    assert len(timeline.phases(5000 * MS)) > 10
    assert [one.name for one in timeline.phases(5000 * MS, 300 * MS)] == ["first", "reading", "waiting"]


def test_a_line_is_cut_on_the_border() -> None:
    assert cut([(0, 0.0), (10, 5.0)], 4) == [(0, 0.0), (4, 2.0)]
    assert cut([(5, 0.0), (10, 5.0)], 4) == []
    assert cut([(0, 0.0), (4, 2.0)], 9) == [(0, 0.0), (4, 2.0)]


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.integers(1, 20))
def test_thinning_keeps_both_ends_of_every_slice_and_is_bounded(times: list[int], columns: int) -> None:
    ordered = sorted(times)
    kept = thin(range(len(ordered)), ordered, columns)

    assert len(kept) <= max(2 * columns, 1)
    assert kept == sorted(set(kept))
    assert (kept[0], kept[-1]) == (0, len(ordered) - 1)
    width = ordered[-1] - ordered[0] + 1
    for index, at in enumerate(ordered):
        assert min(abs(at - ordered[one]) for one in kept) <= width // columns + 1, index


@pytest.mark.parametrize("outcome", ["completed", "error"])
def test_a_reply_without_a_token_has_a_timeline(outcome: str) -> None:
    timeline = build([], 3000 * MS, outcome, FOUR)

    assert [one.name for one in timeline.phases(3000 * MS)] == ["first"]
    assert timeline.idle_ns == (0 if outcome == "completed" else 2750 * MS)
