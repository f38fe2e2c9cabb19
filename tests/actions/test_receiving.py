"""The other end of an action: signed, once, in time; what else comes gets its status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from actions.orders import MS, NOW_NS, order
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.actions.events import Candidate, cloud_event
from otel_llm.actions.receiving import ActionDoor, Asked, Result, read_action
from otel_llm.actions.signing import signed_headers

SECRET = bytes(range(32))
VICTIM = Candidate("0" * 31 + "9", "0" * 15 + "9", 0, "batch", -1, 3.5)


def sent(at_ns: int = NOW_NS, secret: bytes = SECRET, **of: Any) -> tuple[dict[str, str], bytes]:
    made = order(**of)
    body = cloud_event(made, "/here")
    return signed_headers(made.id, at_ns // 10**9, body, [secret]), body


class Relay:
    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def __call__(self, asked: Asked) -> Any:
        self.asked.append(asked)
        return "done", "moved"


def test_an_action_is_handed_over_with_all_that_was_decided() -> None:
    relay = Relay()
    headers, body = sent(action="preempt", request_id="r1", candidates=(VICTIM,), arguments={"only_if": "x", "to": "y"})
    answer = ActionDoor([SECRET], relay).take(headers, body, NOW_NS + 5 * MS)
    assert (answer.status, answer.result) == (200, "done")
    assert json.loads(answer.body) == {"result": "done", "detail": "moved"}
    (asked,) = relay.asked
    assert asked.action == "preempt"
    assert asked.arguments == {"to": "y"}
    assert asked.request == (f"{1:032x}", f"{1:016x}", 0)
    assert asked.request_id == "r1"
    assert asked.expires_unix_nano == NOW_NS + 400 * MS
    assert asked.candidates == [VICTIM.record()]
    assert asked.facts == {"gap_seconds": 0.7, "ttft_seconds": None}


def test_the_same_id_is_done_once_and_answered_alike() -> None:
    relay = Relay()
    door = ActionDoor([SECRET], relay)
    first = door.take(*sent(), NOW_NS)
    again = door.take(*sent(at_ns=NOW_NS + 10**9), NOW_NS + 10**9)  # the hedge, late: expired, but done before
    assert first == again
    assert len(relay.asked) == 1
    door.take(*sent(number=2), NOW_NS)
    assert len(relay.asked) == 2


def test_what_is_being_done_is_a_conflict() -> None:
    inner: list[int] = []

    def act(asked: Asked) -> tuple[Result, str]:
        inner.append(door.take(*sent(), NOW_NS).status)
        return "done", ""

    door = ActionDoor([SECRET], act)
    assert door.take(*sent(), NOW_NS).status == 200
    assert inner == [409]


def test_what_has_expired_is_refused() -> None:
    relay = Relay()
    door = ActionDoor([SECRET], relay)
    assert door.take(*sent(), NOW_NS + 400 * MS).result == "refused"
    assert relay.asked == []
    assert door.take(*sent(), NOW_NS + 400 * MS - 1).result == "done"


@pytest.mark.parametrize(
    ("message", "now_ns", "status"),
    [
        (sent(secret=bytes(32)), NOW_NS, 401),
        (({}, sent()[1]), NOW_NS, 401),
        ((sent()[0], sent(number=2)[1]), NOW_NS, 401),
        (sent(), NOW_NS + 301 * 10**9, 401),
        (sent(), NOW_NS - 301 * 10**9, 401),
        ((sent()[0], b"x" * 300_000), NOW_NS, 413),
    ],
)
def test_what_is_not_believed_is_not_read(message: tuple[dict[str, str], bytes], now_ns: int, status: int) -> None:
    relay = Relay()
    headers, body = message
    assert ActionDoor([SECRET], relay).take(headers, body, now_ns).status == status
    assert relay.asked == []


def test_a_signed_event_under_another_id_is_refused() -> None:
    body = cloud_event(order(), "/here")
    headers = signed_headers("act_other", NOW_NS // 10**9, body, [SECRET])
    assert ActionDoor([SECRET], Relay()).take(headers, body, NOW_NS).status == 400


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_any_change_of_an_event_is_read_or_refused(data: st.DataObject) -> None:
    event = json.loads(sent()[1])
    place = data.draw(st.sampled_from([event, event["data"], event["data"]["request"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(_JSON)
    try:
        read_action(json.dumps(event).encode())
    except ValueError:
        return


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        read_action(raw)


def test_an_id_is_the_actions_own() -> None:
    plain = order().id
    same = [order(now_ns=NOW_NS + 5, flip_ns=NOW_NS), order(request_id="x"), order(ttl_ns=5)]
    assert {one.id for one in same} == {plain}
    others = [
        order(number=2),
        order(flip_ns=NOW_NS + 1),
        order(action="abort"),
        order(rule_hash="f" * 16),
        order(arguments={"to": "b"}),
        order(stream=False),
    ]
    assert len({plain, *(one.id for one in others)}) == 7
    assert plain.startswith("act_")
    assert "." not in plain
