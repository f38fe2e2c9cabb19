"""Running maxima of token times over a line of deadlines, for many requests; percentiles of the gaps between tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_llm.slo.batch.ragged import LONG

if TYPE_CHECKING:
    from otel_llm.slo.batch.judged import Ints
    from otel_llm.slo.batch.ragged import Ragged


class RunningMaxima(NamedTuple):
    """The maxima (S,) of segments, and their entries above 0 that exceed all before them.

    `entry`: indexes of these entries, `height`: by how much each exceeds the last; those of segment s from `bounds[s]`
    to `bounds[s + 1]` (S+1,).
    """

    peak: Ints
    bounds: Ints
    entry: Ints
    height: Ints

    def sums(self, values: Ints) -> Ints:
        """Return the sum (S,) over each segment of one value for each entry."""
        total = np.concatenate([[0], np.cumsum(values)])
        return np.diff(total[self.bounds])


def running_maxima(above: Ints, counts: Ints) -> RunningMaxima:
    """Find the values that are new maxima above 0 within their segment.

    `above` (N,): the values of all segments one after the other; they are overwritten. `counts` (S,): how many each
    has, at least one. The sum of all segments' maxima must fit 64 bits: one running maximum serves them all, since each
    segment is lifted to the end of those before it.
    """
    first = np.cumsum(counts) - counts
    peak: Ints = np.maximum.reduceat(above, first)
    total = np.maximum(peak, 0)
    above += np.repeat(np.cumsum(total) - total, counts)
    above[0] = max(above[0], 0)
    np.maximum.accumulate(above, out=above)
    # Each entry's height over the one before; the first has none before it.
    entry = np.flatnonzero(above[1:] != above[:-1]) + 1
    height = above[entry] - above[entry - 1]
    if above[0]:
        entry, height = np.append(0, entry), np.append(above[0], height)
    bounds = np.searchsorted(entry, np.append(first, len(above)))
    return RunningMaxima(peak, bounds, entry, height)


def maxima_candidates(block: Ragged, pace_ns: int) -> Ints:
    """Return the tokens that can be new maxima on a line of this pace or a slower one, see `line_maxima`."""
    may = block.gaps > min(pace_ns, LONG - 1)
    may[block.starts] = True
    return np.flatnonzero(may)


def line_maxima(block: Ragged, token: Ints, pace_ns: int, floor_ns: Ints) -> RunningMaxima:
    """Return the new maxima of tokens over their request's floor (R,) on the line t_i - (i-1) P, in ns.

    `peak` is the line's maximum, `entry` indexes tokens of the block. The deadlines of a reader (Wang et al., equation
    5), of PolyServe and of Etalon with its restarts are all such lines: a late token is a new maximum. Only a request's
    first token, and one more than P after the token before, can be one; so all steps work on those few: `token` has
    them, and perhaps others, from `maxima_candidates`.
    """
    gaps = block.gaps[token]
    token = token[(gaps > min(pace_ns, LONG - 1)) | (gaps == 0)]
    counts = np.diff(np.searchsorted(token, block.starts), append=len(token))
    above = block.times[token] - token * pace_ns
    above += np.repeat(block.starts * pace_ns - floor_ns, counts)
    found = running_maxima(above, counts)
    return RunningMaxima(found.peak + floor_ns, found.bounds, token[found.entry], found.height)


def gap_ranks(block: Ragged) -> tuple[Ints, Ints, Ints]:
    """Return the nearest-rank median, 99th percentile and maximum of each request's gaps, (R,) ns; 0 without gaps."""
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
