"""What a running service is told by signals."""

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

LOOK_EVERY_S: Final = 0.5
"""How long a signal may go unseen."""


class StoppedEarly(BaseException):
    """Say that the service is to stop while it starts."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Signals:
    """What the process is told from outside, one after the other, for the main thread.

    SIGHUP: reload, SIGTERM and SIGINT: stop; the second of these ends the process at once. Until `started`, the first
    raises StoppedEarly wherever the main thread is: a start may take minutes, or wait for a file.
    """

    def __init__(self) -> None:
        self._starting = True
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stopping = False
        for told in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(told, self._take)

    def started(self) -> None:
        """Take note that the start is over: from now on whoever asks `next` is told."""
        self._starting = False

    def next(self) -> int:
        """Return the next signal, waiting for it."""
        while True:
            # A signal that another thread takes, or that comes just before the wait, does not end the wait.
            with suppress(queue.Empty):
                return self._told.get(timeout=LOOK_EVERY_S)

    def exit_after(self, seconds: float) -> None:
        """End the process if it still runs then: also one whose output nobody reads."""
        last = threading.Timer(seconds, exit_now, (1, f"otel-llm: not stopped after {seconds:g} s: ended\n"))
        last.daemon = True
        last.start()

    def _take(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if signum != signal.SIGHUP:
            if self._stopping:
                exit_now(128 + signum, "otel-llm: ended at once\n")
            self._stopping = True
            if self._starting:
                raise StoppedEarly(signum)
        self._told.put(signum)


def end_early(stopped: StoppedEarly) -> NoReturn:
    """End the process that was told to stop while it started."""
    exit_now(128 + stopped.signum, "otel-llm: stopped while it started\n")


def exit_now(status: int, words: str = "") -> NoReturn:
    """End the process without waiting for anything, not even for somebody to read the words."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, words.encode())
    os._exit(status)
