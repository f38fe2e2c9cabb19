"""The figures of `audit --format json`: many requests of one class, measured at one place, summarised."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from otel_llm.slo.figures import COUNTED, FIGURES, GAPS, TERMS, VALUES
from otel_llm.slo.fluid.fluid_rate import targets
from otel_llm.slo.quantiles import rank

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.slo.batch.gap_counts import GapCounts
    from otel_llm.slo.batch.judged import Bools, Floats, Ints, Masked
    from otel_llm.slo.classes import Objective, SloClasses
    from otel_llm.slo.figures import Figure
    from otel_llm.slo.quantiles import Sketch

    Columns = Mapping[str, Masked]

Figures = dict[str, int | float | None]
_ROOM = 2**62


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

    `span_ns`: first commit to last end of all requests, None if there is no such time.
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
    """Return the figures of one class at one place; None if a figure has no value.

    Rates are per second of `span_s`, percentiles nearest rank. Incomplete requests are counted, and are in no other
    figure but `requests`, `tokens`, `undetermined`, `aborted_share` and those of their known parts (TTFT).
    """
    return summary_figures(Requests(judged, objective), span_s)


class Totals(Protocol):
    """The terms and values of many requests, added up exactly or in sketches."""

    @property
    def tail(self) -> Fraction:
        """The share of requests in the class's objective."""

    def total(self, term: str) -> int | float:
        """Return the sum of a term."""

    def quantile(self, value: str, share: Fraction) -> float | None:
        """Return the nearest-rank percentile of a value, or of GAPS; None without one."""


def summary_figures(totals: Totals, span_s: float | None) -> Figures:
    """Return the figures of a summary from the totals of its requests."""
    return {one.name: figure(one, totals, span_s) for one in FIGURES if one.in_summary}


def figure(one: Figure, totals: Totals, span_s: float | None) -> int | float | None:
    """Return a figure from totals; rates are per second of `span_s`.

    A rate is None, not zero, if no request has a known part of it. Without any request it is zero.
    """
    if one.kind in {"rank", "pooled"} and one.share is not None:
        return totals.quantile(one.top, one.share)
    if one.kind == "speed":
        slowest = totals.quantile(one.top, totals.tail)
        return 1 / slowest if slowest else None
    amount = totals.total(one.top)
    if one.kind == "count":
        return amount
    under = totals.total(one.under)
    if one.kind == "rate":
        return amount / span_s if span_s and (under or not totals.total("requests")) else None
    return amount / under if under else None


