"""The bounded queue of records between cutting and sending, with the one thread that sends."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.export import threads
from otel_llm.export.clock import monotonic_s, wall_s
from otel_llm.export.delivery import RETRY_FOR_S
from otel_llm.export.host_log import OWN_CHARS, HostLog, shown
from otel_llm.export.undelivered import Losses, Undelivered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.export.delivery import Delivery
    from otel_llm.export.records import Record

CAPACITY: Final = 8192
"""The most waiting records. At most 100 events each: 35 MB at the very worst, 2 s of 1,000 streams."""
BATCH: Final = 512
"""Records in one request: about 1 MB, where gRPC servers refuse more than 4 MB by default."""
SPACING_S: Final = semconv.FLUSH_INTERVAL_S
URGENT_SPACING_S: Final = 0.05
"""The least time from the start of one request to the next, also for urgent records: the fixed cost of sending (0.3 to
0.6 ms a request here) is paid 4 times a second, however many streams begin and end. A record after a pause is sent at
once."""
NO_ANSWER: Final = "no answer"


class Outbox:
    """A queue that takes records from any thread without waiting for the network, and delivers them in order.

    When `capacity` records wait, the oldest give way. What is dropped, there or by the delivery, is counted in
    `dropped` (segments). The host's log has a line when the endpoint begins to fail, when segments are lost, and when
    the endpoint takes everything again. `spacing_s`: from the start of one request to the start of the next. `where`:
    the endpoint in these lines. `clock_s`: of the minute between them.
    """

    def __init__(
        self,
        delivery: Delivery,
        capacity: int = CAPACITY,
        *,
        spacing_s: float = SPACING_S,
        where: str = "the endpoint",
        clock_s: Callable[[], float] = monotonic_s,
    ) -> None:
        self._delivery = delivery
        self._capacity = capacity
        self._spacing_s = spacing_s
        self._where = shown(where, OWN_CHARS)
        self._clock_s = clock_s
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
        self._log = HostLog(self._clock_s)
        self._batch: list[Record] = []  # that is being sent
        self._losses = Losses()  # since everything was delivered
        self._failing_since_s: float | None = None  # unix: the first attempt since then
        self._reason = NO_ANSWER  # of the newest failure since then
        self._said_late = self._said_lost = False
        self.dropped = 0

    def put(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        """Queue records for sending, at once if `urgent`; never waits for the network."""
        if not records:
            return
        lost: list[Record] = []
        with self._lock:
            self._queue.extend(records)
            self._taken += len(records)
            while len(self._queue) > self._capacity:
                lost.append(self._queue.popleft())
            self._settled += len(lost)
            self._count(lost)
            starts = not self._started and not self._closing
            self._started |= starts
            self._urgent |= urgent or len(self._queue) >= BATCH
            wakes = self._idle or self._urgent
        if starts:
            self._start()
        elif wakes:
            self._wake.set()
        if lost:
            self._say_lost(f"the queue of {self._capacity} is full: it is slow or away")

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
        """Send the queued records without delay or back-off; return whether all were delivered or dropped in time.

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
        """Send the queued records, each batch once, and stop; return whether all were delivered or dropped in time."""
        self.hurry(closing=True)
        complete = self.flush(timeout_s)
        if complete:
            self._delivery.close()
        return complete

    def undelivered(self) -> list[Undelivered]:
        """Return what the endpoint did not get since it last took everything, empty if it misses no segment."""
        with self._lock:
            losses = self._losses.with_all_of([*self._batch, *self._queue])
        since_s = wall_s() if self._failing_since_s is None else self._failing_since_s
        reason = shown(self._reason, OWN_CHARS)
        return [Undelivered(losses, self._where, since_s, reason)] if losses.segments else []

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
        if not batch:
            return False
        dropped, reason = self._deliver(batch)
        with self._lock:
            self._batch = []
            if dropped:
                self._count(batch, dropped)
                self._reason = reason
        if dropped:
            self._say_lost(reason)
        else:
            self._recovered()
        with self._lock:
            self._settled += len(batch)
        return True

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
            batch = self._batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            if self._failing_since_s is None:
                self._failing_since_s = wall_s()
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
            return len(batch), shown(error)

    def _pause(self, seconds: float, reason: str) -> bool:
        self._failures += 1
        self._reason = reason
        if not (self._said_late or self._closing):
            words = "telemetry is late (%s): trying again for up to %.0f s to send it to %s"
            self._said_late = self._log.warning(words, shown(reason, OWN_CHARS), RETRY_FOR_S, self._where)
        until_s = monotonic_s() + seconds
        while not (self._closing or self._hurry) and (left_s := until_s - monotonic_s()) > 0:
            self._wake.wait(left_s)
        if not self._closing:
            self._hurry = False
        return not self._closing

    def _count(self, records: Sequence[Record], most: int | None = None) -> None:
        # A partial success does not say which spans were rejected.
        self.dropped += self._losses.add(records, most)

    def _say_lost(self, reason: str) -> None:
        # An end of the process has a line of its own, which `undelivered` is for.
        if not (self._said_lost or self._closing):
            words = "%s could not be sent to %s (%s); later ones are only counted"
            lost = shown(self._losses), self._where, shown(reason, OWN_CHARS)
            self._said_lost = self._log.warning(words, *lost)

    def _recovered(self) -> None:
        if (self._said_late or self._losses.segments) and not self._say_recovered():
            return  # said a moment ago: the next success says it, or the end of the process
        with self._lock:
            self._losses = Losses()
        self._said_late = self._said_lost = False
        self._reason = NO_ANSWER
        self._failing_since_s = None

    def _say_recovered(self) -> bool:
        if self._losses.segments:
            return self._log.warning(
                "telemetry is delivered to %s again; %s are lost", self._where, shown(self._losses)
            )
        return self._log.warning("telemetry is delivered to %s again", self._where)
