"""Compare two recordings: every figure of the summary, its change, and how certain that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from otel_llm.audit.compare.bootstrap import Drawing, resamples, too_few
from otel_llm.audit.coverage import sampled, timeless
from otel_llm.audit.kernel.judged_columns import positions_by, span_s
from otel_llm.audit.kernel.samples import sample
from otel_llm.audit.sampled import of_totals
from otel_llm.audit.tables import frame
from otel_llm.slo.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    import pyarrow as pa

    from otel_llm.audit.kernel.findings import Findings
    from otel_llm.audit.kernel.samples import Floats, Sample
    from otel_llm.slo.classes import Objective, SloClasses
    from otel_llm.slo.figures import Better, Figure
    from otel_llm.slo.metrics import Kind

By = Literal["model", "instance"]
GROUP: Final = ("slo_class", "measured_at", "model", "instance")
COLUMNS: Final = (
    *GROUP,
    "figure",
    "old",
    "new",
    "difference",
    "difference_low",
    "difference_high",
    "ratio",
    "ratio_low",
    "ratio_high",
    "better",
    "verdict",
    "why",
    "old_requests",
    "new_requests",
)
"""The columns of a comparison, in order."""

_TEXT: Final = {*GROUP, "figure", "better", "verdict", "why"}
_INTEGER: Final = {"old_requests", "new_requests"}
_KINDS: Final[dict[str, Kind]] = {
    name: "text" if name in _TEXT else "integer" if name in _INTEGER else "real" for name in COLUMNS
}

LOAD_CHANGED: Final = 0.1
"""Request rates that differ by more than this share make rates per second those of two different loads."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of one group in both recordings.

    `old`, `new` and `difference` (new - old) in the figure's unit, `ratio` (new / old) if the old one is above
    zero; the bounds are None if there is no interval, for the reason in `why`. `verdict`: `better` or `worse` if
    the interval of the difference is on one side of zero (`differs` if no direction is better, and for rates per
    second of two different loads), `not shown` if it is not, `cannot say` without an interval. `model` and
    `instance` are None if the group is not split by them.
    """

    slo_class: str
    measured_at: str
    model: str | None
    instance: str | None
    figure: str
    old: float | None
    new: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    better: Better
    verdict: Literal["better", "worse", "differs", "not shown", "cannot say"]
    why: str
    old_requests: int
    new_requests: int

    @property
    def group(self) -> tuple[str | None, ...]:
        """Return the values of GROUP."""
        return self.slo_class, self.measured_at, self.model, self.instance

    def row(self) -> dict[str, Any]:
        """Return it as a row of COLUMNS."""
        return {name: getattr(self, name) for name in COLUMNS}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every figure of every group in either recording, and notes for the reader."""

    changes: tuple[Change, ...]
    drawing: Drawing
    notes: tuple[str, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return the changes as dictionaries with the keys of COLUMNS."""
        return [change.row() for change in self.changes]

    @property
    def frame(self) -> pd.DataFrame:
        """Return the changes as a DataFrame with COLUMNS: seconds, tokens, shares of 0..1."""
        return frame(self.rows, _KINDS)

    def summary(self) -> dict[str, Any]:
        """Return the object of `--format json`."""
        drawing = self.drawing
        return {
            "resamples": drawing.resamples,
            "seed": drawing.seed,
            "block": drawing.block,
            "confidence": drawing.level,
            "notes": list(self.notes),
            "figures": self.rows,
        }


def compare(
    old: Findings,
    new: Findings,
    *,
    by: Sequence[By] = (),
    drawing: Drawing | None = None,
) -> Comparison:
    """Compare two audits, for each class and measured_at, and for each model and instance if `by` names them.

    The requests of the two are not paired: each recording is resampled by itself. Every request is judged as its audit
    judged it: use one SLO file for both.
    """
    both = (old, new)
    timed = tuple(not timeless(one.judged_table, one.counts) for one in both)
    unkept = tuple(one.unkept for one in both)
    found = compare_tables(
        old.judged_table, new.judged_table, new.slo, by=by, drawing=drawing, timed=timed, unkept=unkept
    )
    about = ((name, sampled(one.judged_table, one.counts)) for name, one in zip(("old", "new"), both, strict=True))
    return replace(found, notes=(*found.notes, *(f"{name}: {clause}" for name, clause in about if clause)))


def compare_tables(
    old: pa.Table,
    new: pa.Table,
    classes: SloClasses,
    *,
    by: Sequence[By] = (),
    drawing: Drawing | None = None,
    timed: Sequence[bool] = (True, True),
    unkept: Sequence[Mapping[str, int]] = ({}, {}),
) -> Comparison:
    """Compare two tables of `kernel.JUDGED` as `compare` does; a cluster may have made them.

    `timed`: whether the old and the new requests share an axis of time; without one there are no rates. `unkept`: of
    each the requests, by outcome, that its file counts and does not keep.
    """
    drawing = Drawing() if drawing is None else drawing
    keys = ("slo_class", "measured_at", *(name for name in ("model", "instance") if name in by))
    befores, afters = positions_by(old, keys), positions_by(new, keys)
    order = {name: place for place, name in enumerate(classes.names)}
    groups = sorted(
        {*befores, *afters}, key=lambda one: (order.get(str(one[0]), len(order)), [str(key) for key in one])
    )
    spans = [span_s(table) if some else None for table, some in zip((old, new), timed, strict=True)]
    changes: list[Change] = []
    notes: list[str] = []
    for group in groups:
        objective = classes.get(str(group[0])).objective
        sides = [
            _side(_part(table, places.get(group)), objective, span, more, alone=len(places) == 1)
            for table, places, span, more in zip((old, new), (befores, afters), spans, unkept, strict=True)
        ]
        changes += _changes(dict(zip(keys, group, strict=True)), sides, drawing)
        notes += _notes(group, *(side.sample for side in sides))
    return Comparison(tuple(changes), drawing, tuple(notes))


class _Side(NamedTuple):
    """One recording's requests of a group, and their figures."""

    sample: Sample
    values: dict[str, float | None]
    of_totals: bool
    """Whether counts and the share of aborted requests are of more requests than the sample has."""


def _side(
    table: pa.Table, objective: Objective, span: float | None, unkept: Mapping[str, int], *, alone: bool
) -> _Side:
    one = sample(table, objective, span)
    return _Side(one, of_totals(one.figures, table, unkept, alone=alone), bool(unkept))


def _changes(group: dict[str, str | None], sides: Sequence[_Side], drawing: Drawing) -> list[Change]:
    names = [str(value) for value in group.values()]
    draws = [
        resamples(side.sample, drawing, drawing.generator(which, *names))
        for which, side in zip(("old", "new"), sides, strict=True)
    ]
    return [_change(group, figure, sides, drawing, draws) for figure in FIGURES]


def _change(
    group: dict[str, str | None],
    figure: Figure,
    sides: Sequence[_Side],
    drawing: Drawing,
    draws: list[dict[str, Floats]],
) -> Change:
    (before, after), (old, new) = zip(*((side.sample, side.values[figure.name]) for side in sides), strict=True)
    why = _why_not(figure, before, after, drawing, old, new)
    if figure.name == "aborted_share" and any(side.of_totals for side in sides):
        why = "not sampled: it is of the tool's totals"
    low = high = ratio_low = ratio_high = None
    if not why:
        olds, news = (one[figure.name] for one in draws)
        known = ~np.isnan(olds) & ~np.isnan(news)
        low, high = drawing.bounds((news - olds)[known])
        if old and old > 0 and drawing.bounds(olds[known])[0] > 0:
            ratio_low, ratio_high = drawing.bounds(news[known] / np.where(olds > 0, olds, np.nan)[known])
            if not np.isfinite([ratio_low, ratio_high]).all():
                ratio_low = ratio_high = None
    return Change(
        slo_class=str(group["slo_class"]),
        measured_at=str(group["measured_at"]),
        model=group.get("model"),
        instance=group.get("instance"),
        figure=figure.name,
        old=old,
        new=new,
        difference=None if old is None or new is None else new - old,
        difference_low=low,
        difference_high=high,
        ratio=new / old if old is not None and new is not None and old > 0 else None,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        better=figure.better,
        verdict=_verdict(None if figure.kind == "rate" and _other_load(before, after) else figure.better, low, high),
        why=why,
        old_requests=len(before),
        new_requests=len(after),
    )


def _why_not(
    figure: Figure, before: Sample, after: Sample, drawing: Drawing, old: float | None, new: float | None
) -> str:
    """Return why a change has no interval, "" if it has one."""
    for name, one in (("old", before), ("new", after)):
        if not len(one):
            return f"no request in {name}"
    for name, one, value in (("old", before, old), ("new", after, new)):
        if value is None:
            return f"nothing to say of {name}"
        few = too_few(one, figure, drawing)
        if few:
            return few if few.startswith("not sampled") else f"{few} in {name}"
    return ""


def _verdict(
    better: Better, low: float | None, high: float | None
) -> Literal["better", "worse", "differs", "not shown", "cannot say"]:
    if low is None or high is None:
        return "cannot say"
    if low <= 0 <= high:
        return "not shown"
    if better is None:
        return "differs"
    return "better" if (low > 0) == (better == "higher") else "worse"


def _notes(group: tuple[str | None, ...], before: Sample, after: Sample) -> list[str]:
    """Return notes on rates per second of two different loads."""
    rates = _other_load(before, after)
    if rates is None:
        return []
    name = ", ".join(str(one) for one in group)
    sentence = (
        f"{name}: {rates[0]:.3g} requests/s in old, {rates[1]:.3g} in new: figures per second are those of two loads; "
        "benefit_mean_tokens, shares and percentiles are per request, and still not those of one load"
    )
    return [sentence]


def _other_load(before: Sample, after: Sample) -> tuple[float, float] | None:
    """Return the two request rates if they are of two loads, None if they are not or that is not known."""
    if not before.span_s or not after.span_s or not len(before):
        return None
    old, new = len(before) / before.span_s, len(after) / after.span_s
    return (old, new) if abs(new / old - 1) > LOAD_CHANGED else None


def _part(table: pa.Table, rows: list[int] | None) -> pa.Table:
    return table.slice(0, 0) if rows is None else table.take(rows)
