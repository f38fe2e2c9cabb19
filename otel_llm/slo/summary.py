"""The figures of `audit --format json`: many requests of one class, measured at one place, summarised."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from otel_llm.slo.classes import ABORTED
from otel_llm.slo.fluid.fluid_rate import fluid_token_rate, targets
from otel_llm.slo.metrics import STATISTICS
from otel_llm.slo.ranks import P50, P90, P99, rank

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.slo.batch.gap_counts import GapCounts
    from otel_llm.slo.batch.judged import Bools, Masked
    from otel_llm.slo.classes import Objective, SloClasses

    Columns = Mapping[str, Masked]

PERCENTILES: Final = (P50, P90, P99)
"""The percentiles among the STATISTICS of a latency, behind the mean."""
Figures = dict[str, int | float | None]
_ROOM = 2**62

TEXTS = ("slo_class", "measured_at", "outcome")
NUMBERS = (
    "start_unix_nano",
    "tokens",
    "tokens_read",
    "coverage",
    "ttft_s",
    "ttfo_s",
    "tpot_s",
    "e2e_s",
    "tbt_max_s",
    "idle_s",
    "deadlines",
    "deadline_misses",
    "fluidity_index",
    "met",
    "benefit",
    "fluid_tbt_ns",
)


class Judgements(NamedTuple):
    """The columns of a summary, R requests: `texts` by name of TEXTS, `numbers` by name of NUMBERS, (R,) each.

    They are those of `--requests`, and `fluid_tbt_ns`: each one's smallest TBT target (`fluid_tbt_many`).
    """

    texts: Mapping[str, NDArray[np.object_]]
    numbers: Columns
    gaps: GapCounts | None = None
    """The gaps between the tokens of each; None if they are not at hand."""

    def __len__(self) -> int:
        return len(self.texts["slo_class"])

    def only(self, chosen: Bools) -> Judgements:
        """Return the chosen requests, (R,) bool."""
        return Judgements(
            {name: values[chosen] for name, values in self.texts.items()},
            {name: type(column)(column.values[chosen], column.known[chosen]) for name, column in self.numbers.items()},
            None if self.gaps is None else self.gaps.only(chosen),
        )


def summarise(judged: Judgements, classes: SloClasses, span_ns: int | None, skipped: int) -> dict[str, Any]:
    """Return the whole object; its `classes` are those that occur, in file order, each by `measured_at`.

    `span_ns`: first commit to last end of all requests, None where there is no such time.
    """
    span_s = None if span_ns is None else span_ns / 1e9
    figures_of: dict[str, dict[str, Figures]] = {}
    for name in classes.names:
        mine = judged.only(judged.texts["slo_class"] == name)
        places = mine.texts["measured_at"]
        found = {
            place: figures(mine.only(places == place), classes.get(name).objective, span_s)
            for place in sorted(set(places.tolist()))
        }
        if found:
            figures_of[name] = found
    return {
        "requests": len(judged),
        "tokens": _total(judged.numbers["tokens"]),
        "span_s": span_s,
        "skipped": skipped,
        "classes": figures_of,
    }


def figures(judged: Judgements, objective: Objective, span_s: float | None) -> Figures:
    """Return the figures of one class at one place; None where a figure has no value.

    Rates are per second of `span_s`, percentiles nearest rank. Incomplete requests are counted, and are in no other
    figure but `requests`, `tokens`, `undetermined`, `aborted_share` and those of their known parts (TTFT). A sum is
    None, not zero, where no request has a known part of it: throughput in tokens without any known tokens, goodput
    where neither verdict nor benefit of any request is known, smooth goodput where no benefit is.
    """
    requests = len(judged)
    none = requests == 0
    complete = judged.only(~incomplete_ones(judged))
    met = complete.numbers["met"]
    hits = met.known & met.values.astype(np.bool_)
    attained = int(hits.sum())
    read, valued = complete.numbers["tokens_read"], complete.numbers["benefit"].known
    judgeable = none or bool((met.known | valued).any())
    rate = fluid_token_rate(_sorted(complete.numbers["fluid_tbt_ns"]).tolist(), targets(objective)[1])
    benefit = math.fsum(_known(complete.numbers["benefit"]).tolist())
    fluidity, idle = _sorted(complete.numbers["fluidity_index"]), _sorted(complete.numbers["idle_s"])
    ttfo = _sorted(judged.numbers["ttfo_s"])
    outcomes = judged.texts["outcome"]
    aborted = sum(int((outcomes == outcome).sum()) for outcome in ABORTED)
    return {
        "requests": requests,
        "tokens": _total(judged.numbers["tokens"]),
        "incomplete": requests - len(complete),
        "undetermined": requests - int(judged.numbers["met"].known.sum()),
        "aborted_share": _share(aborted, requests),
        "attainment": _share(attained, int(met.known.sum())),
        "throughput_tok_s": _per_second(_total(read), span_s) if none or read.known.any() else None,
        "throughput_req_s": _per_second(requests, span_s),
        "goodput_tok_s": _per_second(_total(complete.only(hits).numbers["tokens_read"]), span_s) if judgeable else None,
        "goodput_req_s": _per_second(attained, span_s) if judgeable else None,
        "smooth_goodput_tok_s": _per_second(benefit, span_s) if none or valued.any() else None,
        "fluidity_p50": _percentile(fluidity, P50),
        "fluidity_ok_share": _fluid_share(complete, objective),
        "idle_p50_s": _percentile(idle, P50),
        "idle_p99_s": _percentile(idle, P99),
        "ttfo_p50_s": _percentile(ttfo, P50),
        "ttfo_p99_s": _percentile(ttfo, P99),
        **_latencies(judged, complete),
        "fluid_token_rate": None if rate is None else rate.tokens_per_s,
    }


def _latencies(judged: Judgements, complete: Judgements) -> Figures:
    """Return mean and percentiles of TTFT, ITL, TPOT and E2E.

    TTFT is of all requests, TPOT and ITL of those that can be judged, E2E of those that completed. ITL are all gaps
    together: their mean is exact, their percentiles are within 1 %.
    """
    finished = judged.only(judged.texts["outcome"] == "completed")
    found: Figures = {}
    found |= _statistics("ttft", _sorted(judged.numbers["ttft_s"]))
    found |= _gap_statistics(complete)
    found |= _statistics("tpot", _sorted(complete.numbers["tpot_s"]))
    return found | _statistics("e2e", _sorted(finished.numbers["e2e_s"]))


def _statistics(name: str, ordered: NDArray[Any]) -> Figures:
    mean = math.fsum(ordered.tolist()) / len(ordered) if len(ordered) else None
    values = (mean, *(_percentile(ordered, share) for share in PERCENTILES))
    return {f"{name}_{statistic}_s": value for statistic, value in zip(STATISTICS, values, strict=True)}


def _gap_statistics(complete: Judgements) -> Figures:
    spans, gaps = gap_sums(complete.numbers)
    mean = math.fsum(spans.tolist()) / int(gaps.sum()) if gaps.any() else None
    quantiles: list[float | None] = [None] * len(PERCENTILES)
    if complete.gaps is not None:
        pooled = complete.gaps.pooled(float(_known(complete.numbers["tbt_max_s"]).max(initial=0.0)))
        quantiles = [pooled.quantile(share) for share in PERCENTILES]
    return {f"itl_{statistic}_s": value for statistic, value in zip(STATISTICS, (mean, *quantiles), strict=True)}


def gap_sums(numbers: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the sum (R,) of each request's gaps in seconds, and their number (R,), 0 where not known."""
    tokens, tpot = numbers["tokens"], numbers["tpot_s"]
    gaps = np.where(tokens.known & tpot.known, np.maximum(tokens.values - 1, 0), 0)
    return np.where(gaps > 0, tpot.values * gaps, 0.0), gaps


