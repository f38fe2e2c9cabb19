"""Load against benefit: requests in flight by an independent count, the peak if it was put."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audit.figures import check
from support.audit.report_tables import T0_NS, requests_of, windows_of
from support.examples import examples

from otel_llm.audit.report.charts.load_curve import (
    ENOUGH,
    LoadBin,
    Points,
    bin_lines,
    conclusion,
    in_flight_ns,
    load_bins,
    load_figure,
    peak,
    points,
    touched,
)

S = 1_000_000_000
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=30)


@given(spans)
@settings(max_examples=examples(60))
def test_the_mean_in_flight_is_what_counting_at_every_instant_gives(drawn: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in drawn])
    ends = starts + np.array([length for _, length in drawn])
    edges = np.arange(0, 110)
    counted = [sum(start <= at < end for start, end in zip(starts, ends, strict=True)) for at in edges[:-1].tolist()]

    found = np.diff(in_flight_ns(starts, ends, edges))
    assert found.tolist() == pytest.approx(counted, abs=1e-9)


@given(spans)
@settings(max_examples=examples(60))
def test_touched_windows_are_those_that_any_request_reaches_into(drawn: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in drawn])
    ends = starts + np.array([length for _, length in drawn])
    wanted = {at for start, end in zip(starts, ends, strict=True) for at in range(start // 7 * 7, end + 1, 7)}

    assert touched(starts, ends, 7).tolist() == sorted(wanted)


def request(start_s: float, length_s: float | None, **more: Any) -> dict[str, Any]:
    return {"instance": "i", "start_unix_nano": T0_NS + round(start_s * S), "e2e_s": length_s, **more}


def window(start_s: int, smooth: float, **more: Any) -> dict[str, Any]:
    rates = {"smooth_goodput_tok_s": smooth, "goodput_tok_s": smooth / 2, "throughput_tok_s": smooth + 1}
    return {"window_start_unix_nano": T0_NS + start_s * S, **rates, **more}


def test_a_point_is_a_window_of_an_instance_with_all_its_classes() -> None:
    requests = requests_of(
        [request(0, 20), request(5, 10, slo_class="voice"), request(0, 5, instance="j"), request(1, None)]
    )
    windows = windows_of(
        [window(0, 3.0), window(0, 4.0, slo_class="voice"), window(10, 5.0), window(0, 9.0, instance="j")]
    )
    found = points(requests, windows, 10 * S)

    # i: 10 s and 5 s of 10 in the first window, 10 s and 5 s in the second, the end at 20 s exactly; j: 5 s.
    assert found.in_flight.tolist() == pytest.approx([1.5, 1.5, 0.5])
    assert found.rates.tolist() == [[7.0, 5.0, 9.0], [3.5, 2.5, 4.5], [9.0, 6.0, 10.0]]
    assert found.without_end == 1


def test_a_window_in_which_requests_only_waited_is_a_point_too() -> None:
    found = points(requests_of([request(0, 30)]), windows_of([window(0, 1.0), window(20, 2.0)]), 10 * S)
    assert (found.in_flight.tolist(), found.rates[0].tolist()) == ([1.0, 1.0, 1.0], [1.0, 0.0, 2.0])


def test_an_instance_of_no_name_is_one_too() -> None:
    found = points(requests_of([request(0, 10, instance=None)]), windows_of([window(0, 1.0, instance=None)]), 10 * S)
    assert found.in_flight.tolist() == [1.0]


def sweep(levels: dict[int, tuple[float, int]]) -> Points:
    """Return points of so many windows at each load, with this smooth goodput; throughput grows with the load."""
    load = np.repeat([float(one) for one in levels], [count for _, count in levels.values()])
    smooth = np.repeat([value for value, _ in levels.values()], [count for _, count in levels.values()])
    return Points(load, np.stack([smooth, smooth * 0.8, 10 * load]), 0)


LEVELS = {1: (10.0, 6), 4: (38.0, 6), 8: (70.0, 6), 12: (50.0, 6), 16: (-20.0, 6)}


def test_the_peak_is_found_and_marked_where_it_was_put() -> None:
    bins = load_bins(sweep(LEVELS))
    figure = load_figure(bins)
    (mark,) = [trace for trace in figure["data"] if trace.get("name") == "peak"]

    assert [one.in_flight for one in bins] == [1, 4, 8, 12, 16]
    assert peak(bins) == 2
    assert (mark["x"], mark["y"]) == ([8.0], [70.0])
    assert conclusion(bins) == (
        "Smooth goodput is highest at 8 to 9 requests in flight on an instance: 70 tokens/s (6 windows). At 16 to 17 "
        "it is -20, while throughput went from 80 to 160."
    )
    check(figure)
    assert [line[2] for line in bin_lines(bins)] == ["10", "38", "70", "50", "-20"]


def test_a_lucky_window_is_no_peak() -> None:
    bins = load_bins(sweep({**LEVELS, 20: (900.0, ENOUGH - 1)}))
    assert peak(bins) == 2
    assert "At 16 to 18 it is -20" in conclusion(bins)


def test_loads_of_fewer_than_five_windows_have_no_peak() -> None:
    few = load_bins(sweep({load: (value, ENOUGH - 1) for load, (value, _) in LEVELS.items()}))
    assert peak(few) is None
    assert conclusion(few).startswith("No load has 5 windows, so no peak is named.")
    assert "peak" not in {trace.get("name") for trace in load_figure(few)["data"]}


def test_loads_above_the_peak_that_have_too_few_windows_say_nothing_against_it() -> None:
    bins = load_bins(sweep({1: (10.0, 6), 2: (20.0, 6), 8: (5.0, 1)}))
    assert conclusion(bins).endswith("That is the highest load with 5 windows: the peak may lie beyond it.")


def test_a_curve_that_still_rises_has_no_peak_yet() -> None:
    rising = load_bins(sweep({1: (10.0, 6), 2: (20.0, 6)}))
    assert "the peak may lie beyond it" in conclusion(rising)
    assert conclusion(load_bins(sweep({3: (5.0, 2)}))).startswith("The load did not vary: in each of 2 windows")


def test_bins_hold_what_falls_into_them_and_their_quartiles_are_values() -> None:
    smooth = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = load_bins(Points(np.array([0.1, 0.11, 0.12, 0.13, 1.6]), np.stack([smooth, smooth, smooth]), 0))

    assert found[0] == LoadBin(0.1, 0.2, 4, pytest.approx(0.115), 2.5, 2.5, 2.5, 1.0, 3.0)  # type: ignore[arg-type]
    assert [one.windows for one in found] == [4, 1]
    assert load_bins(Points(np.zeros(0), np.zeros((3, 0)), 0)) == []
