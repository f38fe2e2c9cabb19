"""The background thread that cuts all streams every 250 ms, silent ones when they must say so, urgent ones at once."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from otel_llm.instrumentation.timeline import FLUSH_INTERVAL_NS, MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.recording import Recording

COALESCE_NS: Final = 25 * MS
"""Silent streams fall due each at its own time; looking at most this often bounds the wake-ups to 40 a second, and a
look so shortly before all streams are cut would only cut many of them twice."""

LINGER_NS: Final = 2_000 * MS
"""How long the thread keeps its rhythm when nothing is in flight, so that not every request has to wake it."""

_log: Final = logging.getLogger("otel_llm")


def next_look(now_ns: int, flush_ns: int, due_ns: int | None) -> int:
    """Return when to look again at streams of which the first to be silent must say so at `due_ns`.

    `flush_ns`: when all of them are cut next, after `now_ns`.
    """
    look_ns = flush_ns if due_ns is None else max(due_ns, now_ns + COALESCE_NS)
    return look_ns if look_ns < flush_ns - COALESCE_NS else flush_ns


class Flusher:
    """Keeps the streams in flight and decides when to look at them; `step` does one look and can be driven by a test.

    The thread is started by the first stream, sleeps without a time limit while none is in flight, and is a daemon: the
    process's end is the runtime's affair. `after` is called after each look, for what can wait until then.
    """

    def __init__(self, clock_ns: Callable[[], int], after: Callable[[], None] | None = None) -> None:
        self._clock_ns = clock_ns
        self._after = after
        self._reset()

    def _reset(self) -> None:
        self._active: list[Recording] = []
        self._new: deque[Recording] = deque()
        self._urgent: deque[Recording] = deque()
        self._wake = threading.Event()
        self._stepping = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._idle = False
        self._stopped = False
        self._next_flush_ns = 0

    @property
    def in_flight(self) -> int:
        """Return how many streams are being recorded."""
        return len(self._active) + len(self._new)

    def add(self, recording: Recording) -> None:
        """Look at a recording from now on, until it is done."""
        self._new.append(recording)
        if self._thread is None:
            self._start()
        if self._idle:
            self._wake.set()

    def urge(self, recording: Recording) -> None:
        """Look at a recording at once."""
        self._urgent.append(recording)
        self._wake.set()

    def step(self, now_ns: int, *, settle: bool = False, leaving: bool = False) -> int | None:
        """Look at whoever is due at `now_ns` (monotonic); return when to look again, None while nothing is in flight.

        `settle`: look at all, and end those that were left; `leaving`: end every stream, the process ends.
        """
        try:
            return self._look(now_ns, settle=settle, leaving=leaving)
        finally:
            if self._after is not None:
                self._after()

    def _look(self, now_ns: int, *, settle: bool, leaving: bool) -> int | None:
        with self._stepping:
            urgent = _drained(self._urgent)
            self._active += _drained(self._new)
            flush = settle or leaving or now_ns >= self._next_flush_ns
            if flush:
                self._next_flush_ns = now_ns + FLUSH_INTERVAL_NS
            for recording in urgent:
                recording.tick(now_ns, urgent=True)
            for recording in self._active if flush else self._silent(now_ns):
                recording.tick(now_ns, settle=settle, leaving=leaving)
            self._active = [recording for recording in self._active if not recording.done]
            if not self._active:
                return None
            dues = [due for recording in self._active if (due := recording.due_ns) is not None]
            return next_look(now_ns, self._next_flush_ns, min(dues, default=None))

    def _silent(self, now_ns: int) -> list[Recording]:
        return [recording for recording in self._active if (due := recording.due_ns) is not None and due <= now_ns]

    def stop(self) -> None:
        """Let the thread end, and forget the streams without ending them."""
        self._stopped = True
        self._wake.set()
        with self._stepping:
            for recording in [*self._active, *_drained(self._new)]:
                recording.give_up()
            self._active = []

    def after_fork(self) -> None:
        """Start clean in a forked child: the parent goes on with its streams, the child's copies are not recorded."""
        for recording in [*self._active, *self._new]:
            recording.detach()
        self._reset()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="otel-llm-flush", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        busy_ns = self._clock_ns()
        while not self._stopped:
            now_ns = self._clock_ns()
            next_ns: int | None = now_ns + FLUSH_INTERVAL_NS
            try:
                next_ns = self.step(now_ns)
                if next_ns is not None:
                    busy_ns = now_ns
                elif now_ns - busy_ns < LINGER_NS:
                    next_ns = now_ns + FLUSH_INTERVAL_NS
            except Exception:  # noqa: BLE001  a recording guards itself; whatever is left must not end the thread
                with contextlib.suppress(Exception):
                    _log.debug("otel_llm could not look at its streams", exc_info=True)
            self._idle = next_ns is None
            if self._idle and (self._new or self._urgent):  # came before the line above took effect
                continue
            self._wake.wait(None if next_ns is None else max(next_ns - self._clock_ns(), 0) / 1e9)
            self._wake.clear()
            self._idle = False


def _drained(queue: deque[Recording]) -> list[Recording]:
    items = []
    with contextlib.suppress(IndexError):
        while True:
            items.append(queue.popleft())
    return items
