from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.commands import wait_until
from support.examples import examples
from support.patience import WAIT_S

from otel_llm.collector.export.send_queue import OutQueue
from otel_llm.export.transport import attempt as attempts
from otel_llm.export.transport.attempt import Attempt

FINE = Attempt("accepted")
AGAIN = Attempt("retry", "not now", after_s=0.0)
NEVER = Attempt("refused", "no")
TOO_MUCH = Attempt("refused", "too much", divisible=True)


@contextmanager
def running(send: Callable[[Sequence[bytes], float], Attempt], **changed: Any) -> Iterator[OutQueue[bytes]]:
    settings: dict[str, Any] = {"size": len, "capacity": 1000, "batch": 100, "timeout_s": 5.0, "linger_s": 0.0}
    queue: OutQueue[bytes] = OutQueue("things", send, lambda: None, **(settings | changed))
    queue.start()
    try:
        yield queue
    finally:
        queue.stop(0)


def completed(queue: OutQueue[bytes]) -> None:
    wait_until("all is settled", lambda: queue.queued == 0)


class Held:
    """Answer only when told to."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.go = threading.Event()
        self.taken: list[bytes] = []

    def __call__(self, items: Sequence[bytes], timeout_s: float) -> Attempt:
        self.requested.set()
        self.go.wait(WAIT_S)
        self.taken += items
        return FINE


def test_offers_return_while_the_other_side_never_answers_and_the_newest_are_dropped() -> None:
    held = Held()
    with running(held, capacity=3000) as queue:
        for number in range(10_000):
            queue.offer(b"%06d" % number)
        assert (queue.queued, queue.dropped) == (3000, 9500)
        held.go.set()
        completed(queue)
        assert held.taken == [b"%06d" % number for number in range(500)]
        assert queue.counts.sent == 500
        queue.offer(b"there is room again")
        completed(queue)
        assert held.taken[-1] == b"there is room again"


def test_what_is_being_sent_keeps_its_room() -> None:
    held = Held()
    with running(held, capacity=10) as queue:
        queue.offer(b"0123456789")
        assert held.requested.wait(WAIT_S)
        queue.offer(b"x")
        assert queue.dropped == 1
        held.go.set()
        completed(queue)
        assert held.taken == [b"0123456789"]


def test_what_waits_goes_together_up_to_a_batch_and_a_larger_item_alone() -> None:
    held, batches = Held(), list[list[int]]()

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        held(items, timeout_s)
        batches.append([len(item) for item in items])
        return FINE

    with running(send) as queue:
        queue.offer(b"1")
        assert held.requested.wait(WAIT_S)
        for size in (40, 60, 1, 300, 99, 1, 1):
            queue.offer(b"x" * size)
        held.go.set()
        completed(queue)
    assert batches == [[1], [40, 60], [1], [300], [99, 1], [1]]


def test_the_first_item_waits_for_company_and_a_full_batch_does_not_wait() -> None:
    batches: list[int] = []

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        batches.append(len(items))
        return FINE

    with running(send, linger_s=1e6) as queue:
        for _ in range(100):
            queue.offer(b"1")
        completed(queue)
        assert batches == [100]
        queue.offer(b"left alone")
        assert queue.stop(WAIT_S)
    assert batches == [100, 1]


def test_one_that_is_refused_does_not_take_its_neighbours_with_it() -> None:
    tried: list[list[bytes]] = []
    held = Held()

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        held(items, timeout_s)
        tried.append(list(items))
        return TOO_MUCH if b"bad" in items else FINE

    with running(send) as queue:
        queue.offer(b"first")
        assert held.requested.wait(WAIT_S)
        for item in (b"a", b"b", b"bad", b"c", b"d"):
            queue.offer(item)
        held.go.set()
        completed(queue)
        assert (queue.counts.sent, queue.counts.failed) == (5, 1)
    assert tried[1:] == [[b"a", b"b", b"bad", b"c", b"d"], [b"a", b"b"], [b"bad", b"c", b"d"], [b"bad"], [b"c", b"d"]]


def test_a_refusal_for_good_counts_all_and_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    tried: list[int] = []

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        tried.append(len(items))
        return NEVER

    with caplog.at_level(logging.WARNING), running(send) as queue:
        for _ in range(5):
            queue.offer(b"x")
            completed(queue)
        assert (queue.counts.failed, queue.counts.retries) == (5, 0)
    assert tried == [1] * 5
    assert [record.getMessage() for record in caplog.records] == ["otel-llm: things to another endpoint: no"]


def test_a_client_library_that_raises_is_survived() -> None:
    answers: list[Attempt | Exception] = [ValueError("what"), FINE]

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with running(send) as queue:
        for _ in range(2):
            queue.offer(b"x")
            completed(queue)
        assert (queue.counts.failed, queue.counts.sent) == (1, 1)


def test_a_batch_is_not_tried_for_ever() -> None:
    tried: list[bytes] = []

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        tried.extend(items)
        return FINE if items == [b"good"] else AGAIN

    with running(send, give_up_s=0.05) as queue:
        queue.offer(b"never")
        completed(queue)
        queue.offer(b"good")
        completed(queue)
        assert (queue.counts.failed, queue.counts.sent) == (1, 1)
        assert queue.counts.retries == tried.count(b"never") >= 1


def test_a_stop_sends_what_waits_at_once() -> None:
    """Neither the wait for company nor one between two attempts holds it up, whatever the other side asked for."""
    answers = [Attempt("retry", "later", after_s=200.0)]
    taken: list[bytes] = []
    requested = threading.Event()

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        requested.set()
        if answers:
            return answers.pop()
        taken.extend(items)
        return FINE

    with running(send, batch=1) as queue:
        for item in (b"a", b"b", b"c"):
            queue.offer(item)
        assert requested.wait(WAIT_S)
        assert queue.stop(WAIT_S)
        assert taken == [b"a", b"b", b"c"]
        queue.offer(b"too late")
        assert (queue.counts.sent, queue.dropped) == (3, 1)


@pytest.mark.parametrize("grace_s", [0.0, 0.2])
def test_what_cannot_be_sent_within_the_grace_is_dropped_and_counted(
    grace_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own patience is without end: no second attempt is made before the stop."""
    monkeypatch.setattr(attempts, "backoff_s", lambda failures: 1e6)
    bounds: list[float] = []

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        bounds.append(timeout_s)
        return Attempt("retry", "away", after_s=None)

    with running(send, batch=1) as queue:
        for _ in range(7):
            queue.offer(b"x")
        wait_until("it was tried", lambda: queue.counts.retries > 0)
        assert not queue.stop(grace_s)
        assert (queue.counts.sent, queue.dropped, queue.queued) == (0, 7, 0)
    assert bounds[0] == 5.0
    assert all(bound <= max(grace_s, 0.001) for bound in bounds[1:])


