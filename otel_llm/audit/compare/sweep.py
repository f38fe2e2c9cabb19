"""Smooth goodput as a function of alpha, reading speed and load, over recorded streams (Wang et al., section 5.5).

Each recording is read once. Idle time depends on the reading speed, so every speed is a judgement of its own; alpha
only weighs it (equation 10), so all alphas share one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.audit.compare.bootstrap import FEWEST, Drawing, resampled_sums
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.judged_columns import span_s
from otel_llm.audit.kernel.samples import reals
from otel_llm.config.durations import exact
from otel_llm.slo.batch.many import penalty_shape
from otel_llm.slo.classes import ABORTED, NS_PER_S, Benefit, SloClasses
from otel_llm.slo.quantiles import P50, P99, rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from otel_llm.audit.kernel.samples import Floats
    from otel_llm.slo.metrics import Kind

POINTS: Final[dict[str, Kind]] = {
    "recording": "text",
    "load_req_s": "real",
    "measured_at": "text",
    "reading_speed_tok_s": "real",
    "alpha": "real",
    "requests": "integer",
    "incomplete": "integer",
    "aborted_share": "real",
    "attainment": "real",
    "idle_p50_s": "real",
    "idle_p99_s": "real",
    "throughput_tok_s": "real",
    "smooth_goodput_tok_s": "real",
    "smooth_goodput_low": "real",
    "smooth_goodput_high": "real",
}
"""The columns of `Sweep.points` and their types: one row for each recording, place, speed and alpha."""
OPTIMA: Final[dict[str, Kind]] = {
    "measured_at": "text",
    "reading_speed_tok_s": "real",
    "alpha": "real",
    "load_req_s": "real",
    "smooth_goodput_tok_s": "real",
    "load_low": "real",
    "load_high": "real",
    "best_share": "real",
    "at_edge": "truth",
}
"""Those of `Sweep.optima`: the load of the highest smooth goodput, for each place, speed and alpha."""


class SweepError(ValueError):
    """A sweep was refused; the text says what to write."""


@dataclass(frozen=True, slots=True)
class Felt:
    """The complete requests of a level at one reading speed, (R,) each in order of their start.

    `worth`: tokens read less the abort penalty; `cost`: f(idle), the cost of one unit of alpha; `idle_s`: NaN if
    nothing was to be read, which neither yields nor costs anything. `tokens` is the sum of those read;
    `met` of `judged` held their deadlines.
    """

    worth: Floats
    cost: Floats
    idle_s: Floats
    tokens: float
    met: int
    judged: int


@dataclass(frozen=True, slots=True)
class Level:
    """One recording at one place of measurement, judged at every speed.

    `load_req_s` is its stated load, or its requests per second of its span; None if it has no span.
    """

    name: str
    measured_at: str
    load_req_s: float | None
    span_s: float | None
    requests: int
    incomplete: int
    aborted: int
    speeds: dict[float | None, Felt]


def judge_recording(
    name: str,
    streams: Iterable[pa.RecordBatch],
    classes: SloClasses,
    speeds: Sequence[float | None],
    load_req_s: float | None = None,
) -> list[Level]:
    """Judge a recording at every reading speed, in one pass; return one level for each measured_at in it.

    `streams` are batches of STREAMS; a speed of None is that of each request's own class.
    """
    variants = {speed: at_speed(classes, speed) for speed in speeds}
    shapes = {slo.name: slo.benefit for slo in classes.classes}
    parts: dict[str, list[dict[float | None, pa.RecordBatch]]] = {}
    for batch in streams:
        judged = {speed: judge_batch(batch, mine) for speed, mine in variants.items()}
        places = np.array(next(iter(judged.values())).column("measured_at").to_pylist(), dtype=object)
        for place in sorted(set(places.tolist())):
            which = np.flatnonzero(places == place)
            parts.setdefault(place, []).append({speed: _slim(one, which) for speed, one in judged.items()})
    return [_level(name, place, mine, load_req_s, shapes) for place, mine in sorted(parts.items())]


def at_speed(classes: SloClasses, speed: float | None) -> SloClasses:
    """Return the classes with this reading speed in tokens/s, unchanged for None."""
    if speed is None:
        return classes
    pace_ns = max(1, round(NS_PER_S / exact(speed)))
    return replace(classes, classes=tuple(replace(slo, pace_ns=pace_ns) for slo in classes.classes))


@dataclass(frozen=True, slots=True)
class Sweep:
    """The points of a sweep and, for two recordings or more, the best load at each alpha.

    `points` have the columns POINTS, `optima` OPTIMA; None if a value is unknown.
    """

    points: list[dict[str, Any]]
    optima: list[dict[str, Any]]


def sweep(levels: Sequence[Level], alphas: Sequence[float], drawing: Drawing | None = None) -> Sweep:
    """Return smooth goodput at every level, speed and alpha, and the load at which it is highest.

    Intervals are bootstrap intervals of the requests of each level. `best_share`: the share of resamples in which the
    same load is best; `load_low` to `load_high` hold the best load in 95 % of them; `at_edge`: it is the lowest or the
    highest recorded load, so the peak may lie beyond. Raises SweepError for a load recorded twice.
    """
    drawing = Drawing() if drawing is None else drawing
    points: list[dict[str, Any]] = []
    optima: list[dict[str, Any]] = []
    for place in sorted({level.measured_at for level in levels}):
        mine = sorted((one for one in levels if one.measured_at == place), key=lambda one: one.load_req_s or 0.0)
        loads = [one.load_req_s for one in mine]
        twice = {load for load in loads if load is not None and loads.count(load) > 1}
        if twice:
            raise SweepError(
                f"two recordings at {min(twice):g} requests/s: give each load once; where a load is of several files, "
                "as one PATH that names them all: a folder, or a quoted pattern such as 'q2/*.jsonl'"
            )
        for speed in mine[0].speeds:
            draws = [_draw(one, speed, drawing) for one in mine]
            for alpha in alphas:
                rows = [_point(one, speed, alpha, draw, drawing) for one, draw in zip(mine, draws, strict=True)]
                points += rows
                known = [at for at, one in enumerate(mine) if one.span_s and one.load_req_s is not None]
                if len(known) > 1:
                    optima.append(_optimum(mine, rows, draws, known, drawing))
    return Sweep(points, optima)


def _slim(judged: pa.RecordBatch, which: Any) -> pa.RecordBatch:
    names = ("slo_class", "start_unix_nano", "end_unix_nano", "outcome", "coverage", "tokens_read", "idle_s", "met")
    return judged.select(list(names)).take(which)


def _level(
    name: str,
    place: str,
    parts: Sequence[dict[float | None, pa.RecordBatch]],
    load_req_s: float | None,
    shapes: dict[str, Benefit],
) -> Level:
    import pyarrow as pa

    tables = {speed: pa.Table.from_batches([part[speed] for part in parts]) for speed in parts[0]}
    speeds = {speed: _felt(table.sort_by("start_unix_nano"), shapes) for speed, table in tables.items()}
    first = next(iter(tables.values()))
    span = span_s(first)
    whole = _whole(first)
    return Level(
        name=name,
        measured_at=place,
        load_req_s=load_req_s if load_req_s is not None else (len(first) / span if span else None),
        span_s=span,
        requests=len(first),
        incomplete=int(np.count_nonzero(~whole)),
        aborted=sum(one in ABORTED for one in first["outcome"].to_pylist()),
        speeds=speeds,
    )


def _whole(table: pa.Table) -> Any:
    return table["start_unix_nano"].is_valid().to_numpy() & ~(reals(table, "coverage") < 1)


def _felt(table: pa.Table, shapes: dict[str, Benefit]) -> Felt:
    """Return the columns of the complete requests in order of start; those without a verdict count as 0."""
    table = table.filter(_whole(table))
    idle = reals(table, "idle_s")
    names = table["slo_class"].to_pylist()
    aborted = np.array([one in ABORTED for one in table["outcome"].to_pylist()], np.bool_)
    penalty = np.array([shapes[one].abort_penalty for one in names], np.float64)
    cost = np.zeros(len(table))
    for name in set(names):
        which = np.array([one == name for one in names], np.bool_) & ~np.isnan(idle)
        cost[which] = penalty_shape(idle[which], shapes[name].penalty)
    tokens = np.nan_to_num(reals(table, "tokens_read"))
    known = table["met"].drop_null().to_pylist()
    worth = np.where(np.isnan(idle), 0.0, tokens - np.where(aborted, penalty, 0.0))
    return Felt(worth, cost, idle, math.fsum(tokens.tolist()), sum(known), len(known))


def _draw(level: Level, speed: float | None, drawing: Drawing) -> Floats:
    """Return the sums of worth and cost (B, 2) in resamples of a level's requests."""
    mine = level.speeds[speed]
    return resampled_sums(
        np.column_stack([mine.worth, mine.cost]), drawing, drawing.generator(level.name, level.measured_at)
    )


