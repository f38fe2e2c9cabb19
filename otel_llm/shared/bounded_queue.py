"""A bounded queue before a thread: a slow disk, terminal or endpoint never delays those who offer items.

A full queue drops the newest item and counts it. The older ones are done sooner, and they hold the beginnings of
streams, without which the rest is of little use. Two queues differ. That of an application (`export.outbox`) drops its
oldest segments: after an outage of its collector the streams in flight matter. That of a channel of alerts
(`actions.delivery.durable_queue`) gives up the oldest message of the tenant that has the most, into a file.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
log = logging.getLogger(__name__)


class BoundedQueue(ABC, Generic[T]):
    """A queue that accepts items without waiting, and works on them in order, in batches, in a thread of its own.

    An item keeps its room until the work on it is done, or it is dropped. `queued`: the room taken now; `dropped`: the
    items that found no room, or for which no time was left.

    Args:
        thread: its name.
        size: returns the room that an item takes.
        capacity: the room of the queue.
        batch: the room of the items that are worked on together, at most; a larger item is alone.
        linger_s: how long the first item waits for others; a full batch does not wait.
    """

    def __init__(
        self, thread: str, *, capacity: int, batch: int, size: Callable[[T], int] | None = None, linger_s: float = 0.0
    ) -> None:
        self._size_of: Callable[[T], int] = _one if size is None else size
        self._capacity = capacity
        self._batch = batch
        self._linger_s = linger_s
        self.queued = 0
        self.dropped = 0
        self._told = 0
        """Drops that the work knows of."""
        self._items: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._deadline_s: float | None = None
        """When the work must end; None until `stop`."""
        self._thread = threading.Thread(target=self._run, name=thread, daemon=True)

    @abstractmethod
    def _work(self, items: Sequence[T], dropped: int) -> None:
        """Work on the items of a batch, none if only `dropped` is news: the items dropped since the last call."""

    def _cancel(self) -> None:
        """Cancel the work in progress: the grace is over."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, item: T) -> bool:
        """Queue an item, or drop and count it; return whether it was queued. Never waits, never raises."""
        size = self._size_of(item)
        with self._changed:
            if self._deadline_s is not None or self.queued + size > self._capacity:
                self.dropped += 1
                return False
            self._items.append(item)
            self.queued += size
            if len(self._items) == 1 or self.queued >= self._batch:
                self._changed.notify_all()
        return True

    def stop(self, grace_s: float | None) -> bool:
        """Work for `grace_s` seconds (None: to the end), drop the rest; return whether none was dropped."""
        with self._changed:
            before = self.dropped
            self._deadline_s = math.inf if grace_s is None else monotonic_s() + grace_s
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(grace_s)
        self._cancel()
        with self._changed:
            all_done = self.queued == 0
            self._drop_waiting()
        return all_done and self.dropped == before

    def _run(self) -> None:
        while True:
            items, dropped = self._next_batch()
            if not items and not dropped:
                return
            try:
                self._work(items, dropped)
            except Exception:  # a bug of ours must not end the thread
                log.exception("otel-llm: %s", self._thread.name)
            with self._changed:
                self.queued -= sum(map(self._size_of, items))

    def _next_batch(self) -> tuple[list[T], int]:
        """Wait for items, and for others to join them; return none when the queue has stopped and is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self.dropped > self._told or self._deadline_s is not None)
            if self._items:
                self._changed.wait_for(
                    lambda: self.queued >= self._batch or self._deadline_s is not None, self._linger_s
                )
            if self._deadline_s is not None and monotonic_s() >= self._deadline_s:
                self._drop_waiting()
                return [], 0
            batch: list[T] = []
            size = 0
            while self._items and (not batch or size + self._size_of(self._items[0]) <= self._batch):
                size += self._size_of(self._items[0])
                batch.append(self._items.popleft())
            dropped, self._told = self.dropped - self._told, self.dropped
        return batch, dropped

    def _drop_waiting(self) -> None:
        self.dropped += len(self._items)
        self.queued -= sum(map(self._size_of, self._items))
        self._items.clear()


def _one(_item: object) -> int:
    return 1
