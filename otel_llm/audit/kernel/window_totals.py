"""Add up recorded requests to the rows of `--windows`: partial totals of each batch, which add up in any order.

Windows are event time, [k w, (k+1) w) since the unix epoch, one row for each SLO class, model, instance and
measured_at with any event. `window_partials` is a function from a batch to a batch, so that worker processes and a
cluster charge the windows where the tokens are, and `merge_partials` adds up the partials: with results equal to the
bit however the streams were divided.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from otel_llm.audit.kernel.window_charges import charges, spread
from otel_llm.slo.batch.many import penalties
from otel_llm.slo.classes import ABORTED
from otel_llm.slo.quantiles import Sketch
from otel_llm.slo.windows import COUNTS, SKETCHES, WindowTotals

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from otel_llm.audit.kernel.window_charges import Charged, Spread
    from otel_llm.formats.rows import Row
    from otel_llm.slo.classes import SloClasses

    Ints = npt.NDArray[np.int64]

SKETCH: Final = pa.struct(
    [
        pa.field("zeros", pa.int64(), nullable=False),
        pa.field("greatest", pa.float64(), nullable=False),
        pa.field("buckets", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False),
        pa.field("counts", pa.list_(pa.field("item", pa.int64(), nullable=False)), nullable=False),
    ]
)
"""A quantile sketch: how many values were 0, the greatest, and the buckets (by number, rising) with their counts."""

PARTIALS: Final = pa.schema(
    [
        pa.field("window_start_unix_nano", pa.int64(), nullable=False),
        pa.field("slo_class", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("instance", pa.string()),
        pa.field("measured_at", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in COUNTS),
        pa.field("benefit_terms", pa.list_(pa.field("item", pa.float64(), nullable=False)), nullable=False),
        *(pa.field(name, SKETCH, nullable=False) for name in SKETCHES),
        pa.field("shifted", pa.int64(), nullable=False),
        pa.field("not_spread", pa.int64(), nullable=False),
    ]
)
"""Partial totals of a window and group: any number of rows with one key add up, by `merge_partials`.