def _point(level: Level, speed: float | None, alpha: float, draws: Floats, drawing: Drawing) -> dict[str, Any]:
    mine = level.speeds[speed]
    idle = np.sort(mine.idle_s[~np.isnan(mine.idle_s)])
    span = level.span_s or None
    worth, cost = math.fsum(mine.worth.tolist()), math.fsum(mine.cost.tolist())
    bounds: tuple[float | None, float | None] = (None, None)
    if span and len(idle) >= FEWEST * drawing.block:
        bounds = drawing.bounds(draws @ (1.0, -alpha) / span)
    return dict(
        zip(
            POINTS,
            (
                level.name,
                level.load_req_s,
                level.measured_at,
                speed,
                alpha,
                level.requests,
                level.incomplete,
                level.aborted / level.requests,
                mine.met / mine.judged if mine.judged else None,
                float(idle[rank(len(idle), P50)]) if len(idle) else None,
                float(idle[rank(len(idle), P99)]) if len(idle) else None,
                mine.tokens / span if span else None,
                (worth - alpha * cost) / span if span else None,
                *bounds,
            ),
            strict=True,
        )
    )


def _optimum(
    levels: Sequence[Level],
    rows: Sequence[dict[str, Any]],
    draws: Sequence[Floats],
    known: Sequence[int],
    drawing: Drawing,
) -> dict[str, Any]:
    row = rows[max(known, key=lambda at: rows[at]["smooth_goodput_tok_s"])]
    alpha, best = row["alpha"], row["load_req_s"]
    # A level of few requests would repeat itself: it is not resampled.
    some = [at for at in known if rows[at]["smooth_goodput_low"] is not None]
    low = high = share = None
    if row["smooth_goodput_low"] is not None and len(some) > 1:
        loads = np.array([levels[at].load_req_s for at in some])
        spans = np.array([levels[at].span_s for at in some])
        each = np.stack([draws[at] @ (1.0, -alpha) for at in some], axis=1) / spans
        found = loads[np.argmax(each, axis=1)]
        low, high = drawing.bounds(found)
        share = float(np.mean(found == best))
    return {
        "measured_at": row["measured_at"],
        "reading_speed_tok_s": row["reading_speed_tok_s"],
        "alpha": alpha,
        "load_req_s": best,
        "smooth_goodput_tok_s": row["smooth_goodput_tok_s"],
        "load_low": low,
        "load_high": high,
        "best_share": share,
        "at_edge": best in (levels[known[0]].load_req_s, levels[known[-1]].load_req_s),
    }
