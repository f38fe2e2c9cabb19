"""A bounded queue with one thread that sends: whoever offers never waits, whatever the other side does."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_llm.export.attempt import Attempt, retry_wait_s
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

GIVE_UP_S: Final = 300.0
"""How long one batch is tried: the others wait behind it, and it may be the batch itself that is the trouble."""
LONGEST_PAUSE_S: Final = 300.0
"""The longest that the other side can make us wait between two attempts."""
LINGER_S: Final = 0.2
"""How long the first item waits for company: the fixed cost of a request is taken from the evaluator, with which this
thread shares an interpreter."""
SAY_EVERY_S: Final = 60.0
"""Trouble is logged once in so long, and counted always."""
CANCEL_S: Final = 1.0
"""How long to wait for an attempt to notice that it was cancelled."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sent:
    """Count what became of what was offered."""

    sent: int = 0
    dropped: int = 0
    """There was no room, or the service stopped before it could be sent."""
    failed: int = 0
    """The other side refused it, or did not take it for GIVE_UP_S."""
    retries: int = 0
    """Attempts that were to be repeated."""
    rejected: int = 0
    """Of what was sent: spans or records that the other side said it did not take (OTLP's partial success)."""


class OutQueue(Generic[T]):
    """Take items without waiting, and send them in order, in batches, from a thread of its own.

    When there is no room the newest is dropped: what waits is older and nearer to its turn, and of a stream it is the
    beginning, without which the rest says little; the journal has all of it. An item keeps its room until settled.

    Args:
        name: what is sent, for the log and the thread's name.
        send: makes one attempt with some items within so many seconds; an error that it raises counts as refused.
        close: lets go of what `send` holds open, and ends the attempt that is being made where that can be done.
        size: the room that an item takes.
        capacity: the room that there is.
        batch: the room that the items of one request take together at most (a larger item goes alone).
        timeout_s: bounds one attempt.
        linger_s: how long the first item waits for company; a full batch goes at once.
        give_up_s: how long one batch is tried.
    """

    def __init__(
        self,
        name: str,
        send: Callable[[Sequence[T], float], Attempt],
        close: Callable[[], None],
        *,
        size: Callable[[T], int],
        capacity: int,
        batch: int,
        timeout_s: float,
        linger_s: float = LINGER_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._name = name
        self._send = send
        self._close = close
        self._size_of = size
        self._capacity = capacity
        self._batch = batch
        self._timeout_s = timeout_s
        self._linger_s = linger_s
        self._give_up_s = give_up_s
        self.counts = Sent()
        self.queued = 0
        """The room taken now."""
        self._items: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._deadline_s: float | None = None
        """When to stop sending at the latest, once the service stops."""
        self._said_s = -SAY_EVERY_S
        self._said_dropped = 0
        self._thread = threading.Thread(target=self._run, name=f"otel-llm-{name}", daemon=True)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    def offer(self, item: T) -> None:
        """Queue an item, or drop and count it; never waits for the other side and raises nothing."""
        size = self._size_of(item)
        with self._changed:
            if self._deadline_s is not None or self.queued + size > self._capacity:
                self.counts.dropped += 1
                return
            self._items.append(item)
            self.queued += size
            if len(self._items) == 1 or self.queued >= self._batch:
                self._changed.notify_all()

    def stop(self, grace_s: float) -> bool:
        """Take nothing more and send what waits; drop and count what is left after `grace_s`; return if nothing was."""
        with self._changed:
            before = self.counts.dropped
            self._deadline_s = monotonic_s() + grace_s
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(grace_s)
        self._close()
        if self._thread.is_alive():
            self._thread.join(CANCEL_S)
        with self._changed:
            all_settled = self.queued == 0
            self._drop_waiting()
        return all_settled and self.counts.dropped == before

    def _run(self) -> None:
        with suppress_instrumentation():  # or an instrumented client would trace our own exports
            while items := self._next_batch():
                self._deliver(items, monotonic_s() + self._give_up_s)
                size = sum(map(self._size_of, items))
                with self._changed:
                    self.queued -= size
                if self.counts.dropped > self._said_dropped:
                    self._say(f"{self.counts.dropped} dropped for want of room: the other side is slow or away")

    def _next_batch(self) -> list[T]:
        """Wait for items, and a while for company; return none when the service stops and none is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._deadline_s is not None)
            self._changed.wait_for(lambda: self.queued >= self._batch or self._deadline_s is not None, self._linger_s)
            if self._deadline_s is not None and monotonic_s() >= self._deadline_s:
                self._drop_waiting()
            batch: list[T] = []
            size = 0
            while self._items and (not batch or size + self._size_of(self._items[0]) <= self._batch):
                size += self._size_of(self._items[0])
                batch.append(self._items.popleft())
        return batch

    def _drop_waiting(self) -> None:
        self.counts.dropped += len(self._items)
        self.queued -= sum(map(self._size_of, self._items))
        self._items.clear()

    def _deliver(self, items: Sequence[T], give_up_s: float) -> None:
        """Try until the items are settled, and count them."""
        failures = 0
        while True:
            stopping = self._deadline_s is not None
            attempt = self._attempt(items)
            if attempt.verdict == "accepted":
                self.counts.sent += len(items)
                self.counts.rejected += attempt.rejected
                return
            self._say(attempt.reason)
            if attempt.verdict == "refused":
                break
            self.counts.retries += 1
            expired = monotonic_s() >= give_up_s
            if not self._pause(retry_wait_s(attempt, failures, LONGEST_PAUSE_S), stopping):
                with self._changed:
                    self.counts.dropped += len(items)
                return
            if expired:
                break
            failures += 1
        if attempt.divisible and len(items) > 1:  # one of them is the trouble, or all are too much
            middle = len(items) // 2
            self._deliver(items[:middle], give_up_s)
            self._deliver(items[middle:], give_up_s)
        else:
            self.counts.failed += len(items)

    def _attempt(self, items: Sequence[T]) -> Attempt:
        left_s = self._timeout_s
        if self._deadline_s is not None:
            left_s = min(left_s, max(self._deadline_s - monotonic_s(), 0.001))
        try:
            return self._send(items, left_s)
        except Exception as error:  # noqa: BLE001  whatever a client library does, the next batch gets its chance
            return Attempt("refused", f"{type(error).__name__}: {error}"[:300])

    def _pause(self, seconds: float, stopping: bool) -> bool:
        """Wait; return whether there is time for another attempt.

        `stopping`: whether the attempt before was made after the stop began; if not, the next is made when it begins.
        """
        with self._changed:
            if not stopping:
                self._changed.wait_for(lambda: self._deadline_s is not None, seconds)
                return self._deadline_s is None or monotonic_s() < self._deadline_s
            assert self._deadline_s is not None  # noqa: S101
            in_time = monotonic_s() + seconds < self._deadline_s
            if in_time:
                self._changed.wait(seconds)
            return in_time

    def _say(self, reason: str) -> None:
        """Log trouble, now and then."""
        now_s = monotonic_s()
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            self._said_dropped = self.counts.dropped
            _log.warning("otel-llm: %s to another endpoint: %s", self._name, " ".join(reason.split()))
