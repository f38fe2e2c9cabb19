"""The background thread that cuts all streams every 250 ms, silent ones when due, urgent ones at once."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from otel_llm.export import host_log, threads
from otel_llm.instrumentation.segments.timeline import FLUSH_INTERVAL_NS, MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.core.recorder_environment import Flushable

COALESCE_NS: Final = 25 * MS
"""The least time between two checks. Silent streams fall due each at its own time; this bounds the wake-ups to 40 a
second. A check so shortly before all streams are cut would only cut many of them twice."""

LINGER_NS: Final = 2_000 * MS
"""How long the thread keeps its rhythm without streams, so that not every request must wake it."""


Item = TypeVar("Item")


def next_look(now_ns: int, flush_ns: int, due_ns: int | None) -> int:
    """Return the instant of the next check of streams; the first is due for an empty segment at `due_ns`.

    `flush_ns`: when all of them are cut next, after `now_ns`.
    """
    look_ns = flush_ns if due_ns is None else max(due_ns, now_ns + COALESCE_NS)
    return look_ns if look_ns < flush_ns - COALESCE_NS else flush_ns


@dataclass(slots=True)
class _Completion:
    """A request to cut all streams; `exiting`: and to end them all. `done` is set afterwards."""

    exiting: bool
    done: bool = False


class Flusher:
    """The streams in flight, and when to cut them; `step` does one round and can be driven by a test.

    The thread is started by the first stream, sleeps without a time limit while none is in flight, and is a daemon: the
    process's end is the runtime's affair. It alone looks at streams and ends those that were left, so no lock is held
    while a span processor of the application runs. `after` is called after each step, for what can wait until then;
    `start` starts the thread.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int],
        after: Callable[[], None] | None = None,
        *,
        start: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock_ns = clock_ns
        self._after = after
        self._start_thread = start
        self._reset()

    def _reset(self) -> None:
        self._active: list[Flushable] = []
        self._new: deque[Flushable] = deque()
        self._urgent: deque[Flushable] = deque()
        self._completing: deque[_Completion] = deque()
        self._wake = threads.Wake()
        self._lock = threads.lock()
        self._started = False
        self._running = False
        self._idle = False
        self._stopped = False
        self._next_flush_ns = 0
        self._leave_ns: int | None = None

    @property
    def in_flight(self) -> int:
        """Return the number of recorded streams."""
        return len(self._active) + len(self._new)

    def add(self, recording: Flushable) -> None:
        """Cut a recording from now on, until it is done."""
        if not self._started:
            self._start()
        self._new.append(recording)
        if self._idle:
            self._wake.set()

    def urge(self, recording: Flushable) -> None:
        """Cut a recording at once."""
        self._urgent.append(recording)
        self._wake.set()

    def complete(self, timeout_s: float, *, exiting: bool = False) -> bool:
        """Cut all streams, and end those that were left; return whether it was done in time.

        `exiting`: end every stream, the process ends.
        """
        if not self._running:
            return True
        completion = _Completion(exiting)
        self._completing.append(completion)
        self._wake.set()
        return threads.wait_until(lambda: completion.done, timeout_s)

    def leave_at(self, at_ns: int) -> None:
        """End every stream that is open at `at_ns` (monotonic), at the next round after it."""
        self._leave_ns = at_ns

    def step(self, now_ns: int, *, complete: bool = False, exiting: bool = False) -> int | None:
        """Cut the streams due at `now_ns` (monotonic); return when to run again, None while nothing is in flight.

        `complete`: cut all, and end those that were left; `exiting`: end every stream, the process ends.
        """
        try:
            return self._evaluate(now_ns, complete=complete, exiting=exiting)
        finally:
            if self._after is not None:
                self._after()

    def _evaluate(self, now_ns: int, *, complete: bool, exiting: bool) -> int | None:
        urgent = _drained(self._urgent)
        self._active += _drained(self._new)
        flush = complete or exiting or now_ns >= self._next_flush_ns
        if flush:
            self._next_flush_ns = now_ns + FLUSH_INTERVAL_NS
        for recording in urgent:
            recording.tick(now_ns, urgent=True)
        for recording in self._active if flush else self._silent(now_ns):
            recording.tick(now_ns, complete=complete, exiting=exiting)
        self._active = [recording for recording in self._active if not recording.done]
        if not self._active:
            return None
        dues = [due for recording in self._active if (due := recording.due_ns) is not None]
        return next_look(now_ns, self._next_flush_ns, min(dues, default=None))

    def _silent(self, now_ns: int) -> list[Flushable]:
        return [recording for recording in self._active if (due := recording.due_ns) is not None and due <= now_ns]

    def stop(self, timeout_s: float) -> None:
        """End the thread, and forget the streams without ending them; wait for that at most `timeout_s`."""
        self._stopped = True
        self._wake.set()
        threads.wait_until(lambda: not self._running, timeout_s)

    def after_fork(self) -> None:
        """Start clean in a forked child: the parent goes on with its streams, the child's copies are not recorded."""
        for recording in [*self._active, *self._new]:
            recording.detach()
        self._reset()

    def _start(self) -> None:
        with self._lock:
            starts = not self._started and not self._stopped
            self._started |= starts
            self._running |= starts
        if starts:
            try:
                (self._start_thread or threads.start)(self._run)
            except BaseException:  # no more threads: the next stream tries again
                self._started = self._running = False
                raise

    def _run(self) -> None:
        busy_ns = self._clock_ns()
        while not self._stopped:
            now_ns = self._clock_ns()
            next_ns: int | None = now_ns + FLUSH_INTERVAL_NS
            completing = _drained(self._completing)
            exiting = any(completion.exiting for completion in completing)
            exiting |= self._leave_ns is not None and now_ns >= self._leave_ns
            try:
                next_ns = self.step(now_ns, complete=bool(completing), exiting=exiting)
                if next_ns is not None:
                    busy_ns = now_ns
                elif now_ns - busy_ns < LINGER_NS:
                    next_ns = now_ns + FLUSH_INTERVAL_NS
            except Exception as bug:  # noqa: BLE001  a recording guards itself; any other failure must not end the thread
                host_log.say(logging.DEBUG, "otel_llm could not cut its streams: %s", bug)
            for completion in completing:
                completion.done = True
            self._idle = next_ns is None
            if self._idle and (self._new or self._urgent):  # added before the line above took effect
                continue
            self._wake.wait(None if next_ns is None else max(next_ns - self._clock_ns(), 0) / 1e9)
            self._idle = False
        for recording in [*self._active, *_drained(self._new)]:
            recording.give_up()
        self._active = []
        self._running = False


def _drained(queue: deque[Item]) -> list[Item]:
    items = []
    with contextlib.suppress(IndexError):
        while True:
            items.append(queue.popleft())
    return items