The first five columns are the key (a null model or instance is a value of its own). The counts are those of
`slo.windows.WindowTotals`: requests, tokens, and `idle_ns` in ns; signed, since a window may give back what another
part charged. `benefit_terms`: floats whose exact sum (`math.fsum`) is the benefit, in tokens. `shifted`, `not_spread`:
streams that ended here whose clock was off by more than the lateness, and that were too long to be spread over all
their windows.
"""


class Group(NamedTuple):
    """The key of a row of windows beside its time."""

    slo_class: str
    model: str | None
    instance: str | None
    measured_at: str


@dataclass(slots=True)
class Windows:
    """Totals by window and group; partial ones are added one after the other.

    `width_ns`: windows are as wide, and partial totals of narrower ones are added up; 0: as the partial totals are.
    """

    width_ns: int = 0
    totals: dict[tuple[int, Group], WindowTotals] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """`shifted` and `not_spread`, over all windows."""

    def at(self, start_ns: int, group: Group) -> WindowTotals:
        """Return the totals of one window and group, created at the first call."""
        found = self.totals.get((start_ns, group))
        if found is None:
            found = self.totals[start_ns, group] = WindowTotals()
        return found

    def add(self, partials: pa.RecordBatch) -> None:
        """Add a batch of PARTIALS."""
        for row in partials.to_pylist():
            group = Group(row["slo_class"], row["model"], row["instance"], row["measured_at"])
            total = self.at(self._start(row["window_start_unix_nano"]), group)
            for name in COUNTS:
                setattr(total, name, getattr(total, name) + row[name])
            for term in row["benefit_terms"]:
                total.benefit.add(term)
            for name in SKETCHES:
                getattr(total, name).merge(Sketch.of(**row[name]))
            self.counts["shifted"] += row["shifted"]
            self.counts["not_spread"] += row["not_spread"]

    def widen(self, width_ns: int) -> None:
        """Add up the windows to ones of `width_ns`, a multiple of their width."""
        self.width_ns = width_ns
        narrow, self.totals = self.totals, {}
        for (start_ns, group), total in narrow.items():
            self.at(self._start(start_ns), group).merge(total)
        # A wait that was charged and given back within one window is no charge to it.
        self.totals = {key: total for key, total in self.totals.items() if not total.empty}

    @property
    def span_ns(self) -> int:
        """Return the time from the first window's start to the last one's."""
        starts = [start_ns for start_ns, _ in self.totals]
        return max(starts) - min(starts) if starts else 0

    def _start(self, start_ns: int) -> int:
        return start_ns - start_ns % self.width_ns if self.width_ns else start_ns

    def rows(self, window_ns: int) -> list[Row]:
        """Return the rows of `--windows` in order of window, class, model, instance and measured_at (null last)."""
        keys = sorted(self.totals, key=lambda key: (key[0], *(_null_last(name) for name in key[1])))
        return [self.totals[start, group].row(start, window_ns, group._asdict()) for start, group in keys]


def merge_partials(batches: Iterable[pa.RecordBatch], window_ns: int) -> list[Row]:
    """Return the rows of `--windows` from batches of PARTIALS, in their order."""
    windows = Windows()
    for batch in batches:
        windows.add(batch)
    return windows.rows(window_ns)


def window_partials(
    streams: pa.RecordBatch, judged: pa.RecordBatch, classes: SloClasses, window_ns: int, lateness_ns: int
) -> pa.RecordBatch:
    """Return the contributions of a batch of STREAMS and its JUDGED (of `judge_batch`, row for row), as PARTIALS.

    Foreign spans without times of tokens are in no window. A stream whose clock is off by more than `lateness_ns` is
    placed by its receiver's clock.
    """
    where = spread(streams, window_ns, lateness_ns)
    groups, group_of = _groups(judged)
    parts = [part for part in charges(streams, judged, classes, window_ns, where) if len(part.stream)]
    rows = np.flatnonzero(where.in_windows)
    begun = np.flatnonzero(where.in_windows & where.begun)
    places = [(group_of[part.stream], part.start_ns) for part in parts]
    keys = _Keys([*places, (group_of[begun], where.first[begun]), (group_of[rows], where.last[rows])])
    totals = [WindowTotals() for _ in range(keys.count)]
    sums = {name: np.zeros(keys.count, np.int64) for name in (*COUNTS, "shifted", "not_spread")}
    for part, key in zip(parts, keys.of, strict=False):
        np.add.at(sums["tokens_read"], key, part.tokens)
        np.add.at(sums["idle_ns"], key, part.idle_after - part.idle_before)
        _penalise(part, key, totals)
    np.add.at(sums["requests_started"], keys.of[-2], 1)
    _end(streams, judged, classes, where, rows, keys.of[-1], sums, totals)
    for place, (total, tokens) in enumerate(zip(totals, sums["tokens_read"].tolist(), strict=True)):
        total.benefit.add(tokens)
        for name in COUNTS:
            setattr(total, name, int(sums[name][place]))
    cells: dict[str, Any] = {name: sums[name] for name in ("shifted", "not_spread")}
    return _partials(keys, groups, totals, cells)


def _penalise(part: Charged, key: Ints, totals: list[WindowTotals]) -> None:
    """Add to each window the change of the cost of idle time since the last charge, as exact terms."""
    moved = np.flatnonzero(part.idle_before != part.idle_after)
    before = penalties(part.idle_before[moved], part.slo).tolist()
    after = penalties(part.idle_after[moved], part.slo).tolist()
    for place, gone, come in zip(key[moved].tolist(), before, after, strict=True):
        benefit = totals[place].benefit
        if gone:
            benefit.add(gone)
        if come:
            benefit.add(-come)


def _end(
    streams: pa.RecordBatch,
    judged: pa.RecordBatch,
    classes: SloClasses,
    where: Spread,
    rows: Ints,
    key: Ints,
    sums: dict[str, Ints],
    totals: list[WindowTotals],
) -> None:
    """Count the ended requests, each in its last window."""
    some = judged.take(pa.array(rows))
    has = streams.column("complete").to_numpy(zero_copy_only=False)[rows] & where.begun[rows]
    met = some.column("met")
    known = met.is_valid().to_numpy(zero_copy_only=False)
    hit = met.fill_null(False).to_numpy(zero_copy_only=False) & known
    outcomes = some.column("outcome").to_pylist()
    aborted = np.array([outcome in ABORTED for outcome in outcomes], np.bool_)
    counted = {
        "requests_ended": np.ones(len(rows), np.int64),
        "aborted": aborted,
        "incomplete": ~has,
        "met_true": hit,
        "met_false": known & ~hit,
        "met_null": ~known,
        "goodput_tokens": np.where(hit, some.column("tokens_read").fill_null(0).to_numpy(zero_copy_only=False), 0),
        "shifted": where.shift_ns[rows] != 0,
        "not_spread": where.cut[rows],
    }
    for name, values in counted.items():
        np.add.at(sums[name], key, values)
    judged_ones = some.column("idle_ns").is_valid().to_numpy(zero_copy_only=False) & has
    names = some.column("slo_class").to_pylist()
    costs = {slo.name: slo.benefit.abort_penalty for slo in classes.classes}
    for place in np.flatnonzero(aborted & judged_ones).tolist():
        if cost := costs[names[place]]:
            totals[key[place]].benefit.add(-cost)
    places = key.tolist()
    for name, column in SKETCHES.items():
        for place, value, full in zip(places, some.column(column).to_pylist(), has.tolist(), strict=True):
            if full and value is not None:
                getattr(totals[place], name).add(value)


class _Keys:
    """Windows and groups by number: `of` has those of each of the given (groups, starts)."""

    def __init__(self, places: list[tuple[Ints, Ints]]) -> None:
        group = np.concatenate([one for one, _ in places])
        start = np.concatenate([one for _, one in places])
        starts, at = np.unique(start, return_inverse=True)
        joint, key = np.unique(group * max(1, len(starts)) + at.ravel(), return_inverse=True)
        self.count = len(joint)
        self.group = joint // max(1, len(starts))
        self.start_ns = starts[joint % max(1, len(starts))] if len(starts) else starts
        cuts = np.cumsum([len(one) for one, _ in places])[:-1]
        self.of = np.split(key.ravel(), cuts)


def _groups(judged: pa.RecordBatch) -> tuple[list[Group], Ints]:
    """Return the groups that occur, and the index of each row's (R,)."""
    places: dict[Group, int] = {}
    columns = [judged.column(name).to_pylist() for name in Group._fields]
    found = [places.setdefault(Group(*row), len(places)) for row in zip(*columns, strict=True)]
    return list(places), np.array(found, np.int64)


def _partials(keys: _Keys, groups: list[Group], totals: list[WindowTotals], cells: dict[str, Any]) -> pa.RecordBatch:
    of = [groups[number] for number in keys.group.tolist()]
    cells["window_start_unix_nano"] = keys.start_ns
    for name in Group._fields:
        cells[name] = [getattr(group, name) for group in of]
    for name in COUNTS:
        cells[name] = [getattr(total, name) for total in totals]
    cells["benefit_terms"] = [total.benefit.terms() for total in totals]
    for name in SKETCHES:
        cells[name] = [getattr(total, name).parts() for total in totals]
    arrays = [pa.array(cells[item.name], item.type) for item in PARTIALS]
    return pa.RecordBatch.from_arrays(arrays, schema=PARTIALS)


def _null_last(name: str | None) -> tuple[bool, str]:
    return (name is None, name or "")
