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


class Signals:
    """What the process is told from outside, one after the other, for the main thread.

    SIGHUP: reload, SIGTERM and SIGINT: stop; the second of these ends the process at once.
    """

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._stopping = False
        for told in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(told, self._take)

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
        self._told.put(signum)


def exit_now(status: int, words: str = "") -> NoReturn:
    """End the process without waiting for anything, not even for somebody to read the words."""
    with suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, words.encode())
    os._exit(status)
