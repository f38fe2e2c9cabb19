"""The only place of the service that reads clocks: a wall clock that never steps, and the fake one for tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    """Give the service's own time."""

    def now_ns(self) -> int:
        """Return unix nanoseconds that never go backwards and never step."""
        ...


@dataclass(frozen=True, slots=True)
class MonotonicClock:
    """Read the wall clock once and count monotonic time from there: a step of the wall clock makes no decision."""

    _anchor_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    def now_ns(self) -> int:
        """Return unix nanoseconds as of the start of the process plus what has passed since."""
        return self._anchor_ns + time.monotonic_ns()


@dataclass(slots=True)
class FakeClock:
    """A clock that stands still until told otherwise."""

    at_ns: int = 1_790_000_000_000_000_000

    def now_ns(self) -> int:
        """Return the time it was set to."""
        return self.at_ns

    def pass_s(self, seconds: float) -> int:
        """Let time pass; return the new time."""
        self.at_ns += round(seconds * 1e9)
        return self.at_ns
