"""The smallest fluid TBT targets of many recorded requests at once (Etalon, section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.fluid import fluid_tbt_ns, targets
from otel_llm.slo.judged import Masked
from otel_llm.slo.ragged import Ragged, block_of, by_class
from otel_llm.slo.rises import climb

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.judged import Bools, Ints
    from otel_llm.slo.recorded import Recorded

_ROOM = 2**61


def fluid_tbt_many(
    requests: Recorded, classes: Sequence[SloClass], class_index: NDArray[np.integer] | None = None
) -> Masked:
    """Return every request's smallest TBT target in ns (R,), unknown below two tokens read.

    The same as `fluid_tbt_ns` for each, at its class's fluidity objective; `class_index` as for `judge_many`.
    """
    result = Masked(np.zeros(len(requests), np.int64), np.zeros(len(requests), np.bool_))
    for slo, which in by_class(requests, classes, class_index):
        read, reading = block_of(requests, which).read(slo.reads)
        if read is not None:
            enough = read.lengths > 1
            at = which[reading[enough]]
            result.values[at] = _smallest(read, targets(slo.objective)[0])[enough]
            result.known[at] = True
    return result


def _smallest(read: Ragged, fluidity: Fraction) -> Ints:
    span = read.last.astype(np.float64) - read.first
    if float(span.sum()) >= _ROOM or (read.gaps < 0).any():
        ends = read.starts + read.lengths
        tokens = (read.times[start:end].tolist() for start, end in zip(read.starts, ends, strict=True))
        return np.array([fluid_tbt_ns(times, fluidity) or 0 for times in tokens], np.int64)
    return _search(read, fluidity)


def _search(read: Ragged, fluidity: Fraction) -> Ints:
    """Bisect for all requests at once, upwards from a lower bound, on ever fewer tokens.

    A target below the mean gap times the fluidity-index cannot be kept: the waits add up to at least what the reply
    took longer than its deadlines allow, and every target's length of them is a miss. A token that is in time under
    one target is in time under every longer one: after a failure only those that were late are looked at again.
    """
    steps = np.maximum(read.lengths - 1, 1)
    span = read.last - read.first
    low = np.maximum(1, (span / steps * (float(fluidity) * (1 - 1e-9))).astype(np.int64))
    high = np.maximum(low, np.maximum.reduceat(read.gaps, read.starts))
    stride = low // 8 + 1
    request = np.repeat(np.arange(len(low), dtype=np.int32), read.lengths)
    token = np.flatnonzero(read.gaps > low[request])
    request, gaps = request[token], read.gaps[token]
    index = token - read.starts[request]
    since_first = read.times[token] - read.first[request]
    while (open_ := low < high).any():
        middle = np.minimum((low + high) // 2, low + stride)
        late = np.flatnonzero(gaps > middle[request])
        counts = np.bincount(request[late], minlength=len(low))
        some = counts > 0
        found = climb(since_first[late] - index[late] * np.repeat(middle, counts), counts[some])
        missed, tardy = np.zeros(len(low), np.int64), np.zeros(len(low), np.int64)
        tardy[some] = np.diff(found.bounds)
        missed[some] = found.sums(1 + found.height // np.repeat(middle, tardy))
        kept = _keeps(steps - tardy, missed, fluidity)
        alive = (open_ & kept)[request]
        alive[late[found.entry]] = np.repeat(open_, tardy)
        high = np.where(open_ & kept, middle, high)
        low = np.where(open_ & ~kept, middle + 1, low)
        stride = np.where(kept, stride, np.minimum(2 * stride, high))
        if 4 * int(np.count_nonzero(alive)) < 3 * len(gaps):
            gaps, request, index, since_first = gaps[alive], request[alive], index[alive], since_first[alive]
    return low


def _keeps(met: Ints, missed: Ints, fluidity: Fraction) -> Bools:
    """Tell where met / (met + missed) is at least the fluidity-index, without a division."""
    numerator, denominator = fluidity.as_integer_ratio()
    if int((met + missed).max()) * denominator < _ROOM:
        return np.asarray(met * denominator >= numerator * (met + missed))
    pairs = zip(met.tolist(), missed.tolist(), strict=True)
    return np.array([ok * denominator >= numerator * (ok + bad) for ok, bad in pairs], np.bool_)
