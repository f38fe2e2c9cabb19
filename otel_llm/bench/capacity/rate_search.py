"""Where the next probe goes: a bracket by doubling, then bisection on the logarithm of the rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import log, sqrt
from typing import Literal

Verdict = Literal["holds", "fails", "undecided"]

_SAME: float = 1e-9
"""Rates closer than this share are the same."""


@dataclass(slots=True)
class RateSearch:
    """The state of a search between `bottom` and `top` requests/s; without I/O.

    `low`: the highest rate found to hold, `high`: the lowest found to fail; None if there is none. An undecided
    probe moves neither, and splits what is between them.
    """

    bottom: float
    top: float
    precision: float
    low: float | None = None
    high: float | None = None
    undecided: list[float] = field(default_factory=list)

    @property
    def decided(self) -> bool:
        """Return whether both ends are found, and no further apart than the precision."""
        return self.low is not None and self.high is not None and self.high / self.low <= 1 + self.precision

    def next_rate(self) -> float | None:
        """Return the rate of the next probe; None if nothing more can be learned: decided, or beyond the range."""
        if self.decided or self._is_past(self.low, self.top) or self._is_past(self.bottom, self.high):
            return None
        if self.low is None and self.high is None and not self.undecided:
            return sqrt(self.bottom * self.top)
        if self.low is None or self.high is None:
            outward = self._outward()
            if outward is not None:
                return outward
        return self._middle_of_widest()

    def record(self, rate: float, verdict: Verdict) -> None:
        """Take the verdict on a rate, which was the next one."""
        if verdict == "holds":
            self.low = max(rate, self.low or rate)
        elif verdict == "fails":
            self.high = min(rate, self.high or rate)
        else:
            self.undecided.append(rate)
        self.undecided = [one for one in self.undecided if (self.low or 0.0) < one < (self.high or float("inf"))]

    def _outward(self) -> float | None:
        """Return twice the highest rate so far, or half the lowest, within the range; None at its ends."""
        if self.high is None:
            highest = max([*self.undecided, self.low or 0.0])
            return min(2 * highest, self.top) if highest < self.top * (1 - _SAME) else None
        lowest = min([*self.undecided, self.high])
        return max(lowest / 2, self.bottom) if lowest > self.bottom * (1 + _SAME) else None

    def _middle_of_widest(self) -> float | None:
        """Return the middle, on the logarithm, of the widest part between the ends and the undecided rates.

        None if all parts are narrower than a fifth of the precision: another rate there would say no more.
        """
        ends = [self.low or self.bottom, *sorted(self.undecided), self.high or self.top]
        low, high = max(pairwise(ends), key=lambda part: part[1] / part[0])
        return sqrt(low * high) if log(high / low) > log(1 + self.precision) / 5 else None

    @staticmethod
    def _is_past(rate: float | None, end: float | None) -> bool:
        return rate is not None and end is not None and rate >= end * (1 - _SAME)
