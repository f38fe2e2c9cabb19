"""Percentiles of delays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Spread:
    """Nearest-rank percentiles, ms; NaN of nothing."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values_ms: Iterable[float]) -> Spread:
        """Return those of `values_ms`."""
        ordered = sorted(values_ms) or [math.nan]
        return cls(*(ordered[math.ceil(len(ordered) * share) - 1] for share in (0.5, 0.99, 1.0)))

    def __str__(self) -> str:
        return f"{self.p50:>8.1f}{self.p99:>8.1f}{self.max:>9.1f}"
