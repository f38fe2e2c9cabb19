"""The requests of one group as plain arrays: what is resampled for the intervals of figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.audit.kernel.judged_columns import gap_counts, judgements
from otel_llm.slo.figures import FIGURES
from otel_llm.slo.summary import Requests, figure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    import pyarrow as pa
    from numpy.typing import NDArray

    from otel_llm.slo.batch.gap_counts import GapCounts
    from otel_llm.slo.classes import Objective
    from otel_llm.slo.figures import Figure

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sample:
    """R requests of one class at one place, in order of their start.

    `sums`: the TERMS, (R,) each, 0 if a request does not count; `ranked`: the VALUES, (R,) each, NaN if null. `span_s`:
    the time for rates, None without one. `longest_gap_s`: of `gaps`. `figures`: all FIGURES, None if one has no value.
    """

    sums: Mapping[str, Floats]
    ranked: Mapping[str, Floats]
    span_s: float | None
    tail: Fraction
    gaps: GapCounts
    longest_gap_s: float
    figures: Mapping[str, float | None]

    def __len__(self) -> int:
        return len(self.sums["requests"])

    def share_of(self, figure: Figure) -> Fraction:
        """Return the share of a percentile: the class's own for the fluid token rate."""
        return self.tail if figure.share is None else figure.share

    def count(self, figure: Figure) -> int:
        """Return the number of requests behind a figure."""
        if figure.kind in {"rank", "speed"}:
            return int(np.count_nonzero(~np.isnan(self.ranked[figure.top])))
        of_parts = figure.kind in {"share", "mean", "pooled"}
        return int(np.count_nonzero(self.sums[figure.under])) if of_parts else len(self)


def sample(table: pa.Table, objective: Objective, span: float | None) -> Sample:
    """Return the rows of a table of JUDGED, all of one class, as a Sample; `span` as of `span_s`."""
    import pyarrow.compute as pc

    table = table.take(pc.sort_indices(table, sort_keys=[("start_unix_nano", "ascending")]))
    requests = Requests(judgements(table), objective)
    sums = {name: term.astype(np.float64) for name, term in requests.terms.items()}
    found = {one.name: figure(one, requests, span) for one in FIGURES}
    return Sample(sums, requests.values, span, requests.tail, gap_counts(table), requests.longest_gap_s, found)


def reals(table: pa.Table, name: str) -> Floats:
    """Return a column of numbers as floats (R,), NaN if null."""
    import pyarrow as pa

    return np.asarray(table[name].cast(pa.float64(), safe=False).fill_null(math.nan).to_numpy(), np.float64)
