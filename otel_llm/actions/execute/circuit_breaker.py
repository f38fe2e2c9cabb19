"""A circuit breaker: nothing more is sent to a receiver that hangs, until one action shows that it answers again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HANGS: Final = 5
"""Actions in a row that used up their time, after which the circuit opens."""
FIRST_OPEN_S: Final = 5.0
LONGEST_OPEN_S: Final = 60.0
CIRCUIT_OPEN: Final = "action_circuit_open."
"""The prefix, before the receiver's name, of counts that are 1 while nothing is sent to it."""


@dataclass(slots=True)
class CircuitBreaker:
    """The breaker of one receiver; not thread-safe, times are instants of one clock in ns.

    Only time that was used up counts: an error that comes at once delays no other action.
    """

    _hangs: int = 0
    _opened: int = 0
    """How often it has opened since the last answer: each time for twice as long."""
    _until_ns: int | None = None
    _probing: bool = False

    @property
    def open(self) -> bool:
        """Return whether actions are held back, but for a probe."""
        return self._until_ns is not None

    def refusal(self, now_ns: int) -> str | None:
        """Return why nothing may be sent now, None if it may."""
        if self._until_ns is None or (now_ns >= self._until_ns and not self._probing):
            return None
        wait_s = max(0.0, (self._until_ns - now_ns) / 1e9)
        when = "the first is being sent again" if self._probing else f"the next is sent in {wait_s:.0f} s"
        return f"circuit open: {self._hangs} actions in a row had no answer in time; {when}"

    def begin(self) -> None:
        """Note that an action is sent; while the circuit is open it is the probe."""
        self._probing = self.open

    def end(self, now_ns: int, *, hung: bool | None) -> None:
        """Note how a sent action went: `hung` if it had no answer in time, None if it was not sent after all."""
        if hung is None:
            self._probing = False
        elif not hung:
            self._hangs, self._opened, self._until_ns, self._probing = 0, 0, None, False
        else:
            self._hangs += 1
            if self._probing or (self._until_ns is None and self._hangs >= HANGS):
                self._until_ns = now_ns + round(min(FIRST_OPEN_S * 2.0**self._opened, LONGEST_OPEN_S) * 1e9)
                self._opened = min(self._opened + 1, 16)
                self._probing = False
