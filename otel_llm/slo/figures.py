"""The table of figures: what a summary says of many requests of one class, measured at one place.

A figure is computed from TERMS, which add up over requests, or from VALUES, which have percentiles. `slo.summary` adds
them up exactly, the audit on Spark in partial totals, a comparison in resamples. The summary, its types, the terminal,
the report, comparisons, their gates and the docs are read from here. CONTRIBUTING.md shows how a figure is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm.slo.classes import ABORTED
from otel_llm.slo.metrics import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.slo.metrics import Kind

Better = Literal["higher", "lower"] | None
Unit = Literal["requests", "tokens", "share", "0..1", "requests/s", "tokens/s", "s", "s/token"]
"""A `share` is shown as per cent, `0..1` as a number."""


@dataclass(frozen=True, slots=True)
class Term:
    """A number of each request, 0 if it does not count: `of` gives it (R,) of a `summary.Requests`."""

    name: str
    of: Callable[[Any], Any]
    kind: Literal["integer", "real"] = "integer"


@dataclass(frozen=True, slots=True)
class Value:
    """A value of each request that has percentiles: a column, shown in seconds if it is `in_ns`.

    `among`: the requests that count, `complete`, `completed` or all that have it (`known`).
    """

    name: str
    column: str
    among: Literal["known", "complete", "completed"] = "complete"
    in_ns: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the summary.

    `kind`: `count` (the sum of `top`, which describes the input and is never resampled), `rate` (that sum per second of
    the span, null without a request in `under`), `share` and `mean` (sum of `top` / sum of `under`, null if that is 0),
    `rank` (nearest-rank percentile of the values `top` at `share`), `speed` (the inverse of such a percentile, at the
    share of the class's objective), `pooled` (a percentile of all gaps between tokens).

    `better`: the direction that is better for readers. `label`: its line in the table of a summary. `heading`: its
    column in tables with a line for each group. `gate`: the worsening that a comparison allows by default, as it is
    written on the command line. `in_summary`: whether summaries have it; comparisons have all.
    """

    name: str
    unit: Unit
    kind: Literal["count", "rate", "share", "mean", "rank", "speed", "pooled"]
    top: str
    help: str
    better: Better = None
    under: str = "requests"
    share: Fraction | None = None
    label: str = ""
    heading: str = ""
    gate: str | None = None
    in_summary: bool = True


GAPS: Final = "itl_s"
"""The gaps between tokens, all of a group together: a request has many."""
HALF: Final = Fraction(1, 2)
NINE_TENTHS: Final = Fraction(9, 10)
MOST: Final = Fraction(99, 100)
_SHARES: Final = (("p50", HALF), ("p90", NINE_TENTHS), ("p99", MOST))
STATISTICS: Final = ("mean", *(name for name, _ in _SHARES))
"""The statistics of each latency."""
LATENCIES: Final = {
    "ttft": "TTFT: first token of any kind",
    "itl": "ITL: each gap between tokens",
    "tpot": "TPOT: mean gap of a reply",
    "e2e": "E2E: whole reply, if completed",
}
"""The latencies of the summary, with their labels."""

VALUES: Final = (
    Value("fluidity_index", "fluidity_index"),
    Value("idle_s", "idle_s"),
    Value("ttft_s", "ttft_s", "known"),
    Value("ttfo_s", "ttfo_s", "known"),
    Value("tpot_s", "tpot_s"),
    Value("e2e_s", "e2e_s", "completed"),
    Value("fluid_tbt_s", "fluid_tbt_ns", in_ns=True),
)


def _latency_terms(name: str) -> tuple[Term, Term]:
    """Return the terms of a latency's mean."""
    return (
        Term(f"{name}_sum", lambda some: some.sums_of(f"{name}_s"), "real"),
        Term(f"{name}_known", lambda some: some.have(f"{name}_s")),
    )


TERMS: Final = (
    Term("requests", lambda some: some.every),
    Term("tokens", lambda some: some.number("tokens")),
    Term("incomplete", lambda some: ~some.complete),
    Term("undetermined", lambda some: ~some.known("met")),
    Term("aborted", lambda some: some.ended(*ABORTED)),
    Term("met", lambda some: some.met),
    Term("judged", lambda some: some.complete & some.known("met")),
    Term("tokens_read", lambda some: some.complete * some.number("tokens_read")),
    Term("counted", lambda some: some.complete & some.known("tokens_read")),
    Term("met_tokens", lambda some: some.met * some.number("tokens_read")),
    Term("benefit", lambda some: some.complete * some.number("benefit"), "real"),
    Term("valued", lambda some: some.complete & some.known("benefit")),
    Term("judgeable", lambda some: some.complete & (some.known("met") | some.known("benefit"))),
    Term("due", lambda some: some.due),
    Term("fluid", lambda some: some.fluid),
    Term("gap_s", lambda some: some.gap_s, "real"),
    Term("gaps", lambda some: some.gaps),
    *_latency_terms("ttft"),
    *_latency_terms("tpot"),
    *_latency_terms("e2e"),
)
"""`counted`: requests with known `tokens_read`; `valued`: with a benefit; `judgeable`: with that, or a verdict; `due`:
with deadlines, if their class promises a fluidity-index; `fluid`: those of them that keep it; `gap_s`, `gaps`: the sum
of a request's gaps between tokens, and their number.
"""

COUNTED: Final = tuple(one.name for one in TERMS if one.kind == "integer")
"""The terms that are integers."""

