"""The clocks of the service, read nowhere else: those of `time`, a wall clock that never steps, a fake for tests."""

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
    """The service's own time."""

    def start_after(self, instant_ns: int) -> None:
        """Return only later times than `instant_ns` (unix ns); call it before the first reading."""

    def now_ns(self) -> int:
        """Return unix ns, monotonic and without steps."""
        ...

    def unix_ns(self, monotonic_ns: int) -> int:
        """Return the time of `now_ns` at an instant of the monotonic clock, also of another process."""
        ...


@dataclass(slots=True)
class MonotonicClock:
    """The wall clock, read once, plus monotonic time: a step of the wall clock has no effect."""

    _anchor_ns: int = field(default_factory=lambda: time.time_ns() - time.monotonic_ns())

    def start_after(self, instant_ns: int) -> None:
        """Advance past `instant_ns` if the wall clock was set back before it."""
        self._anchor_ns += max(0, instant_ns + 1 - self.now_ns())

    def now_ns(self) -> int:
        """Return the unix ns of the start of the process plus the time since then."""
        return self.unix_ns(time.monotonic_ns())

    def unix_ns(self, monotonic_ns: int) -> int:
        """Return the time of `now_ns` at an instant of the monotonic clock, which all processes share."""
        return self._anchor_ns + monotonic_ns


@dataclass(slots=True)
class FakeClock:
    """A clock that stands still until a test advances it."""

    at_ns: int = 1_790_000_000_000_000_000

    def now_ns(self) -> int:
        """Return the set time."""
        return self.at_ns

    def unix_ns(self, monotonic_ns: int) -> int:  # noqa: ARG002
        """Return the set time, whatever the instant."""
        return self.at_ns

    def start_after(self, instant_ns: int) -> None:
        """Advance past an instant, unless it has passed."""
        self.at_ns = max(self.at_ns, instant_ns + 1)

    def pass_s(self, seconds: float) -> int:
        """Advance by `seconds`, and return the new time (unix ns)."""
        self.at_ns += round(seconds * 1e9)
        return self.at_ns
