"""Signals of a service: reload, stop, end at once."""

from __future__ import annotations

import os
import queue
import select
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from types import FrameType

    from otel_llm.actions.sinks.background_writer import BackgroundWriter

POLL_S: Final = 0.5
"""The longest delay of a signal that another thread has received."""
LAST_LINES_S: Final = 1.0
"""How long a service that has stopped waits until its last lines are read."""


class StoppedEarly(BaseException):
    """A signal asks the service to stop while it starts."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Signals:
    """The queue of signals, for the main thread.

    SIGHUP reloads; SIGTERM and SIGINT stop, and the second of these ends the process at once. Before `started`, the
    first raises StoppedEarly wherever the main thread is: a start may take minutes, or wait for a file.
    """

    def __init__(self) -> None:
        self._starting = True
        self._pending: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stopping = False
        for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._take)

    def started(self) -> None:
        """Note the end of the start: from now on `next` returns all signals."""
        self._starting = False

    def next(self) -> int:
        """Return the next signal, waiting for it."""
        while True:
            # A signal does not end the wait if another thread receives it, or if it arrives just before the wait.
            with suppress(queue.Empty):
                return self._pending.get(timeout=POLL_S)

    def exit_after(self, seconds: float) -> None:
        """End the process after `seconds`, even if it is blocked by an unread output."""
        timer = threading.Timer(seconds, exit_now, (1, f"otel-llm: not stopped after {seconds:g} s: ended\n"))
        timer.daemon = True
        timer.start()

    def _take(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if signum != signal.SIGHUP:
            if self._stopping:
                exit_now(128 + signum, "otel-llm: ended at once\n")
            self._stopping = True
            if self._starting:
                raise StoppedEarly(signum)
        self._pending.put(signum)


def end_early(stopped: StoppedEarly) -> NoReturn:
    """End a process whose start a signal has interrupted."""
    exit_now(128 + stopped.signum, "otel-llm: stopped while it started\n")


def end_service(lines: BackgroundWriter, last: str, *, clean: bool) -> None:
    """Write the last line of a service; end the process at once if the stop was not clean, or if nothing reads it."""
    lines(last)
    if not lines.stop(LAST_LINES_S):
        exit_now(1, "otel-llm: stopped; its last lines were not read\n")
    if not clean:
        exit_now(1)  # some threads may not have ended


def exit_now(status: int, message: str = "") -> NoReturn:
    """End the process at once; write the message to standard error unless that would block."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, message.encode())
    os._exit(status)
