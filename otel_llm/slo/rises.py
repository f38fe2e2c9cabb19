"""How the tokens of many requests overstep a line of deadlines, and the percentiles of the gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_llm.slo.judged import Ints
    from otel_llm.slo.ragged import Ragged

_SATURATED = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Rises:
    """Hold what the tokens of R requests do to one line t_i - (i-1) P, in ns.

    `peak` (R,): its maximum. Sparse, one entry a token that rises above the floor and all before it: its `request`,
    its index `token` in the block and the `height` of the rise.
    """

    peak: Ints
    request: Ints
    token: Ints
    height: Ints


class Climb(NamedTuple):
    """Hold the maxima of segments, and the indexes and heights of the entries that rise above 0 and all before them."""

    peak: Ints
    rising: Ints
    height: Ints


def climb(above: Ints, segment: NDArray[np.integer]) -> Climb:
    """Find where values rise to a new maximum above 0 within their segment.

    `above`, `segment` (K,): the values and the number of their segment, which does not fall. The sum of all segments'
    maxima has to fit 64 bits: one running maximum serves them all, since each begins where the rises of those before
    it end.
    """
    if not len(above):
        return Climb(above, np.flatnonzero(above), above)
    first = np.flatnonzero(np.diff(segment, prepend=-1))
    peak: Ints = np.maximum.reduceat(above, first)
    total = np.maximum(peak, 0)
    base = np.repeat(np.cumsum(total) - total, np.diff(first, append=len(above)))
    reached = np.zeros(len(above) + 1, np.int64)
    np.maximum.accumulate(above + base, out=reached[1:])
    np.maximum(reached, 0, out=reached)
    height = np.diff(reached)
    rising = np.flatnonzero(height)
    return Climb(peak, rising, height[rising])


def rises(block: Ragged, pace_ns: int, floor_ns: Ints) -> Rises:
    """Return how the requests' tokens rise above their floors (R,) and each other on the line of this pace.

    The deadlines of a reader (Wang et al., equation 5), of PolyServe and of Etalon with its restarts are all such
    lines: a late token is a new maximum of t_i - (i-1) P. Only a request's first token, and one that came more than P
    after the token before, can be one; so all but the first step work on those few.
    """
    late = block.gaps > pace_ns
    late[block.starts] = True
    token = np.flatnonzero(late)
    counts = np.diff(np.searchsorted(token, block.starts), append=len(token))
    request = np.repeat(np.arange(len(counts)), counts)
    above = block.times[token] - (token - block.starts[request]) * pace_ns - floor_ns[request]
    found = climb(above, request)
    return Rises(found.peak + floor_ns, request[found.rising], token[found.rising], found.height)


def gap_ranks(block: Ragged) -> tuple[Ints, Ints, Ints]:
    """Return the nearest-rank median, 99th percentile and maximum of each request's gaps (R,); 0 where it has none."""
    gaps, starts, counts = block.gaps, block.starts, block.lengths - 1
    most: Ints = np.maximum.reduceat(gaps, starts)
    # Half the width sorts in less than half the time; what does not fit is looked at again below.
    small = (gaps if int(most.max()) <= _SATURATED else np.minimum(gaps, _SATURATED)).astype(np.uint32)
    for start, length in zip(starts.tolist(), block.lengths.tolist(), strict=True):
        small[start + 1 : start + length].sort()
    at50 = starts - (-counts // 2)
    at99 = starts - (-99 * counts // 100)
    p50, p99 = small[at50].astype(np.int64), small[at99].astype(np.int64)
    for index in np.flatnonzero(p99 == _SATURATED).tolist():
        start = int(starts[index])
        exact = np.sort(gaps[start : start + int(block.lengths[index])])
        p50[index], p99[index] = exact[at50[index] - start], exact[at99[index] - start]
    return p50, p99, most
