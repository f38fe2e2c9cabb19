"""Nearest-rank percentiles, and a small mergeable quantile sketch with a stated relative error.

A percentile is the smallest value that at least a share of the values do not exceed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

P50: Final = (1, 2)
P99: Final = (99, 100)


def rank(count: int, share: tuple[int, int] | Fraction) -> int:
    """Return the index, from 0, of the nearest-rank percentile in `count` > 0 sorted values.

    `share`: a fraction in 0..1, as (numerator, denominator) or Fraction, so that no rounding decides. The same as
    numpy's `inverted_cdf`.
    """
    numerator, denominator = share if isinstance(share, tuple) else share.as_integer_ratio()
    return max(0, -(-count * numerator // denominator) - 1)


def nearest_rank(ordered: Sequence[int], share: tuple[int, int] | Fraction) -> int | None:
    """Return the nearest-rank percentile of sorted values, None if there are none."""
    return ordered[rank(len(ordered), share)] if ordered else None


RELATIVE_ERROR: Final = 0.01
SMALLEST: Final = 1e-9
LARGEST: Final = 1e9
LOG_RATIO: Final = math.log(1.0099)  # of a bucket's edges: below the promise, which leaves room for float rounding


class Sketch:
    """Counts of values in buckets of equal ratio (as in DDSketch; Masson, Rim and Lee, VLDB 2019).

    A quantile is within 1 % of the exact nearest-rank one, for values that are 0 or from 1e-9 to 1e9; smaller ones
    count as 0, larger ones as 1e9. It is a bucket's upper edge, except that a quantile of 1 among shares is exactly 1.
    At most 4,300 buckets for any input; merging gives the same as adding all values to one sketch.
    """

    __slots__ = ("_buckets", "_greatest", "_zeros", "count")

    def __init__(self) -> None:
        self.count = 0
        self._zeros = 0
        self._buckets: dict[int, int] = {}
        self._greatest = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, 0 or more, `times` times; raises ValueError for a negative one and for NaN."""
        if not value >= 0:
            raise ValueError(f"{value!r} is not 0 or more")
        value = 0.0 if value < SMALLEST else min(float(value), LARGEST)
        self.count += times
        self._greatest = max(self._greatest, value)
        if value == 0.0:
            self._zeros += times
        else:
            index = math.ceil(math.log(value) / LOG_RATIO)
            self._buckets[index] = self._buckets.get(index, 0) + times

    def merge(self, other: Sketch) -> None:
        """Count all values of another sketch."""
        self.count += other.count
        self._zeros += other._zeros
        self._greatest = max(self._greatest, other._greatest)
        for index, count in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + count

    @classmethod
    def of(cls, zeros: int, greatest: float, buckets: Sequence[int], counts: Sequence[int]) -> Sketch:
        """Return the sketch with these `parts`."""
        sketch = cls()
        sketch.count, sketch._zeros, sketch._greatest = zeros + sum(counts), zeros, greatest
        sketch._buckets = dict(zip(buckets, counts, strict=True))
        return sketch

    def parts(self) -> dict[str, int | float | list[int]]:
        """Return its contents: `zeros`, `greatest`, and `buckets` by number, ascending, with their `counts`."""
        buckets = sorted(self._buckets)
        counts = [self._buckets[index] for index in buckets]
        return {"zeros": self._zeros, "greatest": self._greatest, "buckets": list(buckets), "counts": counts}

    def quantile(self, share: tuple[int, int] | Fraction) -> float | None:
        """Return the nearest-rank percentile within the stated error; None if nothing was counted."""
        if not self.count:
            return None
        below = rank(self.count, share) - self._zeros
        if below < 0:
            return 0.0
        for index in sorted(self._buckets):
            below -= self._buckets[index]
            if below < 0:
                return min(math.exp(index * LOG_RATIO), self._greatest)
        raise AssertionError("the buckets hold fewer values than were counted")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and all(
            getattr(self, name) == getattr(other, name) for name in Sketch.__slots__
        )
