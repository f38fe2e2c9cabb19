"""Which command an action of another process becomes: a table by hand, on requests that are not there or twice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.actions.execute.action_receiver import ActionRequest, Response
from otel_llm.formats.records import RequestKey
from otel_llm.relay.deciding.command import Command
from otel_llm.relay.deciding.command_reader import CommandReader

TRACE = bytes(range(16))
ONE, TWO, GONE, PARENT, TWINS = (bytes([n] * 8) for n in (1, 2, 3, 4, 5))


def key(span: bytes) -> RequestKey:
    return TRACE, span, "default"


OPEN = {
    key(ONE): [key(ONE)],
    key(TWO): [key(TWO)],
    key(PARENT): [key(ONE)],
    key(TWINS): [key(ONE), key(TWO)],
}
"""What the spans stand for; ONE has a client above, TWINS is the client of both."""


def asked(action: str, span: bytes | None = None, instance: str = "a", **of: Any) -> ActionRequest:
    given: dict[str, Any] = {
        "id": "act_1",
        "action": action,
        "arguments": {},
        "expires_unix_nano": 7,
        "rule": "R",
        "request": None if span is None else (TRACE.hex(), span.hex(), 0),
        "request_id": None,
        "labels": {"instance": instance},
        "facts": {},
        "candidates": (),
    }
    return ActionRequest(**(given | of))


def read(one: ActionRequest) -> Command | Response:
    return CommandReader(lambda span: OPEN.get(span, ()), lambda name: name in ("a", "b")).read(one)


def rows(*spans: bytes) -> tuple[dict[str, str], ...]:
    return tuple({"trace_id": TRACE.hex(), "span_id": span.hex()} for span in spans)


def command(verb: str, span: bytes | None = None, instance: str = "", *candidates: bytes, **arguments: Any) -> Command:
    request = None if span is None else key(span)
    return Command("act_1", verb, 7, "R", arguments, request, instance, tuple(key(one) for one in candidates))


@pytest.mark.parametrize(
    ("one", "made"),
    [
        (asked("drain"), command("drain", None, "a")),
        (asked("drain", ONE, "b"), command("drain", None, "b")),
        (asked("migrate", ONE), command("migrate", ONE, to="safest")),
        (asked("migrate", PARENT, arguments={"to": "pack"}), command("migrate", ONE, to="pack")),
        (asked("abort", PARENT), command("abort", ONE, "a")),
        (asked("abort", TWO, "elsewhere"), command("abort", TWO)),
        # The candidates that are here in their order, once each; then what the relay chooses on the instance itself.
        (asked("preempt", candidates=rows(TWO, GONE, PARENT, ONE)), command("preempt", None, "a", TWO, ONE)),
        (asked("preempt", candidates=rows(TWINS, TWO)), command("preempt", None, "a", TWO)),
        (asked("preempt", ONE, candidates=rows(TWO)), command("preempt", ONE, "a", TWO)),
        (asked("preempt", GONE, candidates=rows(TWO)), command("preempt", None, "a", TWO)),
        (asked("preempt", TWINS, candidates=rows(TWO)), command("preempt", None, "a", TWO)),
        (asked("preempt", candidates=rows(GONE)), command("preempt", None, "a")),
        (asked("preempt"), command("preempt", None, "a")),
        # On an instance of another relay, only its candidates.
        (asked("preempt", instance="z", candidates=rows(GONE, TWO)), command("preempt", None, "", TWO)),
        # Without candidates the request is the victim, and there is no other.
        (asked("preempt", PARENT), command("preempt", None, "", ONE)),
    ],
)
def test_what_it_becomes(one: ActionRequest, made: Command) -> None:
    assert read(one) == made


@pytest.mark.parametrize(
    ("one", "result"),
    [
        (asked("drain", instance="z"), "refused"),
        (asked("scale"), "refused"),
        (asked(""), "refused"),
        (asked("migrate"), "refused"),
        (asked("migrate", TWINS), "refused"),
        (asked("migrate", GONE), "unknown_request"),
        (asked("migrate", ONE, arguments={"to": "spread "}), "refused"),
        (asked("abort"), "refused"),
        (asked("abort", TWINS), "refused"),
        (asked("abort", request=("zz", ONE.hex(), 0)), "unknown_request"),
        (asked("abort", request=(TRACE.hex(), ONE.hex()[:-1], 0)), "unknown_request"),
        (asked("preempt", TWINS), "refused"),
        (asked("preempt", GONE), "unknown_request"),
        (asked("preempt", instance="z"), "refused"),
        (asked("preempt", instance="z", candidates=rows(GONE, TWINS)), "unknown_request"),
        (asked("preempt", instance="z", candidates=({}, {"trace_id": 1, "span_id": []})), "unknown_request"),
    ],
)
def test_what_it_does_not_become(one: ActionRequest, result: str) -> None:
    answer = read(one)
    assert isinstance(answer, Response)
    assert (answer.status, answer.result) == (200, result)
    assert answer.detail


_TEXT = st.text(max_size=300)


@given(
    st.sampled_from(["migrate", "preempt", "abort", "drain"]) | _TEXT,
    st.none() | st.tuples(_TEXT, _TEXT, st.integers()),
    _TEXT,
    _TEXT,
    st.dictionaries(_TEXT, st.none() | _TEXT | st.integers(), max_size=2),
)
def test_what_others_write_becomes_one_bounded_line(
    action: str, request: Any, instance: str, rule: str, arguments: dict[str, Any]
) -> None:
    found = read(asked(action, instance=instance, request=request, rule=rule, arguments=arguments))
    words = found.rule if isinstance(found, Command) else found.detail
    assert words.isprintable() or not words
    assert len(words) <= 300
