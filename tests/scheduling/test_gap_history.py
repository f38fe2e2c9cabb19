"""What a backend's iterations are predicted to take: cases by hand, a formula of its own, and how much is kept."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.scheduling.gap_history import COUNTS, FORGET_S, KEPT, GapHistory


def seen(*gaps: tuple[int, float], end_s: float = 0.0) -> tuple[GapHistory, float]:
    """Return a history of gaps one behind the other, and the instant at its end."""
    history = GapHistory()
    for streams, gap_s in gaps:
        end_s += gap_s
        history.observe(streams, gap_s, end_s)
    return history, end_s


def test_nothing_is_known_of_a_backend_without_tokens() -> None:
    assert GapHistory().predict(1, 0.0) is None


def test_one_number_of_streams_is_level_below_and_proportional_beyond() -> None:
    history, now_s = seen((4, 0.020))
    assert [history.predict(streams, now_s) for streams in (1, 3, 4, 5, 8)] == pytest.approx(
        [0.020, 0.020, 0.020, 0.025, 0.040]
    )


def test_several_numbers_are_linear_between_and_beyond() -> None:
    """From 10 ms at 2 to 20 ms at 6 it is 2.5 ms a stream, from 20 ms at 6 to 50 ms at 8 it is 15."""
    history, now_s = seen((8, 0.050), (2, 0.010), (6, 0.020))
    found = [history.predict(streams, now_s) for streams in (1, 2, 3, 5, 6, 7, 8, 9, 10)]
    assert found == pytest.approx([0.010, 0.010, 0.0125, 0.0175, 0.020, 0.035, 0.050, 0.065, 0.080])


def test_beyond_the_largest_it_is_level_where_the_last_two_fall() -> None:
    history, now_s = seen((2, 0.030), (3, 0.020))
    assert history.predict(2, now_s) == pytest.approx(0.030)
    assert history.predict(100, now_s) == pytest.approx(0.020)


def test_a_stall_does_not_change_it() -> None:
    history, now_s = seen(*[(3, 0.020)] * 5, (3, 9.0), *[(3, 0.020)] * 2)
    assert history.predict(3, now_s) == pytest.approx(0.020)


def test_a_stall_of_all_streams_counts_once() -> None:
    """Forty streams read again within 4 ms; the next iteration is one gap too."""
    history, now_s = seen(*[(40, 0.020)] * 3)
    for stream in range(40):
        history.observe(40, 9.0 + stream * 1e-4, now_s + 9.0 + stream * 1e-4)
    assert history.predict(40, now_s + 9.1) == pytest.approx(0.020), "the median of 20, 20, 20 ms and 9 s"


def test_the_streams_of_a_batch_tell_of_one_iteration_once() -> None:
    """Eight streams are read in turn within 4 ms: what is kept spans 32 iterations, the long ones among them."""
    history, now_s, iterations = GapHistory(), 0.0, [0.010] * 15 + [0.050] * 17
    for iteration_s in iterations:
        now_s += iteration_s
        for stream in range(8):
            history.observe(8, iteration_s, now_s + stream * 0.0005)
    assert history.predict(8, now_s) == pytest.approx(0.050)
    for _ in range(4):
        now_s += 0.010
        history.observe(8, 0.010, now_s)
    assert history.predict(8, now_s) == pytest.approx(0.050), "11 and 10 of the short ones, of 32"


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    history, then_s = seen((4, 0.020))
    now_s = then_s + 30.0
    history.observe(8, 0.050, now_s)
    assert history.predict(4, then_s + FORGET_S - 0.001) == pytest.approx(0.020)
    assert history.predict(4, then_s + FORGET_S + 0.001) == pytest.approx(0.050), "only eight streams are known now"
    assert history.predict(4, now_s + FORGET_S + 0.001) is None


def test_old_gaps_of_a_number_do_not_count_beside_new_ones() -> None:
    history, then_s = seen(*[(4, 0.200)] * 20)
    now_s = then_s + FORGET_S - 0.1
    history.observe(4, 0.020, now_s)
    assert history.predict(4, now_s) == pytest.approx(0.110), "the last old one counts still"
    assert history.predict(4, now_s + 0.2) == pytest.approx(0.020)


def test_only_the_last_gaps_of_a_number_are_kept() -> None:
    history, now_s = seen(*[(4, 0.001)] * 1000, *[(4, 0.040)] * (KEPT // 2 + 1))
    assert history.predict(4, now_s) == pytest.approx(0.040)


def test_the_number_that_was_seen_the_longest_ago_makes_room() -> None:
    history, now_s = seen(*[(streams, 0.001 * streams) for streams in range(1, COUNTS + 1)])
    now_s += 0.001
    history.observe(1, 0.001, now_s)  # 2 is the oldest now
    now_s += 0.5
    history.observe(1000, 0.5, now_s)
    assert history.predict(1, now_s) == pytest.approx(0.001)
    assert history.predict(2, now_s) == pytest.approx(0.002), "between 1 and 3"
    for streams in range(2000, 2000 + 10 * COUNTS):
        now_s += 0.001
        history.observe(streams, 0.001, now_s)
    assert history.predict(1, now_s) == pytest.approx(0.001), "what is left is level"
    assert len(history.kept()) == COUNTS


@pytest.mark.parametrize("gap_s", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_gap_is_not_noted(gap_s: float) -> None:
    history = GapHistory()
    history.observe(1, gap_s, 5.0)
    assert history.predict(1, 5.0) is None


@given(
    gaps=st.lists(st.tuples(st.integers(1, 12), st.floats(1e-4, 0.5)), min_size=1, max_size=60),
    streams=st.integers(1, 30),
)
def test_it_is_what_numpy_finds(gaps: list[tuple[int, float]], streams: int) -> None:
    """Interpolated by numpy between the statistics module's medians; all gaps are behind one another and recent."""
    history, now_s = seen(*gaps)
    by_count: dict[int, list[float]] = defaultdict(list)
    for count, gap_s in gaps:
        by_count[count].append(gap_s)
    counts = sorted(by_count)
    medians = [statistics.median(by_count[count][-KEPT:]) for count in counts]
    if streams <= counts[-1]:
        expected = float(np.interp(streams, counts, medians))
    elif len(counts) == 1:
        expected = medians[0] * streams / counts[0]
    else:
        rise = max(0.0, (medians[-1] - medians[-2]) / (counts[-1] - counts[-2]))
        expected = medians[-1] + rise * (streams - counts[-1])
    assert history.predict(streams, now_s) == pytest.approx(expected)


@given(
    gaps=st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 1e4), st.floats(0, 100)), max_size=200),
    streams=st.integers(1, 5000),
)
def test_it_is_a_number_that_is_not_negative_whatever_was_seen(
    gaps: list[tuple[int, float, float]], streams: int
) -> None:
    history, now_s = GapHistory(), 0.0
    for count, gap_s, later_s in gaps:
        now_s += later_s
        history.observe(count, gap_s, now_s)
    found = history.predict(streams, now_s)
    assert found is None or (math.isfinite(found) and found >= 0.0)
    assert len(history.kept()) <= COUNTS
    assert max(history.kept().values(), default=0) <= KEPT
