"""Write lines for a terminal in a thread, so that a slow or stopped terminal delays nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.shared.bounded_queue import BoundedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_LINES: Final = 10_000


class BackgroundWriter(BoundedQueue[str]):
    """A thread that writes lines through `echo`, in order.

    At most `most` lines wait; a line says how many are left out beyond them. Once writing fails (a closed pipe)
    nothing more is written.
    """

    def __init__(self, echo: Callable[[str], None], most: int = MOST_LINES) -> None:
        super().__init__("otel-llm-terminal", capacity=most, batch=most)
        self._echo = echo
        self._gone = False

    def __call__(self, line: str) -> None:
        """Take a line; never waits, never raises."""
        self.offer(line)

    def _work(self, items: Sequence[str], dropped: int) -> None:
        if self._gone:
            return
        try:
            for line in items:
                self._echo(line)
            if dropped:
                self._echo(f"... {dropped} lines left out: they came faster than they were read")
        except (OSError, ValueError):
            self._gone = True
