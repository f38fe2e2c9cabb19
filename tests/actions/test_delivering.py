"""Delivery over real HTTP: what a receiver may do to us, and that nothing is sent twice too often or too late."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from actions.orders import MS, NOW_NS, Scripted, Ticking, order
from support.actions.action_receiver import Came, Receiver, Say, receiving
from support.patience import WAIT_S
from support.ports import free_ports

from otel_llm.actions.delivery.http_request import Answer
from otel_llm.actions.delivery.signing import verify
from otel_llm.actions.execute.action_attempts import Delivery, NotSent
from otel_llm.actions.execute.executor import Reply, of_answer, result_of
from otel_llm.actions.execute.webhook import Webhook
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.clock import FakeClock

SECRET = bytes(range(32))
TTL_NS = 20_000 * MS


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving(Receiver()) as made:
        yield made


def webhook(url: str, timeout_s: float = 10.0) -> Webhook:
    return Webhook(url, lambda: (SECRET,), "/here", "tests", timeout_s)


def deliver(executor: Any, now_ns: Any = time.time_ns, ttl_ns: int = TTL_NS) -> tuple[Reply | NotSent, Delivery]:
    delivery = Delivery(now_ns, lambda: None)
    return delivery.deliver(order(now_ns=now_ns(), ttl_ns=ttl_ns), executor), delivery


@pytest.mark.parametrize(
    ("reported", "reply"),
    [
        (Say(), Reply("accepted")),
        (Say(204), Reply("accepted")),
        (Say(200, b'{"result":"done"}'), Reply("done")),
        (Say(200, b'{"result":"accepted","detail":"in line"}'), Reply("accepted", "in line")),
        (Say(200, b'{"result":"refused","detail":"not now"}'), Reply("refused", "refused: not now")),
        (Say(200, b'{"result":"unknown_request"}'), Reply("refused", "unknown_request")),
        (Say(200, b'{"result":"done","detail":"a\\n\\u001bb"}'), Reply("done", "a \\u{1b}b")),
        (Say(200, b'{"result":["done"]}'), Reply("accepted")),
        (Say(200, b"[1]"), Reply("accepted")),
        (Say(200, b"\xff\x00{"), Reply("accepted")),
        (Say(200, b"[" * 60_000), Reply("accepted")),
        (Say(200, b'{"result":"done","detail":"' + b"x" * 5000 + b'"}'), Reply("done", "x" * 199 + "…")),
        (Say(409), Reply("accepted", "it is doing it already")),
        (Say(410), Reply("refused", "HTTP 410")),
        (Say(401), Reply("refused", "HTTP 401")),
    ],
)
def test_an_answer_ends_it_after_one_try(receiver: Receiver, reported: Say, reply: Reply) -> None:
    receiver.answer = lambda came, before: reported
    found, delivery = deliver(webhook(receiver.url))
    assert found == reply
    assert (len(receiver.came), delivery.tries) == (1, 1)


def test_a_relay_is_named_as_it_says_and_again_after_its_restart(receiver: Receiver) -> None:
    """Each try is for one relay and start-up; what it is called is asked once."""
    name = "/relay/1"

    def named(came: Came) -> object:
        return json.loads(came.body)["data"].get("relay")

    def answer(came: Came, _before: int) -> Say:
        verify({key.lower(): value for key, value in came.headers.items()}, came.body, [SECRET], time.time())
        right = named(came) == name
        return (
            Say(200, b'{"result":"done"}')
            if right
            else Say(200, json.dumps({"result": "refused", "relay": name}).encode())
        )

    receiver.answer = answer
    relays: dict[str, str] = {}
    relay = Webhook(receiver.url, lambda: (SECRET,), "/here", "tests", 10.0, relays=relays)
    for _ in range(2):
        assert deliver(relay)[0] == Reply("done")
    name = "/relay/2"
    assert deliver(relay)[0] == Reply("done")
    assert [named(came) for came in receiver.came] == [None, "/relay/1", "/relay/1", "/relay/1", "/relay/2"]


@pytest.mark.parametrize("body", [b'"relay":1', b'"relay":""', b'"relay":"%s"' % (b"x" * 999)])
def test_a_relay_that_says_no_name_has_refused(receiver: Receiver, body: bytes) -> None:
    receiver.answer = lambda came, before: Say(200, b'{"result":"refused",' + body + b"}")
    found, _ = deliver(Webhook(receiver.url, lambda: (SECRET,), "/here", "tests", 10.0, relays={}))
    assert (found, len(receiver.came)) == (Reply("refused", "refused"), 1)


def test_another_receiver_is_not_named(receiver: Receiver) -> None:
    receiver.answer = lambda came, before: Say(200, b'{"result":"refused","relay":"/relay/1"}')
    found, _ = deliver(webhook(receiver.url))
    assert (found, len(receiver.came)) == (Reply("refused", "refused"), 1)


@pytest.mark.parametrize(
    ("answer", "by_status", "by_body"),
    [
        (Answer(200, None), Reply("accepted"), Reply("again", "HTTP 200, no body in time", maybe_sent=True)),
        (Answer(409, None), *[Reply("accepted", "it is doing it already")] * 2),
        (Answer(410, None), *[Reply("refused", "HTTP 410")] * 2),
        (Answer(503, None), *[Reply("again", "HTTP 503")] * 2),
    ],
)
def test_an_answer_whose_body_did_not_come_is_its_status_where_that_says_enough(
    answer: Answer, by_status: Reply, by_body: Reply
) -> None:
    assert of_answer(answer) == by_status
    assert result_of(answer) == by_body
    assert of_answer(answer).late
    assert result_of(answer).late
    assert not of_answer(Answer(answer.status)).late


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_not_followed(receiver: Receiver, status: int) -> None:
    with receiving(Receiver()) as elsewhere:
        receiver.answer = lambda came, before: Say(status, headers=(("Location", elsewhere.url),))
        found, _ = deliver(webhook(receiver.url))
        assert found == Reply("refused", f"HTTP {status}: redirects are not followed")
        assert (len(receiver.came), elsewhere.came) == (1, [])


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_what_may_pass_is_tried_once_more_under_the_same_id(receiver: Receiver, status: int) -> None:
    receiver.answer = lambda came, before: Say() if before else Say(status)
    found, _ = deliver(webhook(receiver.url))
    assert found == Reply("accepted")
    first, second = receiver.came
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    for one in receiver.came:
        assert verify(one.headers, one.body, [SECRET], time.time()) == one.headers["webhook-id"]


def test_errors_without_end_are_two_tries(receiver: Receiver) -> None:
    receiver.answer = lambda came, before: Say(500)
    found, delivery = deliver(webhook(receiver.url))
    assert found == Reply("again", "HTTP 500")
    assert (len(receiver.came), delivery.tries) == (2, 2)


def test_a_receiver_whose_retry_after_exceeds_the_ttl_is_not_asked_again(receiver: Receiver) -> None:
    receiver.answer = lambda came, before: Say(503, headers=(("Retry-After", "60"),))
    found, _ = deliver(webhook(receiver.url))
    assert found == Reply("again", "HTTP 503")
    assert len(receiver.came) == 1


def test_without_an_answer_it_is_tried_again_at_half_time_and_nobody_says_that_it_failed(receiver: Receiver) -> None:
    go_on = threading.Event()

    def hang(came: Came, before: int) -> Say:
        go_on.wait(WAIT_S)
        return Say()

    receiver.answer = hang
    found, delivery = deliver(webhook(receiver.url), Ticking(step_ns=100 * MS).now_ns, ttl_ns=1000 * MS)
    assert isinstance(found, Reply)
    assert (found.result, found.maybe_sent) == ("again", True)
    go_on.set()
    assert delivery.tries == 2


def test_the_second_try_may_be_the_one_that_is_answered(receiver: Receiver) -> None:
    go_on = threading.Event()

    def hang(came: Came, before: int) -> Say:
        if not before:
            go_on.wait(WAIT_S)
        return Say(200, b'{"result":"done"}')

    receiver.answer = hang
    found, _ = deliver(webhook(receiver.url, timeout_s=4.0))
    go_on.set()
    assert found == Reply("done")
    assert len(receiver.came) == 2


def test_a_broken_connection_may_have_brought_it_and_a_closed_port_has_not(receiver: Receiver) -> None:
    receiver.answer = lambda came, before: Say(drop=True)
    assert deliver(webhook(receiver.url))[0] == Reply("again", "the connection broke", maybe_sent=True)
    [port] = free_ports(1)
    assert deliver(webhook(f"http://127.0.0.1:{port}"))[0] == Reply("again", "no connection", maybe_sent=False)


def test_a_body_without_end_is_not_read(receiver: Receiver) -> None:
    reported = b'{"result":"done","detail":"' + b" " * 100_000 + b'"}'
    receiver.answer = lambda came, before: Say(200, reported)
    assert deliver(webhook(receiver.url))[0] == Reply("accepted")  # its beginning is no JSON


@pytest.mark.parametrize(("late_ns", "outcome"), [(0, "expired"), (1, "expired"), (-300 * MS, None)])
def test_what_has_expired_is_never_sent(receiver: Receiver, late_ns: int, outcome: str | None) -> None:
    clock = FakeClock(NOW_NS + 400 * MS + late_ns)
    executor = Scripted()
    found = Delivery(clock.now_ns, lambda: None).deliver(order(now_ns=NOW_NS, ttl_ns=400 * MS), executor)
    if outcome is None:
        assert found == Reply("accepted")
        assert len(executor.asked) == 1
    else:
        assert isinstance(found, NotSent)
        assert (found.outcome, executor.asked) == (outcome, [])


def test_the_second_try_is_not_made_after_the_end_either() -> None:
    clock = FakeClock(NOW_NS)

    class Slow(Scripted):
        def attempt(self, order: Any, now_ns: int, timeout_s: float) -> Reply:
            clock.at_ns = NOW_NS + 400 * MS  # it took all the time that there was
            return super().attempt(order, now_ns, timeout_s)

    executor = Slow([Reply("again", "HTTP 500")])
    found = Delivery(clock.now_ns, lambda: None).deliver(order(now_ns=NOW_NS, ttl_ns=400 * MS), executor)
    assert isinstance(found, Reply)
    assert found.result == "again"
    assert len(executor.asked) == 1


def test_a_kill_switch_that_comes_between_the_tries_stops_the_second() -> None:
    allowed = [None, NotSent("shadow", "off")]
    executor = Scripted([Reply("again", "HTTP 500")])
    delivery = Delivery(time.time_ns, lambda: allowed.pop(0))
    assert delivery.deliver(order(now_ns=time.time_ns(), ttl_ns=TTL_NS), executor) == Reply("again", "HTTP 500")
    assert len(executor.asked) == 1


def test_a_bug_in_an_executor_is_a_try_of_which_nobody_knows() -> None:
    found, _ = deliver(Scripted([RuntimeError("x"), RuntimeError("x")]))
    assert found == Reply("again", "a bug of ours: RuntimeError", maybe_sent=True)


def test_without_a_secret_nothing_is_sent(receiver: Receiver) -> None:
    def broken() -> tuple[bytes, ...]:
        raise ConfigError("secret", 1, 1, "", "not a signing secret", "")

    found, _ = deliver(Webhook(receiver.url, broken, "/here", "tests"))
    assert isinstance(found, Reply)
    assert found.result == "refused"
    assert receiver.came == []
