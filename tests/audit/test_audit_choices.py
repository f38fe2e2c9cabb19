"""What is picked and what is concluded from rows: the worst requests, the objectives, the windows' picture."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from support.figures import check as valid

from otel_llm.audit import objectives, worst
from otel_llm.audit.overtime import bins, windows_figure
from otel_llm.readers.rows import Row
from otel_llm.slo.classes import Objective, SloClass, SloClasses
from otel_llm.slo.columns import REQUEST_COLUMNS, WINDOW_COLUMNS

BLANK: Row = dict.fromkeys(REQUEST_COLUMNS)


def row(**values: Any) -> Row:
    return BLANK | {"slo_class": "chat", "measured_at": "client"} | values


def test_the_worst_are_the_longest_idle_then_the_least_fluid_of_the_others() -> None:
    rows = [
        row(idle_s=0.0, fluidity_index=0.5),
        row(idle_s=2.0, fluidity_index=0.1),
        row(idle_s=None, fluidity_index=None),
        row(idle_s=3.0, fluidity_index=0.2),
        row(idle_s=0.0, fluidity_index=1.0),
        row(idle_s=0.0, fluidity_index=0.4),
        row(idle_s=2.0, fluidity_index=None),
    ]
    chosen = worst.choose(rows, by_idle=2, by_fluidity=2)

    assert [(one.position, one.why) for one in chosen] == [
        (3, "idle"),
        (1, "idle"),
        (5, "fluidity"),
        (0, "fluidity"),
    ]


def test_nobody_is_worst_where_nobody_waited() -> None:
    assert worst.choose([row(idle_s=0.0, fluidity_index=1.0), row()]) == []


def classes(**promised: Any) -> SloClasses:
    return SloClasses((SloClass(name="chat", objective=Objective(**promised)),), "chat")


def states(rows: list[Row], **promised: Any) -> list[str]:
    return [one.state for one in objectives.check(rows, classes(**promised))]


def test_a_share_is_compared_in_integers() -> None:
    # 0.99 of 100 is exactly 99: a float comparison of 99/100 with 0.99 may go either way.
    rows = [row(met=True)] * 99 + [row(met=False)]
    assert states(rows, attainment=Fraction("0.99")) == ["met"]
    assert states([*rows, row(met=False)], attainment=Fraction("0.99")) == ["missed"]


def test_an_index_is_compared_without_a_division() -> None:
    # 9 of 10 is 0.9 as promised; 899999 of a million is not.
    good, bad = row(deadlines=10, deadline_misses=1), row(deadlines=10**6, deadline_misses=100_001)
    promise = {"fluidity_index": Fraction("0.9"), "share": Fraction("0.5")}
    assert states([good, bad], **promise) == ["met"]
    assert states([good, bad, bad], **promise) == ["missed"]


def test_without_a_judged_request_nobody_can_say() -> None:
    rows = [row(), row(deadlines=0, deadline_misses=0)]
    promise = {"fluidity_index": Fraction(1), "share": Fraction(1), "attainment": Fraction(1)}
    assert states(rows, **promise) == ["no data", "no data"]


def test_client_and_server_are_held_to_it_apart() -> None:
    rows = [row(met=True), row(met=False, measured_at="server")]
    found = objectives.check(rows, classes(attainment=Fraction(1)))
    assert [(one.measured_at, one.state) for one in found] == [("client", "met"), ("server", "missed")]


def test_a_class_that_promises_nothing_is_not_checked() -> None:
    assert objectives.check([row(met=False)], classes()) == []
    assert objectives.check([row(met=False)], classes(fluidity_index=Fraction("0.9"))) == []


def window(start_s: int, **values: Any) -> Row:
    zero: Row = dict.fromkeys(WINDOW_COLUMNS, 0)
    return zero | {"window_start_unix_nano": start_s * 10**9, "window_s": 10.0} | values


def test_windows_add_up_over_groups_and_silence_is_zero() -> None:
    found = bins(
        [
            window(100, throughput_tok_s=5.0, idle_s_sum=2.0, met_true=1),
            window(100, throughput_tok_s=1.0, met_false=1, requests_ended=2),
            window(130, throughput_tok_s=4.0),
        ]
    )

    assert [one.rate("throughput_tok_s") for one in found] == [6.0, 0.0, 0.0, 4.0]
    assert (found[0].attainment, found[1].attainment) == (0.5, None)
    assert found[0].rate("idle_s_sum") == pytest.approx(0.2)
    valid(windows_figure(found))


def test_many_windows_are_added_up_to_a_bounded_number_of_steps() -> None:
    rows = [window(10 * index, throughput_tok_s=3.0, requests_ended=1) for index in range(1000)]
    found = bins(rows, most=300)

    assert len(found) == 250
    assert {one.rate("throughput_tok_s") for one in found} == {3.0}
    assert sum(one.sums["requests_ended"] for one in found) == 1000
    valid(windows_figure(found))


def test_a_single_window_is_drawn_as_a_level() -> None:
    figure = windows_figure(bins([window(1_790_000_000, smooth_goodput_tok_s=2.5)]))

    assert figure["data"][2]["y"] == [2.5, 2.5]
    assert figure["data"][2]["x"] == ["2026-09-21 14:13:20.000", "2026-09-21 14:13:30.000"]
    valid(figure)
