"""A histogram with fixed bounds, cheap enough for every gap between tokens."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

NS_PER_S: Final = 1_000_000_000


class Histogram:
    """Count values in buckets; a value on a bound belongs to that bound's bucket.

    Args:
        bounds: upper bounds, ascending, in the unit that is published.
        per_unit: what values are counted in, per published unit: NS_PER_S where they are whole ns and published as
            seconds, 1 where they are published as they are.

    Values counted in ns are compared as integers: n / 1e9 <= b holds just where n <= round(b * 1e9), since each side is
    the double nearest to its decimal. Their sum is exact. One thread observes; others may read meanwhile.
    """

    __slots__ = ("_counts", "_edges", "_edges_array", "_per_unit", "_total", "bounds")

    def __init__(self, bounds: Sequence[float], per_unit: int = NS_PER_S) -> None:
        self.bounds = tuple(bounds)
        self._per_unit = per_unit
        self._edges: tuple[float, ...] = (
            self.bounds if per_unit == 1 else tuple(round(bound * per_unit) for bound in bounds)
        )
        self._edges_array = np.asarray(self._edges)
        self._counts: npt.NDArray[np.int64] = np.zeros(len(self.bounds) + 1, dtype=np.int64)
        self._total: float = 0  # an int as long as only ints are added

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._total += value

    def observe_all(self, values: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Count values that are sorted, ascending: bounds are searched among them, not they among the bounds."""
        values = np.asarray(values)
        found = np.empty(len(self._counts), dtype=np.int64)
        found[:-1] = values.searchsorted(self._edges_array, side="right")
        found[-1] = len(values)
        found[1:] -= found[:-1].copy()
        self._counts = self._counts + found  # a new array: who reads meanwhile sees all of these values or none
        self._total += int(values.sum(dtype=np.int64))

    @property
    def total(self) -> float:
        """Return the sum of all values, in the published unit."""
        return self._total / self._per_unit

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound, how many values are up to it) as Prometheus has it, `+Inf` last."""
        bounds = (*map(str, self.bounds), "+Inf")
        return list(zip(bounds, self._counts.cumsum().astype(float).tolist(), strict=True))
