"""The smallest fluid TBT targets of many recorded requests at once (Etalon, section 5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.batch.judged import Masked
from otel_llm.slo.batch.ragged import block_of, by_class
from otel_llm.slo.fluid.fluid_rate import fluid_tbt_ns, targets
from otel_llm.slo.fluid.fluid_search import MOST, TargetSearch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.slo.batch.judged import Ints
    from otel_llm.slo.batch.ragged import Ragged
    from otel_llm.slo.batch.recorded import Recorded
    from otel_llm.slo.classes import SloClass


def fluid_tbt_many(
    requests: Recorded,
    classes: Sequence[SloClass],
    class_index: NDArray[np.integer] | None = None,
    *,
    block_tokens: int | None = None,
) -> Masked:
    """Return every request's smallest TBT target in ns (R,), unknown below two read tokens.

    Each equals `fluid_tbt_ns` at its class's fluidity objective; `class_index` (R,) int64 and `block_tokens` as for
    `judge_many`.

    Raises:
        OverflowError: a target beyond 64 bits.
    """
    found = FluidTargets(len(requests))
    for slo, which in by_class(requests, classes, class_index, block_tokens):
        read, reading = block_of(requests, which).read(slo.reads)
        if read is not None:
            found.add(slo, which[reading], read)
    return found.masked()


class FluidTargets:
    """The smallest TBT targets in ns of R requests, collected block by block."""

    def __init__(self, requests: int) -> None:
        self._found = Masked(np.zeros(requests, np.int64), np.zeros(requests, np.bool_))
        self._searches: dict[Fraction, TargetSearch] = {}

    def add(self, slo: SloClass, at: Ints, read: Ragged) -> None:
        """Add requests of one class; `at` (P,): their indexes; `read`: the read tokens of each."""
        fluidity = targets(slo.objective)[0]
        self._found.known[at] = read.lengths > 1
        if not fluidity:
            self._found.values[at] = 1
            return
        span_ns = read.last.astype(np.float64) - read.first
        # Times are sorted: where a span fits 64 bits, so does each gap in it.
        lines_ns = float((read.longest.astype(np.float64) * read.lengths).max())
        counts = int(read.lengths.max()) * fluidity.denominator
        if max(float(span_ns.sum()), lines_ns, counts) >= MOST:
            ends = read.starts + read.lengths
            tokens = (read.times[start:end].tolist() for start, end in zip(read.starts, ends, strict=True))
            self._found.values[at] = [fluid_tbt_ns(times, fluidity) or 0 for times in tokens]
            return
        search = self._searches.get(fluidity)
        if search is None:
            search = self._searches[fluidity] = TargetSearch(self._found.values, fluidity)
        search.add(at, read)

    def masked(self) -> Masked:
        """Return the targets (R,) of all requests, unknown below two tokens read."""
        for search in self._searches.values():
            search.finish()
        return Masked(np.where(self._found.known, self._found.values, 0), self._found.known)
