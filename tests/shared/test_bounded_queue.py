"""The queue before a thread: what it drops, what it tells the thread, and that nothing ends it early."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import pytest
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.shared.bounded_queue import BoundedQueue


class Held(BoundedQueue[str]):
    """Work when told to; a `bug` raises."""

    def __init__(self, capacity: int = 3, batch: int = 1) -> None:
        super().__init__("held", capacity=capacity, batch=batch)
        self.entered, self.go = threading.Event(), threading.Event()
        self.done: list[tuple[list[str], int]] = []

    def _work(self, items: Sequence[str], dropped: int) -> None:
        self.entered.set()
        assert self.go.wait(WAIT_S)
        self.done.append((list(items), dropped))
        if "bug" in items:
            raise RuntimeError("a bug")


def test_the_newest_is_dropped_and_the_thread_learns_of_it() -> None:
    queue = Held()
    queue.start()
    assert queue.offer("0")
    assert queue.entered.wait(WAIT_S)
    assert [queue.offer(str(number)) for number in range(1, 6)] == [True, True, False, False, False]
    assert (queue.queued, queue.dropped) == (3, 3)
    queue.go.set()
    wait_until("all is done", lambda: queue.queued == 0)
    assert queue.done == [(["0"], 0), (["1"], 3), (["2"], 0)]
    assert queue.stop(None)
    assert not queue.offer("late")


def test_drops_are_reported_although_nothing_waits_behind_them() -> None:
    queue = Held(capacity=1)
    queue.start()
    queue.offer("0")
    assert queue.entered.wait(WAIT_S)
    queue.offer("1")
    queue.go.set()
    wait_until("the drop is reported", lambda: len(queue.done) == 2)
    assert queue.done == [(["0"], 0), ([], 1)]
    queue.stop(None)


def test_a_stop_without_a_limit_works_on_everything() -> None:
    queue = Held(capacity=100, batch=7)
    for number in range(50):
        queue.offer(str(number))
    queue.start()
    queue.go.set()
    assert queue.stop(None)
    assert [item for items, _ in queue.done for item in items] == [str(number) for number in range(50)]
    assert max(len(items) for items, _ in queue.done) == 7


def test_a_bug_ends_neither_the_thread_nor_the_items_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    queue = Held()
    queue.go.set()
    for item in ("a", "bug", "b"):
        queue.offer(item)
    with caplog.at_level(logging.ERROR):
        queue.start()
        assert queue.stop(None)
    assert [items for items, _ in queue.done] == [["a"], ["bug"], ["b"]]
    assert queue.queued == 0
    assert "held" in caplog.text