def incomplete_ones(judged: Judgements) -> Bools:
    """Tell which requests (R,) lack tokens, or their commit, so that they cannot be judged."""
    coverage = judged.numbers["coverage"]
    lacking: Bools = ~judged.numbers["start_unix_nano"].known | (coverage.known & (coverage.values < 1))
    return lacking


def fluid_ones(judged: Judgements, wanted: Fraction) -> tuple[int, int]:
    """Return how many requests have at least this fluidity-index, and how many have one; compared in integers."""
    deadlines, misses = judged.numbers["deadlines"], judged.numbers["deadline_misses"]
    due = deadlines.known & (deadlines.values > 0)
    every, missed = deadlines.values[due], misses.values[due]
    numerator, denominator = wanted.as_integer_ratio()
    largest = max(int(every.max(initial=0)), int(missed.max(initial=0)))
    if max(1, largest) * max(numerator, denominator) < _ROOM:
        return int(((every - missed) * denominator >= numerator * every).sum()), len(every)
    pairs = zip(every.tolist(), missed.tolist(), strict=True)
    return sum((some - bad) * denominator >= numerator * some for some, bad in pairs), len(every)


def _fluid_share(judged: Judgements, objective: Objective) -> float | None:
    wanted = objective.fluidity_index
    return None if wanted is None else _share(*fluid_ones(judged, wanted))


def _known(column: Masked) -> NDArray[Any]:
    values: NDArray[Any] = column.values[column.known]
    return values


def _total(column: Masked) -> int:
    return int(_known(column).sum())


def _sorted(column: Masked) -> NDArray[Any]:
    return np.sort(_known(column))


def _percentile(ordered: NDArray[Any], share: tuple[int, int]) -> float | None:
    return float(ordered[rank(len(ordered), share)]) if len(ordered) else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _per_second(amount: float, span_s: float | None) -> float | None:
    return amount / span_s if span_s else None
