"""The curve of a reader: when each token of a stream was read, and the few points that draw it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

EVEN_POINTS: Final = 240
"""The points that a curve has at even distances."""
GAP_POINTS: Final = 60
"""The longest gaps, whose two ends are points of a curve: between them it is flat."""


def read_by_ns(read_ns: Ints, pace_ns: int) -> Ints:
    """Return when a reader of one token each `pace_ns` has read each token, (n,) ns.

    The reader begins with the first token and waits where the text ends: r_i = max(t_i, r_(i-1)) + P, so
    r_i = max_(j<=i) (t_j - j P) + (i + 1) P with indexes from 0. The last value is `Running.dry_ns`.

    Args:
        read_ns: the sorted arrivals of the tokens read, (n,) int64, ns.
        pace_ns: P, the time that a token takes to read.
    """
    steps = np.arange(len(read_ns), dtype=np.int64) * pace_ns
    found: Ints = np.maximum.accumulate(read_ns - steps) + steps + pace_ns
    return found


def curve_points(read_ns: Ints, most: int = EVEN_POINTS, gaps: int = GAP_POINTS) -> Ints:
    """Return the indexes of the tokens that draw a stream's delivery, ascending, at most `most` + 2 `gaps` of them.

    Tokens at even distances, the first and the last; and both ends of the longest gaps, so that no stall is smoothed.
    """
    count = len(read_ns)
    if count <= most + 2 * gaps:
        return np.arange(count)
    even = np.linspace(0, count - 1, most).astype(np.int64)
    longest = np.argpartition(np.diff(read_ns), -gaps)[-gaps:]
    return np.unique(np.concatenate((even, longest, longest + 1)))
