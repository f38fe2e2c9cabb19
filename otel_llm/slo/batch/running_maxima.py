"""How the tokens of many requests overstep a line of deadlines, and the percentiles of the gaps between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_llm.slo.batch.ragged import LONG

if TYPE_CHECKING:
    from otel_llm.slo.batch.judged import Ints
    from otel_llm.slo.batch.ragged import Ragged


class Climb(NamedTuple):
    """Hold the maxima (S,) of segments, and what rises above 0 and all before it in its segment.

    `entry`: indexes of the rising entries, `height`: by how much; those of segment s from `bounds[s]` to
    `bounds[s + 1]` (S+1,).
    """

    peak: Ints
    bounds: Ints
    entry: Ints
    height: Ints

    def sums(self, values: Ints) -> Ints:
        """Return the sum of one value a rising entry over each segment (S,)."""
        total = np.concatenate([[0], np.cumsum(values)])
        return np.diff(total[self.bounds])


def climb(above: Ints, counts: Ints) -> Climb:
    """Find where values rise to a new maximum above 0 within their segment.

    `above`: the values of all segments one after the other, which are overwritten; `counts` (S,): how many each has,
    at least one. The sum of all segments' maxima has to fit 64 bits: one running maximum serves them all, since each
    segment is lifted to where the rises of those before it end.
    """
    first = np.cumsum(counts) - counts
    peak: Ints = np.maximum.reduceat(above, first)
    total = np.maximum(peak, 0)
    above += np.repeat(np.cumsum(total) - total, counts)
    above[0] = max(above[0], 0)
    np.maximum.accumulate(above, out=above)
    # Each entry's height over the one before; nothing is before the first.
    entry = np.flatnonzero(above[1:] != above[:-1]) + 1
    height = above[entry] - above[entry - 1]
    if above[0]:
        entry, height = np.append(0, entry), np.append(above[0], height)
    bounds = np.searchsorted(entry, np.append(first, len(above)))
    return Climb(peak, bounds, entry, height)


def may_rise(block: Ragged, pace_ns: int) -> Ints:
    """Return the indexes of the tokens that can rise on a line of this pace or of a longer one: see `rises`."""
    may = block.gaps > min(pace_ns, LONG - 1)
    may[block.starts] = True
    return np.flatnonzero(may)


def rises(block: Ragged, token: Ints, pace_ns: int, floor_ns: Ints) -> Climb:
    """Return how tokens rise above their request's floor (R,) and each other on the line t_i - (i-1) P, in ns.

    `peak` is the line's maximum, `entry` indexes tokens of the block. The deadlines of a reader (Wang et al., equation
    5), of PolyServe and of Etalon with its restarts are all such lines: a late token is a new maximum. Only a request's
    first token, and one that came more than P after the token before, can be one; so all steps work on those few:
    `token` has them, and perhaps others, from `may_rise`.
    """
    gaps = block.gaps[token]
    token = token[(gaps > min(pace_ns, LONG - 1)) | (gaps == 0)]
    counts = np.diff(np.searchsorted(token, block.starts), append=len(token))
    above = block.times[token] - token * pace_ns
    above += np.repeat(block.starts * pace_ns - floor_ns, counts)
    found = climb(above, counts)
    return Climb(found.peak + floor_ns, found.bounds, token[found.entry], found.height)


def gap_ranks(block: Ragged) -> tuple[Ints, Ints, Ints]:
    """Return the nearest-rank median, 99th percentile and maximum of each request's gaps (R,); 0 where it has none."""
    starts, counts = block.starts, block.lengths - 1
    ordered = block.gaps.copy()
    for start, length in zip(starts.tolist(), block.lengths.tolist(), strict=True):
        ordered[start + 1 : start + length].sort()
    at50 = starts - (-counts // 2)
    at99 = starts - (-99 * counts // 100)
    p50, p99 = ordered[at50].astype(np.int64), ordered[at99].astype(np.int64)
    for index in np.flatnonzero(p99 == LONG).tolist():
        start = int(starts[index])
        exact = np.sort(np.diff(block.times[start : start + int(block.lengths[index])]))
        p50[index], p99[index] = exact[at50[index] - start - 1], exact[at99[index] - start - 1]
    return p50, p99, block.longest
