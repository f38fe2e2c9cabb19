"""The send queue of the collector: items go to another endpoint in order, in batches, with retries."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_llm.export.transport.attempt import Attempt, retry_wait_s
from otel_llm.shared.bounded_queue import BoundedQueue
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

GIVE_UP_S: Final = 300.0
"""How long one batch is retried: the others wait behind it, and the batch itself may be the cause."""
LONGEST_PAUSE_S: Final = 300.0
"""The longest wait between two attempts that an endpoint can ask for."""
LINGER_S: Final = 0.2
"""How long the first item waits for others: fewer requests leave more CPU time to the evaluator's thread, which shares
the interpreter."""
LOG_EVERY_S: Final = 60.0
"""Errors are logged once in this time, and always counted."""
CANCEL_S: Final = 1.0
"""How long to wait for a cancelled attempt to end."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Sent:
    """The counts of queued items, by their fate; those without room are `BoundedQueue.dropped`."""

    sent: int = 0
    failed: int = 0
    """The endpoint refused it, or did not accept it for GIVE_UP_S."""
    retries: int = 0
    """Failed attempts that may be repeated."""
    rejected: int = 0
    """Spans or records of accepted items that the endpoint rejected (OTLP's partial success)."""


class OutQueue(BoundedQueue[T]):
    """A bounded queue to an endpoint; an item keeps its room until it is sent, refused or dropped.

    Args:
        name: of the items, for the log and the thread.
        send: makes one attempt with some items within a timeout (s); an error that it raises counts as refused.
        close: releases the resources of `send`, and cancels the attempt in progress if it can.
        size, capacity, batch, linger_s: see `BoundedQueue`.
        timeout_s: of one attempt.
        give_up_s: how long one batch is retried.
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
        super().__init__(f"otel-llm-{name}", size=size, capacity=capacity, batch=batch, linger_s=linger_s)
        self._name = name
        self._send = send
        self._close = close
        self._timeout_s = timeout_s
        self._give_up_s = give_up_s
        self.counts = Sent()
        self._logged_s = -LOG_EVERY_S
        self._logged_dropped = 0

    def _cancel(self) -> None:
        self._close()
        if self._thread.is_alive():
            self._thread.join(CANCEL_S)

    def _work(self, items: Sequence[T], dropped: int) -> None:  # noqa: ARG002  those not logged count, too
        if items:
            with suppress_instrumentation():  # an instrumented client would trace our own exports
                self._deliver(items, monotonic_s() + self._give_up_s)
        if self.dropped > self._logged_dropped:
            self._log_error(f"{self.dropped} dropped for want of room: the other side is slow or away")

    def _deliver(self, items: Sequence[T], give_up_s: float) -> None:
        """Send the items, with retries, and count their fate."""
        failures = 0
        while True:
            stopping = self._deadline_s is not None
            attempt = self._attempt(items)
            if attempt.verdict == "accepted":
                self.counts.sent += len(items)
                self.counts.rejected += attempt.rejected
                return
            self._log_error(attempt.reason)
            if attempt.verdict == "refused":
                break
            self.counts.retries += 1
            expired = monotonic_s() >= give_up_s
            if not self._pause(retry_wait_s(attempt, failures, LONGEST_PAUSE_S), stopping):
                with self._changed:
                    self.dropped += len(items)
                return
            if expired:
                break
            failures += 1
        if attempt.divisible and len(items) > 1:  # one item is the cause, or their total size is
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
        except Exception as error:  # noqa: BLE001  an error of a client library must not end the thread
            return Attempt("refused", f"{type(error).__name__}: {error}"[:300])

    def _pause(self, seconds: float, stopping: bool) -> bool:
        """Wait before a retry; return whether there is time for it.

        `stopping`: whether the last attempt began after the stop; if not, the stop ends the wait.
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

    def _log_error(self, reason: str) -> None:
        """Log an error, once in LOG_EVERY_S."""
        now_s = monotonic_s()
        if now_s - self._logged_s >= LOG_EVERY_S:
            self._logged_s = now_s
            self._logged_dropped = self.dropped
            _log.warning("otel-llm: %s to another endpoint: %s", self._name, " ".join(reason.split()))
