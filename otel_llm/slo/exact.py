"""An exact sum of floats, independent of the order of its terms."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SMALLEST_BITS: Final = 1074  # the smallest float is 2^-1074, so every finite one is a multiple of it


class ExactSum:
    """A sum of floats; the value is that of `math.fsum` for all terms, in any order and however merged.

    Memory: one integer of at most some 2,200 bits. Terms are finite; `value` raises OverflowError, as fsum does, if
    the sum is beyond the floats.
    """

    __slots__ = ("_scaled",)

    def __init__(self, terms: Iterable[float] = ()) -> None:
        self._scaled = 0  # in units of the smallest float
        for term in terms:
            self.add(term)

    def add(self, term: float) -> None:
        """Add one float or integer; raises ValueError or OverflowError for NaN and infinities."""
        numerator, denominator = term.as_integer_ratio()
        self._scaled += numerator << (_SMALLEST_BITS + 1 - denominator.bit_length())

    def merge(self, other: ExactSum) -> None:
        """Add all terms of another sum."""
        self._scaled += other._scaled

    def terms(self) -> list[float]:
        """Return a few floats whose exact sum is this one: its form where numbers are floats."""
        rest, found = self._scaled, []
        while rest:
            try:
                term = rest / (1 << _SMALLEST_BITS)
            except OverflowError:  # beyond the floats: the largest part that a float can hold
                term = math.copysign(sys.float_info.max, rest)
            found.append(term)
            numerator, denominator = term.as_integer_ratio()
            rest -= numerator << (_SMALLEST_BITS + 1 - denominator.bit_length())
        return found

    @property
    def value(self) -> float:
        """Return the sum, rounded once."""
        return self._scaled / (1 << _SMALLEST_BITS)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExactSum) and self._scaled == other._scaled

    def __repr__(self) -> str:
        return f"ExactSum([{self.value!r}])"
