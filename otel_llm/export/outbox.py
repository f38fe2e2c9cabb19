"""The bounded queue of records between cutting and sending, with the one thread that sends."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.export import threads
from otel_llm.export.clock import monotonic_s
from otel_llm.export.records import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.export.delivery import Delivery
    from otel_llm.export.records import Record

CAPACITY: Final = 8192
"""The most waiting records. At most 100 tokens each: 35 MB at the very worst, 2 s of 1,000 streams."""
BATCH: Final = 512
"""Records in one request: about 1 MB, where gRPC servers refuse more than 4 MB by default."""
SPACING_S: Final = semconv.FLUSH_INTERVAL_S
URGENT_SPACING_S: Final = 0.05
"""The least time from the start of one request to the next, also for urgent records: the fixed cost of sending (0.3 to
0.6 ms a request here) is paid 4 times a second, however many streams begin and end. A record after a pause is sent at
once."""

_log: Final = logging.getLogger("otel_llm")


class Outbox:
    """A queue that takes records from any thread without waiting for the network, and delivers them in order.

    When `capacity` records wait, the oldest give way. What is dropped, there or by the delivery, is counted in
    `dropped` (segments) and warned of once. `spacing_s`: from the start of one request to the start of the next.
    `where`: the endpoint in warnings.
    """

    def __init__(
        self,
        delivery: Delivery,
        capacity: int = CAPACITY,
        *,
        spacing_s: float = SPACING_S,
        where: str = "the endpoint",
    ) -> None:
        self._delivery = delivery
        self._capacity = capacity
        self._spacing_s = spacing_s
        self._where = where
        self._reset()

    def _reset(self) -> None:
        self._queue: deque[Record] = deque()
        self._lock = threads.lock()
        self._wake = threads.Wake()
        self._started = False
        self._idle = False  # the thread waits for a record
        self._urgent = False
        self._hurry = False
        self._closing = False
        self._taken = 0
        self._settled = 0
        self._failures = 0  # attempts that failed and are to be made again
        self._last_s = -self._spacing_s
        self._warned = False
        self.dropped = 0

    def put(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        """Queue records for sending, at once where `urgent`; never waits for the network."""
        if not records:
            return
        lost: list[Record] = []
        with self._lock:
            self._queue.extend(records)
            self._taken += len(records)
            while len(self._queue) > self._capacity:
                lost.append(self._queue.popleft())
            self._settled += len(lost)
            self._count(lost, len(lost))
            starts = not self._started and not self._closing
            self._started |= starts
            self._urgent |= urgent or len(self._queue) >= BATCH
            wakes = self._idle or self._urgent
        if starts:
            self._start()
        elif wakes:
            self._wake.set()
        if lost:
            self._warn(f"the queue of {self._capacity} is full: it is slow or away")

    def _start(self) -> None:
        try:
            threads.start(self._run)
        except BaseException:  # no more threads: the next records try again
            self._started = False
            raise

    def hurry(self, *, closing: bool = False) -> None:
        """Send the queued records without delay or back-off, and do not wait; `closing`: each batch once, then stop."""
        self._closing |= closing
        self._hurry = True
        self._wake.set()

    def flush(self, timeout_s: float, *, patient: bool = True) -> bool:
        """Send the queued records without delay or back-off; return whether all were settled in time.

        Not `patient`: stop waiting as soon as an attempt fails; the records stay queued.
        """
        goal, failures = self._taken, self._failures
        self.hurry()
        threads.wait_until(
            lambda: self._settled >= goal or not self._started or not (patient or self._failures == failures),
            timeout_s,
        )
        return self._settled >= goal

    def close(self, timeout_s: float) -> bool:
        """Send the queued records, each batch once, and stop; return whether all were settled in time."""
        self.hurry(closing=True)
        settled = self.flush(timeout_s)
        if settled:
            self._delivery.close()
        return settled

    def after_fork(self) -> None:
        """Start clean in a forked child: the parent sends what was queued before the fork."""
        self._delivery.forget()
        self._reset()

    def _run(self) -> None:
        from opentelemetry.instrumentation.utils import suppress_instrumentation

        with suppress_instrumentation():  # otherwise an instrumented HTTP client would trace our own exports
            while self._send_next():
                pass

    def _send_next(self) -> bool:
        """Wait for records and deliver one batch; return False when closed and empty."""
        batch = self._next_batch()
        dropped, reason = self._deliver(batch) if batch else (0, "")
        if dropped:
            with self._lock:
                self._count(batch, dropped)
            self._warn(reason)
        with self._lock:
            self._settled += len(batch)
        return bool(batch)

    def _next_batch(self) -> list[Record]:
        while not self._queue:
            with self._lock:
                self._idle = not self._queue
                if self._idle:
                    self._hurry = self._urgent = False
            if self._closing:
                return []
            if self._idle:
                self._wake.wait()
        self._idle = False
        while (left_s := self._left_s()) > 0:
            self._wake.wait(left_s)
        self._last_s = monotonic_s()
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            self._urgent = len(self._queue) >= BATCH
        return batch

    def _left_s(self) -> float:
        """Return the seconds until the next request may begin."""
        if self._hurry:
            return 0.0
        spacing_s = URGENT_SPACING_S if self._urgent else self._spacing_s
        return self._last_s + spacing_s - monotonic_s()

    def _deliver(self, batch: list[Record]) -> tuple[int, str]:
        try:
            return self._delivery.deliver(batch, self._pause)
        except Exception as error:  # noqa: BLE001  an exporter may raise anything; the next batch is tried all the same
            return len(batch), f"{type(error).__name__}: {error}"

    def _pause(self, seconds: float) -> bool:
        self._failures += 1
        until_s = monotonic_s() + seconds
        while not (self._closing or self._hurry) and (left_s := until_s - monotonic_s()) > 0:
            self._wake.wait(left_s)
        if not self._closing:
            self._hurry = False
        return not self._closing

    def _count(self, records: Sequence[Record], dropped: int) -> None:
        # A partial success does not say which spans were rejected.
        self.dropped += min(dropped, sum(isinstance(record, Segment) for record in records))

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            words = "%d segments could not be sent to %s (%s); later ones are only counted"
            _log.warning(words, self.dropped, self._where, reason)
