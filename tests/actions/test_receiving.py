"""The other end of an action: signed, once, in time; what else comes gets its status."""

from __future__ import annotations

import json
from typing import Any

import pytest
from actions.orders import MS, NOW_NS, order
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.actions.delivery.signing import signed_headers
from otel_llm.actions.execute.action_receiver import (
    LONGEST_ID,
    ActionReceiver,
    ActionRequest,
    Admission,
    Response,
    Result,
    read_action,
)
from otel_llm.actions.execute.events import Candidate, cloud_event

SECRET = bytes(range(32))
VICTIM = Candidate((bytes(15) + b"\x09", bytes(7) + b"\x09", "default", 0), "batch", -1, 3.5)


def sent(at_ns: int = NOW_NS, secret: bytes = SECRET, **of: Any) -> tuple[dict[str, str], bytes]:
    made = order(**of)
    body = cloud_event(made, "/here")
    return signed_headers(made.id, at_ns // 10**9, body, [secret]), body


class Relay:
    def __init__(self) -> None:
        self.asked: list[ActionRequest] = []

    def __call__(self, asked: ActionRequest) -> Any:
        self.asked.append(asked)
        return "done", "moved"


def test_an_action_is_handed_over_with_all_that_was_decided() -> None:
    relay = Relay()
    headers, body = sent(action="preempt", request_id="r1", candidates=(VICTIM,), arguments={"only_if": "x", "to": "y"})
    answer = ActionReceiver([SECRET], relay).take(headers, body, NOW_NS + 5 * MS)
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
    receiver = ActionReceiver([SECRET], relay)
    first = receiver.take(*sent(), NOW_NS)
    again = receiver.take(*sent(at_ns=NOW_NS + 10**9), NOW_NS + 10**9)  # the hedge, late: expired, but done before
    assert first == again
    assert len(relay.asked) == 1
    receiver.take(*sent(number=2), NOW_NS)
    assert len(relay.asked) == 2


def test_what_is_being_done_is_a_conflict() -> None:
    inner: list[int] = []

    def act(asked: ActionRequest) -> tuple[Result, str]:
        inner.append(receiver.take(*sent(), NOW_NS).status)
        return "done", ""

    receiver = ActionReceiver([SECRET], act)
    assert receiver.take(*sent(), NOW_NS).status == 200
    assert inner == [409]


def test_what_has_expired_is_refused() -> None:
    relay = Relay()
    receiver = ActionReceiver([SECRET], relay)
    assert receiver.take(*sent(), NOW_NS + 400 * MS).result == "refused"
    assert relay.asked == []
    assert receiver.take(*sent(), NOW_NS + 400 * MS - 1).result == "done"


def test_what_is_admitted_is_a_conflict_until_it_is_completed_and_answered_alike_from_then_on() -> None:
    admission = Admission([SECRET])
    asked = admission.admit(*sent(), NOW_NS)
    assert isinstance(asked, ActionRequest)
    again = admission.admit(*sent(), NOW_NS)
    assert isinstance(again, Response)
    assert again.status == 409
    answer = Response(200, "done", "moved")
    admission.complete("act_other", answer)
    assert getattr(admission.admit(*sent(), NOW_NS), "status", None) == 409
    admission.complete(asked.id, answer)
    late_ns = NOW_NS + 200 * 10**9  # expired long ago, and done before that
    assert admission.admit(*sent(late_ns), late_ns) == answer


def test_expiry_and_signature_may_have_clocks_of_their_own() -> None:
    stepped_ns = NOW_NS + 3600 * 10**9  # the wall clock was set on by an hour, and both sides' own clocks were not
    admission = Admission([SECRET])
    assert admission.admit(*sent(), NOW_NS, stepped_ns) == Response(200, "refused", "expired")
    assert isinstance(admission.admit(*sent(stepped_ns), stepped_ns, NOW_NS), ActionRequest)


def test_what_is_remembered_is_bounded() -> None:
    admission = Admission([SECRET], remembered=2)
    for number in (1, 2, 3):
        assert isinstance(admission.admit(*sent(number=number), NOW_NS), ActionRequest)
    admission.complete(order(1).id, Response(200, "done"))  # forgotten: it changes nothing
    assert isinstance(admission.admit(*sent(number=1), NOW_NS), ActionRequest)
    assert getattr(admission.admit(*sent(number=3), NOW_NS), "status", None) == 409


def test_an_id_that_is_too_long_is_refused() -> None:
    event = json.loads(sent()[1])
    for length, status in ((LONGEST_ID, None), (LONGEST_ID + 1, 400)):
        event["id"] = "x" * length
        body = json.dumps(event).encode()
        answer = Admission([SECRET]).admit(signed_headers(event["id"], NOW_NS // 10**9, body, [SECRET]), body, NOW_NS)
        assert getattr(answer, "status", None) == status


@pytest.mark.parametrize(
    ("message", "now_ns", "status"),
    [
        (sent(secret=bytes(32)), NOW_NS, 401),
        (({}, sent()[1]), NOW_NS, 401),
        ((sent()[0], sent(number=2)[1]), NOW_NS, 401),
        (sent(), NOW_NS + 301 * 10**9, 401),
        (sent(), NOW_NS - 301 * 10**9, 401),
        ((sent()[0], b"x" * 300_000), NOW_NS, 413),
        (({**sent()[0], "webhook-id": "act_\udcff"}, sent()[1]), NOW_NS, 401),  # no UTF-8
        (({**sent()[0], "webhook-signature": "v1,\udcff"}, sent()[1]), NOW_NS, 401),
    ],
)
def test_what_is_not_believed_is_not_read(message: tuple[dict[str, str], bytes], now_ns: int, status: int) -> None:
    relay = Relay()
    headers, body = message
    assert ActionReceiver([SECRET], relay).take(headers, body, now_ns).status == status
    assert relay.asked == []


def test_a_signed_event_under_another_id_is_refused() -> None:
    body = cloud_event(order(), "/here")
    headers = signed_headers("act_other", NOW_NS // 10**9, body, [SECRET])
    assert ActionReceiver([SECRET], Relay()).take(headers, body, NOW_NS).status == 400


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
