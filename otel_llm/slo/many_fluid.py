"""The smallest fluid TBT targets of many recorded requests at once (Etalon, section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.fluid import fluid_tbt_ns, targets
from otel_llm.slo.fluid_search import smallest_targets
from otel_llm.slo.judged import Masked
from otel_llm.slo.ragged import BLOCK_TOKENS, Ragged, block_of, by_class

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.judged import Ints
    from otel_llm.slo.recorded import Recorded

_ROOM = 2**61
_BLOCK_TOKENS = 4 * BLOCK_TOKENS
"""Most of a search's steps look at few tokens: what a step costs is worth spreading over more of them."""


def fluid_tbt_many(
    requests: Recorded, classes: Sequence[SloClass], class_index: NDArray[np.integer] | None = None
) -> Masked:
    """Return every request's smallest TBT target in ns (R,), unknown below two tokens read.

    The same as `fluid_tbt_ns` for each, at its class's fluidity objective; `class_index` as for `judge_many`.
    """
    result = Masked(np.zeros(len(requests), np.int64), np.zeros(len(requests), np.bool_))
    for slo, which in by_class(requests, classes, class_index, _BLOCK_TOKENS):
        read, reading = block_of(requests, which).read(slo.reads)
        if read is not None:
            enough = read.lengths > 1
            at = which[reading[enough]]
            result.values[at] = _smallest(read, targets(slo.objective)[0])[enough]
            result.known[at] = True
    return result


def _smallest(read: Ragged, fluidity: Fraction) -> Ints:
    if not fluidity:
        return np.ones(len(read.starts), np.int64)
    span = read.last.astype(np.float64) - read.first
    # Times are in order: where a span fits 64 bits, so does each gap in it.
    longest = int(read.lengths.max()) * fluidity.denominator
    if float(span.sum()) >= _ROOM or longest >= _ROOM:
        ends = read.starts + read.lengths
        tokens = (read.times[start:end].tolist() for start, end in zip(read.starts, ends, strict=True))
        return np.array([fluid_tbt_ns(times, fluidity) or 0 for times in tokens], np.int64)
    return smallest_targets(read, fluidity)
