"""The cumulative curves: every point is exact, the tails are there, and what is drawn is what was computed."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.audit.figures import check
from support.audit.report_tables import requests_of

from otel_llm.audit.report.charts.distributions import (
    MOST_CURVES,
    MOST_POINTS,
    cumulative,
    curves,
    distribution_figure,
    drawn_groups,
    percentile_lines,
)
from otel_llm.slo.metrics import CHARTS

TTFT, FLUIDITY = CHARTS[0], CHARTS[-1]
values = st.lists(st.floats(0, 1e6) | st.sampled_from([0.0, 1.0]), min_size=1, max_size=900)


@given(values)
def test_every_point_is_the_share_at_or_below_it(drawn: list[float]) -> None:
    at, shares = cumulative(np.array(drawn))

    for value, share in zip(at.tolist(), shares.tolist(), strict=True):
        assert value in drawn
        assert share == sum(one <= value for one in drawn) / len(drawn)
    assert (at[0], at[-1], shares[-1]) == (min(drawn), max(drawn), 1.0)
    assert (np.diff(at) > 0).all()


def test_few_values_are_all_drawn() -> None:
    at, shares = cumulative(np.array([3.0, 1.0, 1.0, 2.0]))
    assert (at.tolist(), shares.tolist()) == ([1.0, 2.0, 3.0], [0.5, 0.75, 1.0])


def test_of_a_million_values_a_few_hundred_points_keep_the_shape_and_the_tails() -> None:
    drawn = np.random.default_rng(1).lognormal(0, 1, 1_000_000)
    at, shares = cumulative(drawn)

    assert len(at) <= MOST_POINTS
    # No step left out is larger than one part of the even grid, and the last percent has points of its own.
    assert np.diff(shares, prepend=0).max() <= 1.01 / (MOST_POINTS // 2 - 1)
    assert (shares > 0.99).sum() > 30
    ordered = sorted(drawn.tolist())
    for value, share in zip(at.tolist(), shares.tolist(), strict=True):
        assert Fraction(share).limit_denominator(10**6) == Fraction(bisect_right(ordered, value), 10**6)


def worked() -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = [{"ttfo_s": one} for one in (0.0, 0.0004, 0.2, 0.2, 3.0)]
    return [*chat, {"ttfo_s": None}, {"slo_class": "voice", "ttfo_s": 0.05}, {"measured_at": "server", "ttfo_s": 0.01}]


def test_curves_are_of_one_class_at_one_place_and_leave_out_what_is_unknown() -> None:
    requests = requests_of(worked())
    groups = drawn_groups(requests)
    found = curves(requests, "ttfo_s", groups)

    assert groups == [("chat", "client"), ("chat", "server"), ("voice", "client")]
    assert [one.count for one in found if one] == [5, 1, 1]
    assert curves(requests, "idle_s", groups) == [None, None, None]
    assert distribution_figure(CHARTS[1], [None, None]) is None


def test_what_lies_below_the_axis_enters_at_its_left_border() -> None:
    requests = requests_of(worked())
    figure = distribution_figure(TTFT, curves(requests, "ttfo_s", drawn_groups(requests)))

    assert figure is not None
    check(figure)
    first = figure["data"][0]
    # 0 and 0.4 ms are below the millisecond at which the axis begins at the earliest: two of five.
    left = first["x"][0]
    assert left == pytest.approx(0.001)
    assert figure["layout"]["xaxis"]["range"][0] == pytest.approx(math.log10(left))
    assert list(zip(first["x"], first["y"], strict=True)) == [(left, 0.4), (0.2, 0.8), (3.0, 1.0)]
    assert figure["data"][2]["y"] == [0.0, 1.0]
    assert {trace["line"]["color"] for trace in figure["data"]} == {"$c1", "$c2", "$c3"}


def test_shares_are_drawn_from_zero_on_a_plain_axis() -> None:
    requests = requests_of([{"fluidity_index": one} for one in (0.5, 1.0, 1.0)])
    figure = distribution_figure(FLUIDITY, curves(requests, "fluidity_index", [("chat", "client")]))

    assert figure is not None
    check(figure)
    assert (figure["data"][0]["x"], figure["data"][0]["y"]) == ([0.5, 0.5, 1.0], [0.0, 1 / 3, 1.0])
    assert "type" not in figure["layout"]["xaxis"]


def test_the_largest_groups_are_drawn_and_the_table_has_all() -> None:
    rows = [{"slo_class": f"c{place:02d}", "ttfo_s": 1.0} for place in range(12) for _ in range(12 - place)]
    requests = requests_of(rows)

    assert drawn_groups(requests) == [(f"c{place:02d}", "client") for place in range(MOST_CURVES)]
    assert len(percentile_lines(requests, TTFT)) == 12


def test_the_table_has_nearest_rank_percentiles() -> None:
    requests = requests_of([{"ttfo_s": place / 100} for place in range(1, 101)])
    assert percentile_lines(requests, TTFT) == [
        ("chat, client", "100", "10 ms", "500 ms", "900 ms", "990 ms", "1 s"),
    ]
