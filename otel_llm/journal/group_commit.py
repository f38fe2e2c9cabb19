"""Group commit: one flush serves all writes before it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class GroupCommit:
    """Runs `flush` in the thread of the first waiter, one at a time; safe from any thread.

    Threads that arrive during a flush wait for it; then one of them flushes for all. With a slow disk a writer waits
    for two flushes at most, however many writers there are.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._turn = threading.Condition()
        self._flushing = False

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`; a flush that begins after this call must make it true.

        Raises:
            Exception: what `flush` raises.
        """
        while not done():
            with self._turn:
                if self._flushing:
                    self._turn.wait_for(lambda: not self._flushing)
                    continue
                self._flushing = True
            self._run()

    def flush_now(self) -> None:
        """Flush all writes up to now.

        Raises:
            Exception: what `flush` raises.
        """
        with self._turn:
            self._turn.wait_for(lambda: not self._flushing)
            self._flushing = True
        self._run()

    def _run(self) -> None:
        try:
            self._flush()
        finally:
            with self._turn:
                self._flushing = False
                self._turn.notify_all()


class IntervalFlush:
    """A thread that flushes soon after a write, at most once in `interval_s`."""

    def __init__(self, flush: Callable[[], None], interval_s: float) -> None:
        self._flush = flush
        self._interval_s = interval_s
        self._written = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-llm-journal-sync", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def written(self) -> None:
        """Note a write."""
        if not self._written.is_set():
            self._written.set()

    def stop(self) -> None:
        """End the thread; the caller flushes writes after its last flush."""
        self._stop.set()
        self._written.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._written.wait()
            if self._stop.is_set():
                return
            self._written.clear()
            try:
                self._flush()
            except Exception:  # a bug must not end the flushing of later records
                log.exception("otel-llm: the journal could not be flushed")
            if self._stop.wait(self._interval_s):
                return
