"""The only place of the service that reads clocks: those of `time`, a wall clock that never steps, a fake for tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final, Protocol

monotonic_ns: Final = time.monotonic_ns
"""Nanoseconds that never step; all processes of the machine share them."""
monotonic_s: Final = time.monotonic
"""The same clock, in seconds."""
wall_ns: Final = time.time_ns
"""Unix nanoseconds of the wall clock, which may step: to compare with instants of other machines."""


class Clock(Protocol):
    """Give the service's own time."""

    def start_after(self, instant_ns: int) -> None:
        """Give only later times than this; called before the first is asked for."""

    def now_ns(self) -> int:
        """Return unix nanoseconds that never go backwards and never step."""
        ...

    def unix_ns(self, monotonic_ns: int) -> int:
        """Return what `now_ns` gave at an instant that another process took from the monotonic clock."""
        ...


@dataclass(slots=True)
class MonotonicClock:
    """Read the wall clock once and count monotonic time from there: a step of the wall clock makes no decision."""

    _anchor_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    def start_after(self, instant_ns: int) -> None:
        """Run ahead of the wall clock where that was set back behind an instant that is on record."""
        self._anchor_ns += max(0, instant_ns + 1 - self.now_ns())

    def now_ns(self) -> int:
        """Return unix nanoseconds as of the start of the process plus what has passed since."""
        return self.unix_ns(time.monotonic_ns())

    def unix_ns(self, monotonic_ns: int) -> int:
        """Return what `now_ns` gives at an instant of the monotonic clock, which all processes share."""
        return self._anchor_ns + monotonic_ns


@dataclass(slots=True)
class FakeClock:
    """A clock that stands still until told otherwise."""

    at_ns: int = 1_790_000_000_000_000_000

    def now_ns(self) -> int:
        """Return the time it was set to."""
        return self.at_ns

    def unix_ns(self, monotonic_ns: int) -> int:  # noqa: ARG002
        """Return the time it was set to: nothing else passes here."""
        return self.at_ns

    def start_after(self, instant_ns: int) -> None:
        """Move on past an instant, if it is not over."""
        self.at_ns = max(self.at_ns, instant_ns + 1)

    def pass_s(self, seconds: float) -> int:
        """Let time pass; return the new time."""
        self.at_ns += round(seconds * 1e9)
        return self.at_ns
