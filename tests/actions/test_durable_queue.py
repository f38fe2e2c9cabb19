"""Messages on their way, on a clock that a test moves: repeated, in order, given up."""

from __future__ import annotations

from support.actions.alerting import T0

from otel_llm.actions.delivery.durable_queue import GIVE_UP_S, MOST_WAITING, DurableQueue, Message
from otel_llm.export.transport.attempt import Attempt
from otel_llm.shared.clock import FakeClock


def test_a_message_is_tried_for_a_day_with_growing_waits_then_given_up() -> None:
    clock, lost, waits = FakeClock(T0), list[tuple[str, str]](), list[float]()
    queue = DurableQueue(
        "x", clock, lambda message: Attempt("retry", "away"), lambda: None, lambda m, why: lost.append((m.id, why))
    )
    queue.offer([Message("id1", "x", "a", "{}", T0, T0), Message("id2", "x", "a", "{}", T0, T0)])
    while not lost:
        next_ns = queue.next_ns()
        assert next_ns is not None
        waits.append((next_ns - clock.at_ns) / 1e9)
        clock.at_ns = max(clock.at_ns, next_ns)
        assert queue.step()
    assert lost == [("id1", "away")]
    assert clock.at_ns - T0 >= GIVE_UP_S * 1e9
    assert all(0.8 * 2**number <= wait <= 1.2 * 2**number for number, wait in enumerate(waits[1:8]))
    assert max(waits) <= 360
    assert [message.id for message in queue.waiting()] == ["id2"]


def test_a_channel_that_is_away_holds_up_no_other() -> None:
    clock = FakeClock(T0)

    def deliver(message: Message) -> Attempt:
        return Attempt("retry", "away") if message.about == "poison" else Attempt("accepted")

    queue = DurableQueue("x", clock, deliver, lambda: None, lambda message, why: None)
    queue.offer([Message(str(n), "x", about, "{}", T0, T0) for n, about in enumerate(["poison", "b", "poison", "c"])])
    while queue.step():
        pass
    assert [message.id for message in queue.waiting()] == ["0", "2"]


def test_what_is_too_much_is_given_up_and_a_bug_is_no_loss() -> None:
    lost: list[tuple[str, str]] = []

    def deliver(message: Message) -> Attempt:
        raise RuntimeError("a bug")

    queue = DurableQueue("x", FakeClock(T0), deliver, lambda: None, lambda message, why: lost.append((message.id, why)))
    queue.offer(Message(str(number), "x", str(number), "{}", T0, T0) for number in range(MOST_WAITING + 2))
    assert lost == [(str(oldest), "more than 10000 messages wait") for oldest in range(2)]
    assert queue.step()
    assert len(queue.waiting()) == MOST_WAITING
    assert (queue.counts.retries, queue.counts.given_up) == (1, 2)


def test_a_tenant_that_fills_the_queue_gives_its_oldest_messages_up_for_another() -> None:
    lost: list[str] = []
    queue = DurableQueue(
        "x", FakeClock(T0), lambda message: Attempt("retry"), lambda: None, lambda message, why: lost.append(message.id)
    )
    queue.offer(Message(f"a{number}", "x", "", "{}", T0, T0, tenant="a") for number in range(MOST_WAITING))
    queue.offer(Message(f"b{number}", "x", "", "{}", T0, T0, tenant="b") for number in range(MOST_WAITING))
    half = MOST_WAITING // 2
    assert lost == [f"a{number}" for number in range(half)] + [f"b{number}" for number in range(half)]
    assert [message.id for message in queue.waiting()[::half]] == [f"a{half}", f"b{half}"]


def test_tenants_take_turns_and_the_messages_of_one_their_order() -> None:
    came: list[str] = []

    def deliver(message: Message) -> Attempt:
        came.append(message.id)
        return Attempt("accepted")

    queue = DurableQueue("x", FakeClock(T0), deliver, lambda: None, lambda message, why: None)
    for tenant in "ab":
        queue.offer(Message(f"{tenant}{n}", "x", f"{tenant}{n}", "{}", T0, T0, tenant=tenant) for n in range(200))
    assert queue.is_behind
    while queue.step():
        pass
    assert came == [f"{tenant}{number}" for number in range(200) for tenant in "ab"]
    assert not queue.is_behind


def test_a_message_that_is_given_up_while_it_is_tried_is_lost_once() -> None:
    lost: list[str] = []

    def deliver(message: Message) -> Attempt:
        queue.offer(Message(f"b{number}", "x", "", "{}", T0, T0, tenant="b") for number in range(2))
        return Attempt("refused", "no")

    queue = DurableQueue("x", FakeClock(T0), deliver, lambda: None, lambda message, why: lost.append(message.id))
    queue.offer(Message(f"a{number}", "x", "", "{}", T0, T0, tenant="a") for number in range(MOST_WAITING))
    assert queue.step()
    assert lost == ["a0", "a1"]
    assert len(queue.waiting()) == MOST_WAITING
