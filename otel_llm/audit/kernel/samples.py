"""The requests of one group as plain arrays, and the figures of the summary as their sums and percentiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from otel_llm.audit.kernel.judged_columns import gap_counts, judgements, masked
from otel_llm.slo.classes import ABORTED
from otel_llm.slo.fluid.fluid_rate import targets
from otel_llm.slo.summary import figures, gap_sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from otel_llm.slo.batch.gap_counts import GapCounts
    from otel_llm.slo.classes import Objective

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

Better = Literal["higher", "lower"] | None


class Figure(NamedTuple):
    """The formula of a figure from the columns of a Sample.

    `kind`: `count` (a sum that describes the input: never resampled), `rate` (sum of `top` per second of the span, if
    `under` is not 0), `share` and `mean` (sum of `top` / sum of `under`), `rank` (nearest-rank percentile of `top` at
    `share`), `speed` (10^9 over such a percentile, of ns), `pooled` (such a percentile of all gaps between tokens).
    `better` is the direction that is better for readers, or None.
    """

    name: str
    kind: Literal["count", "rate", "share", "mean", "rank", "speed", "pooled"]
    top: str
    better: Better = None
    under: str = "requests"
    share: Fraction | None = None


HALF: Final = Fraction(1, 2)
NINE_TENTHS: Final = Fraction(9, 10)
MOST: Final = Fraction(99, 100)
_SHARES: Final = (("p50", HALF), ("p90", NINE_TENTHS), ("p99", MOST))


def _latency(name: str) -> tuple[Figure, ...]:
    """Return the figures of a latency that each request has one value of."""
    mean = Figure(f"{name}_mean_s", "mean", f"{name}_sum", "lower", f"{name}_known")
    return mean, *(Figure(f"{name}_{one}_s", "rank", f"{name}_s", "lower", share=share) for one, share in _SHARES)


FIGURES: Final = (
    Figure("requests", "count", "requests"),
    Figure("tokens", "count", "tokens"),
    Figure("incomplete", "count", "incomplete"),
    Figure("undetermined", "count", "undetermined"),
    Figure("aborted_share", "share", "aborted", "lower"),
    Figure("attainment", "share", "met", "higher", "judged"),
    Figure("throughput_tok_s", "rate", "tokens_read", "higher", "counted"),
    Figure("throughput_req_s", "rate", "requests"),
    Figure("goodput_tok_s", "rate", "met_tokens", "higher", "judgeable"),
    Figure("goodput_req_s", "rate", "met", "higher", "judgeable"),
    Figure("smooth_goodput_tok_s", "rate", "benefit", "higher", "valued"),
    Figure("benefit_mean_tokens", "mean", "benefit", "higher", "valued"),
    Figure("fluidity_p50", "rank", "fluidity_index", "higher", share=HALF),
    Figure("fluidity_ok_share", "share", "fluid", "higher", "due"),
    Figure("idle_p50_s", "rank", "idle_s", "lower", share=HALF),
    Figure("idle_p99_s", "rank", "idle_s", "lower", share=MOST),
    Figure("ttfo_p50_s", "rank", "ttfo_s", "lower", share=HALF),
    Figure("ttfo_p99_s", "rank", "ttfo_s", "lower", share=MOST),
    *_latency("ttft"),
    Figure("itl_mean_s", "mean", "gap_s", "lower", "gaps"),
    *(Figure(f"itl_{one}_s", "pooled", "gaps", "lower", "gaps", share) for one, share in _SHARES),
    *_latency("tpot"),
    *_latency("e2e"),
    Figure("fluid_token_rate", "speed", "fluid_tbt_ns", "higher"),
)
"""The figures of the summary, and one that does not depend on the load: `benefit_mean_tokens`, benefit a request."""


@dataclass(frozen=True, slots=True)
class Sample:
    """R requests of one class at one place, in order of their start.

    `sums`: the terms of sums, (R,) each, 0 where a request does not count; `ranked`: the values of percentiles, (R,)
    each, NaN where null. `span_s`: the time for rates, None where there is none. `longest_gap_s`: of `gaps`.
    """

    sums: Mapping[str, Floats]
    ranked: Mapping[str, Floats]
    span_s: float | None
    tail: Fraction
    gaps: GapCounts
    longest_gap_s: float

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


def values(table: pa.Table, one: Sample, objective: Objective) -> dict[str, float | None]:
    """Return FIGURES of a table of JUDGED and its Sample, None where a figure has no value."""
    found: dict[str, float | None] = dict(figures(judgements(table), objective, one.span_s))
    valued = float(one.sums["valued"].sum())
    found["benefit_mean_tokens"] = math.fsum(one.sums["benefit"].tolist()) / valued if valued else None
    return found


def sample(table: pa.Table, objective: Objective, span: float | None) -> Sample:
    """Return the rows of a table of JUDGED, all of one class, as a Sample; `span` as of `span_s`."""
    import pyarrow.compute as pc

    table = table.take(pc.sort_indices(table, sort_keys=[("start_unix_nano", "ascending")]))
    coverage = reals(table, "coverage")
    whole = table["start_unix_nano"].is_valid().to_numpy() & ~(coverage < 1)
    known = table["met"].is_valid().to_numpy()
    met = table["met"].fill_null(False).to_numpy() & whole
    read = np.where(whole, np.nan_to_num(reals(table, "tokens_read")), 0.0)
    benefit = np.where(whole, reals(table, "benefit"), np.nan)
    due, fluid = _fluid(table, whole, objective)
    outcome = table["outcome"].to_pylist()
    ones = np.ones(len(table))
    sums = {
        "requests": ones,
        "tokens": np.nan_to_num(reals(table, "tokens")),
        "incomplete": 1.0 - whole,
        "undetermined": 1.0 - known,
        "aborted": np.array([one in ABORTED for one in outcome], np.float64),
        "met": met.astype(np.float64),
        "judged": (whole & known).astype(np.float64),
        "tokens_read": read,
        "met_tokens": np.where(met, read, 0.0),
        "benefit": np.nan_to_num(benefit),
        "valued": (~np.isnan(benefit)).astype(np.float64),
        "counted": (whole & ~np.isnan(reals(table, "tokens_read"))).astype(np.float64),
        "judgeable": ((whole & known) | ~np.isnan(benefit)).astype(np.float64),
        "due": due.astype(np.float64),
        "fluid": fluid.astype(np.float64),
    }
    ranked = {
        name: np.where(whole, reals(table, name), np.nan) for name in ("fluidity_index", "idle_s", "fluid_tbt_ns")
    }
    ranked |= {name: reals(table, name) for name in ("ttft_s", "ttfo_s")}
    ranked["tpot_s"] = np.where(whole, reals(table, "tpot_s"), np.nan)
    ranked["e2e_s"] = np.where([one == "completed" for one in outcome], reals(table, "e2e_s"), np.nan)
    for name in ("ttft", "tpot", "e2e"):
        sums[f"{name}_known"] = (~np.isnan(ranked[f"{name}_s"])).astype(np.float64)
        sums[f"{name}_sum"] = np.nan_to_num(ranked[f"{name}_s"])
    spans, gaps = gap_sums({name: masked(table, name) for name in ("tokens", "tpot_s")})
    sums |= {"gap_s": np.where(whole, spans, 0.0), "gaps": np.where(whole, gaps, 0).astype(np.float64)}
    longest_s = float(np.nan_to_num(reals(table, "tbt_max_s"))[whole].max(initial=0.0))
    return Sample(sums, ranked, span, targets(objective)[1], gap_counts(table), longest_s)


def reals(table: pa.Table, name: str) -> Floats:
    """Return a column of numbers as floats (R,), NaN where null."""
    import pyarrow as pa

    return np.asarray(table[name].cast(pa.float64(), safe=False).fill_null(math.nan).to_numpy(), np.float64)


def _fluid(table: pa.Table, whole: Bools, objective: Objective) -> tuple[Bools, Bools]:
    """Return which requests had a deadline (R,), and which of those keep the promised fluidity-index (R,)."""
    nothing = np.zeros(len(table), np.bool_)
    wanted = objective.fluidity_index
    if wanted is None:
        return nothing, nothing
    # Objects: Python's integers, since a share may have any number of digits.
    deadlines = table["deadlines"].fill_null(0).to_numpy().astype(object)
    missed = table["deadline_misses"].fill_null(0).to_numpy().astype(object)
    due = whole & (deadlines > 0).astype(np.bool_)
    kept = ((deadlines - missed) * wanted.denominator >= wanted.numerator * deadlines).astype(np.bool_)
    return due, due & kept
