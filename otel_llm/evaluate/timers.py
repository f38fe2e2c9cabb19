"""The virtual clock of evaluation, and its timers."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.formats.records import StreamKey

Timer = Literal["complete", "lost", "orphan", "forget", "evaluate"]
"""`complete`: judge a stream whose end was received. `lost`: judge a silent stream. `orphan`: judge a request span
without segments. `forget`: forget a judged request. `evaluate`: evaluate the rules of a stream of this process."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long the evaluator waits, in ns."""

    lateness_ns: int = 5_000_000_000
    """For missing parts: a segment, the request span, the rest of a window."""
    lost_after_ns: int = 120_000_000_000
    """For the next segment of a silent stream."""


@dataclass(slots=True)
class Timers:
    """The virtual clock, which is monotonic, and its timers; instants are unix ns of the collector's clock."""

    now_ns: int = 0
    _due: list[tuple[int, int, Timer, StreamKey]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)

    def move_to(self, now_ns: int) -> None:
        """Advance the clock to an instant; one in the past changes nothing."""
        self.now_ns = max(self.now_ns, now_ns)

    def schedule(self, at_ns: int, what: Timer, key: StreamKey) -> None:
        """Add a timer of a stream, or of its request."""
        heapq.heappush(self._due, (at_ns, next(self._order), what, key))

    def next_due(self) -> int | None:
        """Return the instant of the next timer; None if there is none."""
        return self._due[0][0] if self._due else None

    def pop_due(self, until_ns: int) -> Iterator[tuple[Timer, StreamKey]]:
        """Yield the timers due up to an instant, by time, then in order of scheduling."""
        while self._due and self._due[0][0] <= until_ns:
            _, _, what, key = heapq.heappop(self._due)
            yield what, key


def earliest(*instants: int | None) -> int | None:
    """Return the first of some instants; None if there is none."""
    return min((instant for instant in instants if instant is not None), default=None)
