"""Lengths in tokens, drawn from a distribution; a length of 0 counts as 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Lengths from `low` to `high` with the same chance, both included."""

    low: int
    high: int

    @property
    def least(self) -> int:
        """Return the shortest possible length."""
        return max(1, self.low)

    def draw(self, requests: int, draw: np.random.Generator) -> Ints:
        """Return lengths (R,)."""
        return np.maximum(1, draw.integers(self.low, self.high, requests, endpoint=True, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class FixedLength:
    """The same length for all."""

    length: int

    @property
    def least(self) -> int:
        """Return the shortest possible length."""
        return max(1, self.length)

    def draw(self, requests: int, draw: np.random.Generator) -> Ints:  # noqa: ARG002
        """Return lengths (R,)."""
        return np.full(requests, max(1, self.length), np.int64)


@dataclass(frozen=True, slots=True)
class PercentileLengths:
    """A distribution by (percentile, length) points, which rise.

    Between points the length is linear in the percentile; below the first point from a length of 1 at 0 %; above the
    last one on the line of the last two to 100 %.
    """

    points: tuple[tuple[float, int], ...]

    @property
    def least(self) -> int:
        """Return the shortest possible length."""
        return max(1, self.points[0][1]) if self.points[0][0] == 0 else 1

    def draw(self, requests: int, draw: np.random.Generator) -> Ints:
        """Return lengths (R,)."""
        shares = [share for share, _ in self.points]
        lengths = [float(length) for _, length in self.points]
        if shares[-1] < 100:
            slope = (lengths[-1] - lengths[-2]) / (shares[-1] - shares[-2]) if len(shares) > 1 else 0.0
            lengths.append(lengths[-1] + slope * (100 - shares[-1]))
            shares.append(100.0)
        if shares[0] > 0:
            shares.insert(0, 0.0)
            lengths.insert(0, 1.0)
        drawn = np.interp(draw.uniform(0.0, 100.0, requests), shares, lengths)
        return np.maximum(1, np.rint(drawn).astype(np.int64))


@dataclass(frozen=True, slots=True)
class TraceLengths:
    """The lengths of a trace: a `column` (T,) int64 of it, T > 0."""

    column: Ints

    @property
    def least(self) -> int:
        """Return the shortest possible length."""
        return max(1, int(self.column.min()))

    def draw(self, requests: int, draw: np.random.Generator) -> Ints:
        """Return lengths (R,) of rows drawn with replacement: equal generators draw equal rows."""
        return np.maximum(1, self.column[draw.integers(0, len(self.column), requests)])

    def in_order(self, requests: int) -> Ints:
        """Return the lengths (R,) of the first rows."""
        return np.maximum(1, self.column[:requests])


LengthDistribution = UniformLengths | FixedLength | PercentileLengths | TraceLengths
