"""How late the event loop is: what arrives meanwhile waits here, and its backend is not to blame."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable

BEAT_S: Final = 0.02
NOTICED_NS: Final = 5_000_000
"""A beat that is later than this was held up; a smaller lateness is usual of a timer."""


class LoopLag:
    """A beat of the event loop; `observe` gets the lateness of each (s). All instants are ns of `clock_ns`."""

    def __init__(self, observe: Callable[[float], None], clock_ns: Callable[[], int] = monotonic_ns) -> None:
        self._observe = observe
        self._clock_ns = clock_ns
        self._due_ns = 0
        self._next: asyncio.TimerHandle | None = None
        self._since_ns = 0
        """Since when the loop was held up the last time."""
        self._until_ns: int | None = 0
        """Until when what had come meanwhile was received; None: that is under way."""

    def start(self) -> None:
        """Begin to beat, in the running loop."""
        self._due_ns = self._clock_ns() + round(BEAT_S * 1e9)
        self._next = asyncio.get_running_loop().call_later(BEAT_S, self.beat)

    def stop(self) -> None:
        """End the beat."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def beat(self) -> None:
        """Note how late this beat is; the next one is due a while later."""
        now_ns, due_ns = self._clock_ns(), self._due_ns
        self._observe(max(0, now_ns - due_ns) / 1e9)
        if now_ns - due_ns >= NOTICED_NS:
            self._since_ns, self._until_ns = due_ns, None
            self._after_a_turn(lambda: self._after_a_turn(self._received))  # sockets may have their turn behind timers
        self.start()

    def _after_a_turn(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)

    def _received(self) -> None:
        self._until_ns = self._clock_ns()

    def arrived_ns(self, received_ns: int) -> int:
        """Return since when bytes may have waited that the process received at `received_ns`.

        What it received as the first thing after it was held up may have come at any instant of that.
        """
        held = self._since_ns < received_ns and (self._until_ns is None or received_ns <= self._until_ns)
        return self._since_ns if held else received_ns
