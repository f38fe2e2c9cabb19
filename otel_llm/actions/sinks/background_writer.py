"""Write lines for a terminal in a thread, so that a slow or stopped terminal delays nothing."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LINES: Final = 10_000


class BackgroundWriter:
    """A thread that writes lines through `echo`, in order.

    At most `most` lines wait; beyond them lines are left out, and a line says how many. Once writing fails (a closed
    pipe) nothing more is written.
    """

    def __init__(self, echo: Callable[[str], None], most: int = MOST_LINES) -> None:
        self._echo = echo
        self._most = most
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="otel-llm-terminal", daemon=True)

    def __call__(self, line: str) -> None:
        """Take a line; never waits, never raises."""
        with self._changed:
            if len(self._lines) >= self._most:
                self._left_out += 1
                return
            self._lines.append(line)
            self._changed.notify()

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Write what waits, for at most so many seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(grace_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._left_out or self._stopping)
                lines, self._lines = self._lines, deque()
                left_out, self._left_out = self._left_out, 0
                if not lines and not left_out:
                    return
            try:
                for line in lines:
                    self._echo(line)
                if left_out:
                    self._echo(f"... {left_out} lines left out: they came faster than they were read")
            except (OSError, ValueError):
                self._most = 0  # the reader has gone
