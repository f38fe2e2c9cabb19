"""The facts of a request in flight at an instant, and how they change between tokens."""

from __future__ import annotations

from typing import NamedTuple


class InFlight(NamedTuple):
    """The facts of a stream at one instant; lengths in ns, None if a fact is missing.

    `idle_ns`, `idle_decode_ns` and `runway_ns` are the in-flight values (the reader's present wait included),
    `deadlines` and `deadline_misses` include those that are overdue; all three fluidity facts are None while the
    class's first-token curve lacks the prompt's length.
    """

    tokens: int
    tokens_read: int
    age_ns: int
    ttft_ns: int | None
    gap_ns: int
    idle_ns: int
    idle_decode_ns: int
    runway_ns: int
    rate_tokens_per_second: float | None
    deadlines: int | None
    deadline_misses: int | None
    fluidity_index: float | None


class Line(NamedTuple):
    """A fact that is linear between tokens: max(floor, slope (x - zero)); no floor if that is None.

    `zero_ns` is an instant on the axis on which the stream's tokens were given; a slope of 0 is a constant floor.
    """

    floor_ns: int | None
    slope: int
    zero_ns: int

    def value(self, x_ns: int) -> int:
        """Return the fact at an instant, in ns."""
        moving = self.slope * (x_ns - self.zero_ns)
        return moving if self.floor_ns is None or moving > self.floor_ns else self.floor_ns


class Lines(NamedTuple):
    """The linear facts of a stream, valid from its last token to its next."""

    age: Line
    gap: Line
    idle: Line
    idle_decode: Line
    runway: Line