class Requests:
    """The requests of one class at one place, as TERMS and VALUES read them, with their exact totals. Arrays are (R,).

    Args:
        judged: their columns; those that are not read may be missing.
        objective: that of their class.
    """

    def __init__(self, judged: Judgements, objective: Objective) -> None:
        self._judged = judged
        self._objective = objective
        self._ordered: dict[str, Floats] = {}

    @property
    def tail(self) -> Fraction:
        """The share of requests in the class's objective."""
        return targets(self._objective)[1]

    @cached_property
    def terms(self) -> dict[str, NDArray[Any]]:
        """The TERMS by name."""
        return {term.name: term.of(self) for term in TERMS}

    @cached_property
    def values(self) -> dict[str, Floats]:
        """The VALUES by name, NaN if null."""
        among = {"complete": self.complete, "completed": self.ended("completed"), "known": self.every}
        found: dict[str, Floats] = {}
        for value in VALUES:
            values, known = self._judged.numbers[value.column]
            cells = np.where(known & among[value.among], values, np.nan)
            found[value.name] = cells / 1e9 if value.in_ns else cells
        return found

    def total(self, term: str) -> int | float:
        """Return the sum of a term."""
        numbers = self.terms[term]
        return int(numbers.sum()) if term in COUNTED else math.fsum(numbers.tolist())

    def quantile(self, value: str, share: Fraction) -> float | None:
        """Return the nearest-rank percentile of a value; of GAPS, of all requests' gaps together, within 1 %."""
        if value == GAPS:
            return None if self._pooled is None else self._pooled.quantile(share)
        if value not in self._ordered:
            values = self.values[value]
            self._ordered[value] = np.sort(values[~np.isnan(values)])
        ordered = self._ordered[value]
        return float(ordered[rank(len(ordered), share)]) if len(ordered) else None

    @cached_property
    def every(self) -> Bools:
        """All of them."""
        return np.ones(len(self._judged), np.bool_)

    @cached_property
    def complete(self) -> Bools:
        """Those that lack neither tokens nor their commit, so that they can be judged."""
        return ~incomplete_ones(self._judged)

    @cached_property
    def met(self) -> Bools:
        """The complete ones that met their deadlines."""
        return self.complete & self.number("met").astype(np.bool_)

    def known(self, column: str) -> Bools:
        """Those with a value in a column."""
        return self._judged.numbers[column].known

    def number(self, column: str) -> NDArray[Any]:
        """The numbers of a column, 0 if null."""
        values, known = self._judged.numbers[column]
        return np.where(known, values, 0)

    def have(self, value: str) -> Bools:
        """Those with one of VALUES."""
        return ~np.isnan(self.values[value])

    def sums_of(self, value: str) -> Floats:
        """One of VALUES, 0 if null."""
        return np.nan_to_num(self.values[value])

    def ended(self, *outcomes: str) -> Bools:
        """Those that ended with one of these outcomes."""
        found = self._judged.texts["outcome"]
        ended = np.zeros(len(self._judged), np.bool_)
        for outcome in outcomes:
            ended |= found == outcome
        return ended

    @property
    def due(self) -> Bools:
        """The complete ones with deadlines, if the class promises a fluidity-index."""
        return self._fluid[0]

    @property
    def fluid(self) -> Bools:
        """Those of them that keep it."""
        return self._fluid[1]

    @cached_property
    def _fluid(self) -> tuple[Bools, Bools]:
        wanted = self._objective.fluidity_index
        if wanted is None:
            return ~self.every, ~self.every
        due, kept = fluid_ones(self._judged, wanted)
        return self.complete & due, self.complete & kept

    @cached_property
    def gaps(self) -> Ints:
        """The number of gaps between the tokens of each."""
        counted = self.complete & self.known("tokens") & self.known("tpot_s")
        return np.where(counted, np.maximum(self.number("tokens") - 1, 0), 0)

    @property
    def gap_s(self) -> Floats:
        """Their sum in seconds."""
        return np.where(self.gaps > 0, self.number("tpot_s") * self.gaps, 0.0)

    @cached_property
    def _pooled(self) -> Sketch | None:
        if self._judged.gaps is None:
            return None
        return self._judged.gaps.only(self.complete).pooled(self.longest_gap_s)

    @property
    def longest_gap_s(self) -> float:
        """The longest gap of the complete ones, 0 without any."""
        return float((self.complete * self.number("tbt_max_s")).max(initial=0.0))


def incomplete_ones(judged: Judgements) -> Bools:
    """Tell which requests (R,) lack tokens, or their commit, so that they cannot be judged."""
    coverage = judged.numbers["coverage"]
    lacking: Bools = ~judged.numbers["start_unix_nano"].known | (coverage.known & (coverage.values < 1))
    return lacking


def fluid_ones(judged: Judgements, wanted: Fraction) -> tuple[Bools, Bools]:
    """Tell which requests (R,) have a fluidity-index, and which of them have at least this; compared in integers."""
    deadlines, misses = judged.numbers["deadlines"], judged.numbers["deadline_misses"]
    due = deadlines.known & (deadlines.values > 0)
    every, missed = np.where(due, deadlines.values, 0), np.where(due, misses.values, 0)
    numerator, denominator = wanted.as_integer_ratio()
    largest = max(int(every.max(initial=0)), int(missed.max(initial=0)))
    if max(1, largest) * max(numerator, denominator) >= _ROOM:
        every, missed = every.astype(object), missed.astype(object)
    return due, due & ((every - missed) * denominator >= numerator * every).astype(np.bool_)


def _total(column: Masked) -> int:
    return int(column.values[column.known].sum())
