"""The windows' picture: what adds up, what is zero and what is unknown, and by which clock."""

from __future__ import annotations

from typing import Any

import pytest
from support.audit.figures import check
from support.audit.report_tables import windows_of

from otel_llm.audit.report.charts.time_series import Bin, bins, window_clock, window_lines, windows_figure


def window(start_s: int, **values: Any) -> dict[str, Any]:
    return {"window_start_unix_nano": start_s * 10**9, **values}


def added(*rows: dict[str, Any]) -> list[Bin]:
    return bins(windows_of(list(rows)))


def test_windows_add_up_over_groups_and_silence_is_zero() -> None:
    found = added(
        window(100, throughput_tok_s=5.0, idle_s_sum=2.0, met_true=1),
        window(100, throughput_tok_s=1.0, met_false=1, requests_ended=2, model="other"),
        window(130, throughput_tok_s=4.0),
    )

    assert [one.rate("throughput_tok_s") for one in found] == [6.0, 0.0, 0.0, 4.0]
    assert (found[0].attainment, found[1].attainment) == (0.5, None)
    assert found[0].rate("idle_s_sum") == pytest.approx(0.2)
    assert found[0].sums["requests_ended"] == 2
    check(windows_figure(found))


def test_many_windows_are_added_up_to_a_bounded_number_of_steps() -> None:
    rows = [window(10 * index, throughput_tok_s=3.0, requests_ended=1) for index in range(1000)]
    found = bins(windows_of(rows), most=300)

    assert len(found) == 250
    assert {one.rate("throughput_tok_s") for one in found} == {3.0}
    assert sum(one.sums["requests_ended"] for one in found) == 1000
    check(windows_figure(found))
    assert bins(windows_of([])) == []


def test_windows_years_apart_are_no_loop_of_years() -> None:
    found = added(window(0, tokens_read=1), window(2_000_000_000, tokens_read=2))
    assert 250 <= len(found) <= 300
    assert sum(one.sums["tokens_read"] for one in found) == 3


def test_a_single_window_is_drawn_as_a_level() -> None:
    found = added(window(1_790_000_000, smooth_goodput_tok_s=2.5))
    figure = windows_figure(found)

    assert figure["data"][2]["y"] == [2.5, 2.5]
    assert figure["data"][2]["x"] == ["2026-09-21 14:13:20.000", "2026-09-21 14:13:30.000"]
    check(figure)


def test_attainment_is_drawn_with_gaps_where_nothing_was_judged_and_with_the_promise() -> None:
    found = added(window(0, met_true=3, met_false=1), window(20, met_false=2))
    figure = windows_figure(found, promised=0.99)
    attained, promised = figure["data"][3], figure["data"][5]

    assert attained["y"] == [0.75, None, 0.0, 0.0]
    assert promised["y"] == [0.99, 0.99]
    check(figure)


def test_a_clock_of_its_own_is_an_axis_of_seconds_and_no_date() -> None:
    rows = windows_of([window(1000, tokens_read=1), window(1010, tokens_read=1)])
    clock = window_clock(rows)
    figure = windows_figure(bins(rows), clock)

    assert figure["data"][0]["x"] == [0.0, 10.0, 20.0]
    assert figure["layout"]["xaxis"]["type"] == "linear"
    assert "(own clock)" in figure["layout"]["xaxis"]["title"]["text"]
    assert [line[0] for line in window_lines(bins(rows), clock)] == ["0 s", "10 s"]
    check(figure)
