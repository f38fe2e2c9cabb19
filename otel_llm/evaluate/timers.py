"""The virtual clock of evaluation, and what falls due on it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.readers.records import StreamKey

Timer = Literal["settle", "lost", "orphan", "forget"]
"""What falls due: a stream whose end was received is judged; one that is silent is lost; a request span is judged for
want of segments; a request is forgotten."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Durations in ns after which the evaluator waits no longer."""

    lateness_ns: int = 5_000_000_000
    """For what is missing: a segment in the middle, the request span, the rest of a window."""
    lost_after_ns: int = 120_000_000_000
    """For a stream that went silent without an end."""


@dataclass(slots=True)
class Timers:
    """Keep the virtual clock, which never goes back; instants in ns of the collector's time."""

    now_ns: int = 0
    _due: list[tuple[int, int, Timer, StreamKey]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)

    def move_to(self, now_ns: int) -> None:
        """Let time pass up to an instant; one in the past changes nothing."""
        self.now_ns = max(self.now_ns, now_ns)

    def schedule(self, at_ns: int, what: Timer, key: StreamKey) -> None:
        """Have something happen to a stream, or to its request, at an instant."""
        heapq.heappush(self._due, (at_ns, next(self._order), what, key))

    def next_due(self) -> int | None:
        """Return when the next of them is due, None if none is."""
        return self._due[0][0] if self._due else None

    def pop_due(self, until_ns: int) -> Iterator[tuple[Timer, StreamKey]]:
        """Yield what is due up to an instant, by time and then in the order in which it was scheduled."""
        while self._due and self._due[0][0] <= until_ns:
            _, _, what, key = heapq.heappop(self._due)
            yield what, key


def earliest(*instants: int | None) -> int | None:
    """Return the first of some instants, None where there is none."""
    return min((instant for instant in instants if instant is not None), default=None)
