"""A histogram with fixed bounds, for every gap between tokens."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    _State: TypeAlias = tuple[npt.NDArray[np.int64], float, list[Sequence[float] | npt.NDArray[np.int64]]]

NS_PER_S: Final = 1_000_000_000
WAITING_VALUES: Final = 8192
"""The number of values that `observe_all` collects before it counts them in one pass."""
_FEW: Final = 4
"""Fewer values are as fast one by one."""


class Histogram:
    """Counts of values in buckets; a value on a bound belongs to that bound's bucket.

    Args:
        bounds: upper bounds, ascending, in the published unit.
        per_unit: units of the values per published unit: NS_PER_S for ns that are published as seconds, else 1.

    Values in ns are compared as integers: n / 1e9 <= b holds exactly if n <= round(b * 1e9), since each side is the
    double nearest to its decimal. Their sum is exact. A single thread observes; other threads may read meanwhile.
    """

    __slots__ = ("_edges", "_edges_array", "_per_unit", "_state", "_waiting_values", "bounds")

    def __init__(self, bounds: Sequence[float], per_unit: int = NS_PER_S) -> None:
        self.bounds = tuple(bounds)
        self._per_unit = per_unit
        self._edges: tuple[float, ...] = (
            self.bounds if per_unit == 1 else tuple(round(bound * per_unit) for bound in bounds)
        )
        self._edges_array = np.asarray(self._edges)
        # Counts, their sum (an int while only ints are added), and values to be counted. They are one tuple, replaced
        # as one: a concurrent reader sees every value once.
        self._state: _State = (np.zeros(len(self.bounds) + 1, dtype=np.int64), 0, [])
        self._waiting_values = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count one value, so many times."""
        counts, total, waiting = self._state
        counts[bisect_left(self._edges, value)] += times
        self._state = counts, total + value * times, waiting

    def observe_all(self, values: Sequence[float] | npt.NDArray[np.int64]) -> None:
        """Count values, in any order; `values`: (n,), not to be changed afterwards, as they are counted later."""
        if len(values) <= _FEW:
            for value in values:
                self.observe(value)
            return
        self._state[2].append(values)
        self._waiting_values += len(values)
        if self._waiting_values >= WAITING_VALUES:
            self._waiting_values = 0
            self._state = (*self._counted(), [])

    def _counted(self) -> tuple[npt.NDArray[np.int64], float]:
        """Return the counts by bucket, (buckets,) int64, and the sum of all values."""
        counts, total, waiting = self._state
        if not waiting:
            return counts, total
        values = np.concatenate(waiting.copy())  # a copy: the other thread may append meanwhile
        more = np.bincount(self._edges_array.searchsorted(values), minlength=len(counts))
        return counts + more, total + values.sum().item()

    @property
    def total(self) -> float:
        """Return the sum of all values, in the published unit."""
        return self._counted()[1] / self._per_unit

    def cumulative(self) -> list[tuple[str, float]]:
        """Return pairs of an upper bound and the number of values up to it, as in Prometheus; `+Inf` is last."""
        bounds = (*map(str, self.bounds), "+Inf")
        return list(zip(bounds, self._counted()[0].cumsum().astype(float).tolist(), strict=True))