def test_a_stop_does_not_wait_for_one_who_never_answers() -> None:
    closed = threading.Event()
    held = Held()
    queue: OutQueue[bytes] = OutQueue(
        "things", held, closed.set, size=len, capacity=100, batch=1, timeout_s=5.0, linger_s=0.0
    )
    queue.start()
    for _ in range(3):
        queue.offer(b"x")
    assert held.requested.wait(WAIT_S)
    assert not queue.stop(0.05)
    assert closed.is_set()
    assert queue.dropped == 2
    held.go.set()
    wait_until("the last one is settled", lambda: queue.counts.sent == 1)


def test_a_stop_before_a_start_is_a_stop() -> None:
    queue: OutQueue[bytes] = OutQueue(
        "things", lambda items, timeout_s: FINE, lambda: None, size=len, capacity=100, batch=1, timeout_s=5.0
    )
    queue.offer(b"x")
    assert not queue.stop(WAIT_S)
    assert (queue.dropped, queue.queued) == (1, 0)


answer = st.sampled_from([FINE, Attempt("accepted", "some", rejected=2), AGAIN, NEVER, TOO_MUCH, ValueError("what")])


@given(st.lists(st.integers(1, 120), max_size=30), st.lists(answer, max_size=30))
@settings(max_examples=examples(60))
def test_whatever_is_answered_each_item_is_accounted_for_once(
    sizes: list[int], answers: list[Attempt | Exception]
) -> None:
    taken: list[bytes] = []
    script = iter(answers)

    def send(items: Sequence[bytes], timeout_s: float) -> Attempt:
        reported = next(script, FINE)
        if isinstance(reported, Exception):
            raise reported
        if reported.verdict == "accepted":
            taken.extend(items)
        return reported

    items = [bytes([number]) * size for number, size in enumerate(sizes)]
    with running(send, capacity=2000) as queue:
        for item in items:
            queue.offer(item)
        queue.stop(WAIT_S)
        counts = queue.counts
        assert counts.sent == len(taken)
        assert counts.sent + counts.failed + queue.dropped == len(items)
        assert queue.queued == 0
    order = [items.index(item) for item in taken]
    assert order == sorted(set(order))
