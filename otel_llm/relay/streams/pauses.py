"""The paused streams of a relay: how many there may be, and when each of them resumes.

A pause takes a stream from its backend while its reader has text left, and leaves the client's connection open.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from otel_llm.relay.settings import Preempt

EVALUATION_EVERY_S: Final = 0.1
"""The interval of checks whether a paused stream is due."""


@dataclass(slots=True, eq=False)
class Pause:
    """One pause of one stream.

    `source`: the backend that served it; `runway_s`: the text that its reader has left, in seconds of reading.
    """

    source: str
    runway_s: Callable[[], float | None]
    begun_s: float
    due: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    """Why the stream resumes, once `due` is set: `runway` or `calm`."""

    def wake(self, reason: str) -> None:
        """End the pause; the first reason stays."""
        if not self.due.is_set():
            self.reason = reason
            self.due.set()


class Pauses:
    """The pauses in progress; used in one event loop.

    `starving`: returns the backends with a starving reader that has read tokens; `counted` is called for each pause
    that begins.
    """

    def __init__(self, settings: Preempt, starving: Callable[[], Container[str]], counted: Callable[[], None]) -> None:
        self._settings = settings
        self._counted = counted
        self._starving = starving
        self._pauses: set[Pause] = set()
        self._starved_s: dict[str, float] = {}
        """When a reader of a backend was last seen to starve (s of the loop's clock)."""
        self._watching: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[Pause]:
        return iter(self._pauses)

    def __len__(self) -> int:
        return len(self._pauses)

    @property
    def full(self) -> bool:
        """Tell whether no further stream may be paused."""
        return len(self._pauses) >= self._settings.max_paused

    @property
    def refusal(self) -> str:
        """Return the reason for refusing another pause."""
        return f"{len(self._pauses)} streams are paused already"

    def begin(self, source: str, runway_s: Callable[[], float | None]) -> Pause:
        """Begin a pause; the caller ends it by `end` in every case."""
        loop = asyncio.get_running_loop()
        pause = Pause(source, runway_s, loop.time())
        self._pauses.add(pause)
        self._counted()
        if self._watching is None:
            self._watching = loop.create_task(self._watch())
        return pause

    def end(self, pause: Pause) -> None:
        """Remove a pause."""
        self._pauses.discard(pause)

    async def _watch(self) -> None:
        """Check the pauses while there are any."""
        loop = asyncio.get_running_loop()
        try:
            while self._pauses:
                self._evaluate(loop.time())
                await asyncio.sleep(EVALUATION_EVERY_S)
        finally:
            self._watching = None
            self._starved_s.clear()

    def _evaluate(self, now_s: float) -> None:
        starving = self._starving()
        for source in {pause.source for pause in self._pauses}:
            if source in starving:
                self._starved_s[source] = now_s
        # The reader with the least left goes first: placement then counts those before it.
        runways = [(pause.runway_s(), pause) for pause in self._pauses]
        for runway_s, pause in sorted(runways, key=lambda one: one[0] or 0.0):
            if runway_s is None or runway_s < self._settings.resume_runway_s:
                pause.wake("runway")
            elif now_s - max(pause.begun_s, self._starved_s.get(pause.source, 0.0)) >= self._settings.calm_s:
                pause.wake("calm")
