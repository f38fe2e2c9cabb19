"""The gaps between tokens (ITL) of many requests as counts by range, from which pooled percentiles are computed."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from otel_llm.slo.batch.ragged import LONG
from otel_llm.slo.quantiles import LARGEST, LOG_RATIO, SMALLEST, Sketch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_llm.slo.batch.judged import Bools, Ints
    from otel_llm.slo.batch.ragged import Ragged

ZERO = -(2**15)
"""The bucket of gaps of 0: tokens that arrived together."""
_MANTISSA_BITS = 13
"""Of a gap as a 32-bit float so many decide its bucket: an edge moves by 2^-14 at most, and a bucket is 1 % wide."""
_DROPPED = 23 - _MANTISSA_BITS
_ONE_NS = int(np.float32(1).view(np.uint32)) >> _DROPPED
_FIRST = math.ceil(math.log(SMALLEST) / LOG_RATIO)
"""The bucket of 1 ns; the codes below are buckets counted from the one before it, and 0 is ZERO."""
_AT_ONCE = 65_536
"""Tokens that are counted together: the table of a block of replies fits the cache."""
_DENSE = 8
"""Counting a request by a bucket in a full table is quicker than sorting up to so many cells a token."""


class GapCounts(NamedTuple):
    """The gaps of R requests: the buckets of request r, ascending, from `offsets[r]` to `offsets[r + 1]` (R+1,).

    `buckets` (K,) int16: as of a `Sketch`, or ZERO; `counts` (K,) int32: how many gaps are in each.
    """

    offsets: Ints
    buckets: NDArray[np.int16]
    counts: NDArray[np.int32]

    @classmethod
    def none(cls, requests: int) -> GapCounts:
        """Return the counts of requests whose gaps are not known."""
        return cls(np.zeros(requests + 1, np.int64), np.zeros(0, np.int16), np.zeros(0, np.int32))

    def only(self, chosen: Bools) -> GapCounts:
        """Return the counts of the chosen requests, (R,) bool."""
        if chosen.all():
            return self
        lengths = np.diff(self.offsets)
        kept = np.repeat(chosen, lengths)
        offsets = np.concatenate(([0], np.cumsum(lengths[chosen])))
        return GapCounts(offsets, self.buckets[kept], self.counts[kept])

    def pooled(self, greatest_s: float) -> Sketch:
        """Return all gaps as one sketch, in seconds; `greatest_s` is the longest of them."""
        counts = np.bincount(self.buckets.astype(np.int64) - ZERO, self.counts)
        some = np.flatnonzero(counts)
        some = some[some > 0]
        zeros = int(counts[0]) if len(counts) else 0
        return Sketch.of(zeros, greatest_s, (some + ZERO).tolist(), counts[some].astype(np.int64).tolist())


class GapCounting:
    """The gaps of R requests, collected block by block."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._parts: list[tuple[Ints, Ints, NDArray[np.int16], NDArray[np.int32]]] = []

    def add(self, at: Ints, every: Ragged) -> None:
        """Add requests; `at` (P,): their indexes, ascending; `every`: all tokens of each."""
        codes = _codes(every)
        ends = every.starts + every.lengths
        low = 0
        while low < len(at):
            high = max(low + 1, int(np.searchsorted(ends, every.starts[low] + _AT_ONCE, "right")))
            self._add(at[low:high], codes[every.starts[low] : ends[high - 1]], every.lengths[low:high])
            low = high

    def _add(self, at: Ints, codes: NDArray[np.int16], tokens: Ints) -> None:
        """Add requests of so many tokens each (P,)."""
        before = int((codes - np.int16(1)).view(np.uint16).min())  # the code before the least that is not 0
        width, requests = max(0, int(codes.max()) - before) + 1, len(at)
        firsts = np.arange(requests) * width
        keys: NDArray[Any] = np.repeat(firsts.astype(np.int32), tokens)
        if width > 1:
            keys += np.maximum(codes, before) - np.int16(before)
        if width * requests <= _DENSE * len(keys):
            cells = np.bincount(keys, minlength=width * requests)
            cells[firsts] -= 1  # a request's first token follows none, and its code is 0
            some = cells > 0
            lengths = np.count_nonzero(some.reshape(requests, width), axis=1)
            found = np.flatnonzero(some)
            counts = cells[found]
        else:
            keys = np.sort(np.delete(keys, np.cumsum(tokens) - tokens))
            begins = np.flatnonzero(np.diff(keys, prepend=-1))
            counts, found = np.diff(begins, append=len(keys)), keys[begins]
            lengths = np.diff(np.searchsorted(found, np.append(firsts, width * requests)))
        buckets = (np.arange(width) + (before + _FIRST - 1)).astype(np.int16)
        buckets[0] = ZERO
        self._parts.append((at, lengths, buckets[found - np.repeat(firsts, lengths)], counts.astype(np.int32)))

    def counts(self) -> GapCounts:
        """Return what was collected."""
        if not self._parts:
            return GapCounts.none(self._requests)
        at, lengths, buckets, counts = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        every = np.zeros(self._requests, np.int64)
        every[at] = lengths
        if (np.diff(at) < 0).any():  # several classes
            order = np.argsort(np.repeat(at, lengths), kind="stable")
            buckets, counts = buckets[order], counts[order]
        return GapCounts(np.concatenate(([0], np.cumsum(every))), buckets, counts)


def _codes(every: Ragged) -> NDArray[np.int16]:
    """Return the code of each token's gap (N,); a request's first token has that of a gap of 0."""
    ranges = every.gaps.astype(np.float32).view(np.int32) >> _DROPPED
    codes: NDArray[np.int16] = _table()[np.maximum(ranges - (_ONE_NS - 1), 0)]
    long = np.flatnonzero(every.gaps >= LONG)
    if len(long):
        gaps_s = np.minimum((every.times[long] - every.times[long - 1]) / 1e9, LARGEST)
        codes[long] = np.ceil(np.log(gaps_s) / LOG_RATIO) - (_FIRST - 1)
    return codes


@cache
def _table() -> NDArray[np.int16]:
    """Return the code of each range of 32-bit floats: 0 for a gap of 0, and from 1 ns on one for each range."""
    bits = ((np.arange(33 << _MANTISSA_BITS) + _ONE_NS) << _DROPPED) + (1 << _DROPPED - 1)
    middles_s = bits.astype(np.int32).view(np.float32).astype(np.float64) / 1e9
    codes = np.ceil(np.log(middles_s) / LOG_RATIO) - (_FIRST - 1)
    return np.concatenate(([0], np.maximum(codes, 1))).astype(np.int16)
