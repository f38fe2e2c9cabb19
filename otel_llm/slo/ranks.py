"""Nearest-rank percentiles: the smallest value that at least a share of the values do not exceed."""

from __future__ import annotations

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
