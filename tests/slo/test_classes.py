"""SLO classes: how a request gets one, and the functions of their targets."""

from __future__ import annotations

import math

import pytest

from otel_llm.slo.classes import (
    Attribute,
    Benefit,
    Curve,
    Deadline,
    Fluidity,
    SloClass,
    SloClasses,
    UnknownClassError,
)

CLASSES = SloClasses(
    (
        SloClass("chat"),
        SloClass("code", match=(("gen_ai.operation.name", "text_completion"), ("editor", True))),
        SloClass("late", match=(("gen_ai.operation.name", "text_completion"),)),
        SloClass("count", match=(("n", 1),)),
    ),
    default="chat",
)


@pytest.mark.parametrize(
    ("declared", "attributes", "name", "unknown"),
    [
        ("code", {}, "code", False),
        (None, {}, "chat", False),
        ("", {}, "chat", True),
        ("nothing", {}, "chat", True),
        (None, {"gen_ai.operation.name": "text_completion"}, "late", False),
        (None, {"gen_ai.operation.name": "text_completion", "editor": True}, "code", False),
        ("nothing", {"gen_ai.operation.name": "text_completion"}, "late", True),
        ("chat", {"gen_ai.operation.name": "text_completion"}, "chat", False),
        (None, {"n": 1}, "count", False),
        (None, {"n": True}, "chat", False),
        (None, {"n": "1"}, "chat", False),
        (None, {"editor": 1, "gen_ai.operation.name": "text_completion"}, "late", False),
    ],
)
def test_the_declared_class_wins_then_the_first_match_then_the_default(
    declared: str | None, attributes: dict[str, Attribute], name: str, unknown: bool
) -> None:
    slo, was_unknown = CLASSES.choose(declared, attributes)
    assert (slo.name, was_unknown) == (name, unknown)


def test_one_class_can_judge_every_request() -> None:
    forced = CLASSES.judging("late")
    assert forced.choose("code", {})[0].name == "late"
    assert forced.choose("nothing", {}) == (CLASSES.get("late"), True)


def test_a_name_that_is_not_there_is_reported_with_those_that_are() -> None:
    with pytest.raises(UnknownClassError, match="no SLO class 'x': the file defines chat, code, late, count") as caught:
        CLASSES.judging("x")
    assert caught.value.known == CLASSES.names


@pytest.mark.parametrize(
    ("deadline", "first_token_ns", "token_time_ns"),
    [
        (Deadline("reading", 10**9), 10**9, 40_000_000),
        (Deadline("dslo", 2 * 10**9, 30_000_000), 2 * 10**9, 30_000_000),
        (Deadline("ttft_tpot", 10**9, 500_000), 10**9, 500_000),
        (Deadline("ttft_tbt", 10**9, 100_000_000), 10**9, 100_000_000),
        (Deadline("e2e", 10**9), None, None),
    ],
)
def test_the_promised_times_are_those_of_the_deadline_or_of_the_reader(
    deadline: Deadline, first_token_ns: int | None, token_time_ns: int | None
) -> None:
    slo = SloClass(pace_ns=40_000_000, deadline=deadline)
    assert (slo.first_token_ns, slo.token_time_ns) == (first_token_ns, token_time_ns)


def test_a_curve_is_linear_between_its_points_and_constant_outside() -> None:
    curve = Curve(((256, 80_000_000), (1024, 200_000_000)))
    assert [curve.at(tokens) for tokens in (0, 256, 640, 1024, 9999)] == [
        80_000_000,
        80_000_000,
        140_000_000,
        200_000_000,
        200_000_000,
    ]
    assert Curve(((5, 7),)).at(0) == Curve(((5, 7),)).at(9) == 7


def test_a_curve_rounds_to_the_nearest_ns() -> None:
    curve = Curve(((0, 0), (3, 1), (5, 2)))
    assert [curve.at(tokens) for tokens in (1, 2, 4)] == [0, 1, 2]  # 1/3, 2/3, 1.5
    assert Curve(((0, 0), (2, 1))).at(1) == 0  # ties to even
    assert Curve(((0, 1), (2, 2))).at(1) == 2


def test_the_first_deadline_has_the_scheduling_slack_in_it() -> None:
    assert Fluidity(ttft=10, slack_ns=3).first_deadline_ns() == 13
    assert Fluidity(ttft=Curve(((1, 10),)), slack_ns=3).first_deadline_ns(5) == 13
    assert Fluidity(ttft=Curve(((1, 10),)), slack_ns=3).first_deadline_ns(None) is None


def test_penalties() -> None:
    assert Benefit(2.5, "linear").penalty_tokens(2_000_000_000) == 5.0
    assert Benefit(10.0, "quadratic").penalty_tokens(3_000_000_000) == 90.0
    assert Benefit(1.0, "exponential").penalty_tokens(0) == 0.0
    assert Benefit(1.0, "exponential").penalty_tokens(10**15) == math.expm1(60)