TEXTS: Final = ("slo_class", "measured_at", "outcome")
NUMBERS: Final = (
    *("start_unix_nano", "tokens", "tokens_read", "coverage", "tbt_max_s"),
    *("deadlines", "deadline_misses", "met", "benefit"),
    *(one.column for one in VALUES),
)
"""The columns of a request that figures are made of, of text and of numbers."""


def _latency(name: str, help_text: str, unit: Unit = "s", gate: str | None = None) -> tuple[Figure, ...]:
    """Return the statistics of a latency; `gate` is that of its 99th percentile."""
    pooled = f"{name}_s" == GAPS
    top, under = ("gap_s", "gaps") if pooled else (f"{name}_sum", f"{name}_known")
    return (
        Figure(f"{name}_mean_s", unit, "mean", top, help_text, "lower", under),
        *(
            Figure(
                f"{name}_{one}_s",
                unit,
                "pooled" if pooled else "rank",
                f"{name}_s",
                help_text,
                "lower",
                under if pooled else "requests",
                share,
                heading=f"{name.upper()}\n{one}",
                gate=gate if share == MOST else None,
            )
            for one, share in _SHARES
        ),
    )


def _count(name: str, help_text: str, label: str, heading: str = "") -> Figure:
    unit: Unit = "tokens" if name == "tokens" else "requests"
    return Figure(name, unit, "count", name, help_text, label=label, heading=heading)


def _share(name: str, top: str, under: str, better: Better, help_text: str, label: str, heading: str = "") -> Figure:
    return Figure(name, "share", "share", top, help_text, better, under, None, label, heading, "0.01")


def _rate(name: str, top: str, under: str, help_text: str, label: str, heading: str = "") -> Figure:
    unit: Unit = "tokens/s" if name.endswith("tok_s") else "requests/s"
    better: Better = None if top == "requests" else "higher"
    return Figure(name, unit, "rate", top, help_text, better, under, None, f"{label}, {unit}", heading)


def _wait(name: str, value: str, share: Fraction, label: str, heading: str = "", gate: str | None = None) -> Figure:
    return Figure(name, "s", "rank", value, "nearest rank", "lower", "requests", share, label, heading, gate)


FIGURES: Final = (
    _count("requests", "all of them", "requests", "requests"),
    _count("tokens", "all of them", "tokens"),
    _count("incomplete", "not judged: tokens missing, or their start", "incomplete: tokens missing, not judged"),
    _count("undetermined", "`met` is null", "met: cannot say"),
    _share(
        "aborted_share",
        "aborted",
        "requests",
        "lower",
        "ended by the server's side",
        "ended by the server's side",
        "aborted",
    ),
    _share("attainment", "met", "judged", "higher", "met / (met + not met)", "attainment", "attain-\nment"),
    _rate("throughput_tok_s", "tokens_read", "counted", "tokens read over `span_s`", "throughput", "tok/s"),
    _rate("throughput_req_s", "requests", "requests", "requests over `span_s`", "throughput", "req/s"),
    _rate("goodput_tok_s", "met_tokens", "judgeable", "tokens read of met requests, over `span_s`", "goodput"),
    _rate("goodput_req_s", "met", "judgeable", "met requests over `span_s`", "goodput"),
    _rate(
        "smooth_goodput_tok_s",
        "benefit",
        "valued",
        "sum of `benefit` / `span_s` (Wang et al., eq. 11)",
        "smooth goodput",
        "smooth\ngoodput",
    ),
    Figure(
        "benefit_mean_tokens",
        "tokens",
        "mean",
        "benefit",
        "mean benefit of a request; it does not depend on the load",
        "higher",
        "valued",
        gate="5%",
        in_summary=False,
    ),
    Figure(
        "fluidity_p50",
        "0..1",
        "rank",
        "fluidity_index",
        "median",
        "higher",
        share=HALF,
        label="fluidity-index, median",
        heading="fluidity\np50",
    ),
    _share(
        "fluidity_ok_share",
        "fluid",
        "due",
        "higher",
        "requests at or above the class's `fluidity_index` objective; null without one",
        "share with the fluidity-index promised",
    ),
    _wait("idle_p50_s", "idle_s", HALF, "idle, half of them at most", "idle\np50", "100ms"),
    _wait("idle_p99_s", "idle_s", MOST, "idle, 99 % at most", "idle\np99", "250ms"),
    _wait("ttfo_p50_s", "ttfo_s", HALF, "first text that is read, half of them at most"),
    _wait("ttfo_p99_s", "ttfo_s", MOST, "first text that is read, 99 % at most", "first text\np99"),
    *_latency("ttft", "first token of any kind, of all requests that say it", gate="10%"),
    *_latency("itl", "all gaps between tokens of all judged requests; the percentiles are within 1 %", gate="10%"),
    *_latency("tpot", "each judged request's mean gap", "s/token"),
    *_latency("e2e", "the whole reply, of the requests that completed"),
    Figure(
        "fluid_token_rate",
        "tokens/s",
        "speed",
        "fluid_tbt_s",
        "Etalon, section 5.1",
        "higher",
        label="fluid token rate, tokens/s",
    ),
)
"""The figures of the summary in order, and those of comparisons alone."""

BY_NAME: Final = {one.name: one for one in FIGURES}
CLASSES: Final[dict[str, Kind]] = {
    **{name: REQUESTS[name] for name in ("slo_class", "measured_at")},
    **{one.name: "integer" if one.kind == "count" else "real" for one in FIGURES if one.in_summary},
}
"""A class at one place of measurement in the summary: its columns in order, with their types."""
