"""Group commit: one flush serves all that wrote before it began."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class GroupCommit:
    """Run `flush` in one thread at a time, that of whoever needs it first; safe to use from several.

    Who comes while it runs waits, and of those that it did not serve one runs it for all of them. So a slow disk
    costs each of many writers two flushes at most, not one for every other writer.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._turn = threading.Condition()
        self._flushing = False

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Return once `done`; it must be so after a flush that began after this was called. Raises what flush does."""
        while not done():
            with self._turn:
                if self._flushing:
                    self._turn.wait_for(lambda: not self._flushing)
                    continue
                self._flushing = True
            self._run()

    def flush_now(self) -> None:
        """Flush what was written up to now. Raises what flush does."""
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
    """A thread that flushes soon after something was written, and then not again before `interval_s` passed."""

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
        """Say that there is something to flush."""
        if not self._written.is_set():
            self._written.set()

    def stop(self) -> None:
        """End the thread; what was written since its last flush is left to the caller."""
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
            except Exception:  # a bug of ours must not end the making safe of what comes
                log.exception("otel-llm: the journal could not be flushed")
            if self._stop.wait(self._interval_s):
                return
