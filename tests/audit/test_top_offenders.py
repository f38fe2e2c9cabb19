"""What is picked and what is concluded from rows: the worst requests, the objectives."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from otel_llm.audit import objectives, top_offenders
from otel_llm.formats.rows import Row
from otel_llm.slo.classes import Objective, SloClass, SloClasses
from otel_llm.slo.metrics import REQUESTS

BLANK: Row = dict.fromkeys(REQUESTS)


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
    chosen = top_offenders.choose(rows, by_idle=2, by_fluidity=2)

    assert [(one.position, one.why) for one in chosen] == [
        (3, "idle"),
        (1, "idle"),
        (5, "fluidity"),
        (0, "fluidity"),
    ]


def test_nobody_is_worst_where_nobody_waited() -> None:
    assert top_offenders.choose([row(idle_s=0.0, fluidity_index=1.0), row()]) == []


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
