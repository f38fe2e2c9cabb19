"""The summary of many judged requests from partial totals in any order: counts, exact sums, quantile sketches.

The figures are those of `slo.summary`: counts, shares and sums the same to the bit; quantiles (and the fluid token
rate, which is one) come from sketches, within 1 % of the local audit's nearest ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_llm.audit.kernel.judged_columns import gap_counts, judgements, positions_by
from otel_llm.audit.kernel.window_totals import SKETCH
from otel_llm.slo.exact import ExactSum
from otel_llm.slo.figures import COUNTED, GAPS, NUMBERS, TERMS, TEXTS, VALUES
from otel_llm.slo.fluid.fluid_rate import targets
from otel_llm.slo.quantiles import Sketch
from otel_llm.slo.summary import Requests, summary_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from fractions import Fraction

    from otel_llm.slo.classes import Objective, SloClasses
    from otel_llm.slo.summary import Figures

_EXACT: Final = tuple(one.name for one in TERMS if one.kind == "real")
_SKETCHES: Final = (*(one.name for one in VALUES), GAPS)
_COLUMNS: Final = (*TEXTS, *NUMBERS, "end_unix_nano", "gap_buckets", "gap_counts")

TOTALS: Final = pa.schema(
    [
        pa.field("slo_class", pa.string(), nullable=False),
        pa.field("measured_at", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in COUNTED),
        pa.field("first_ns", pa.int64()),
        pa.field("last_ns", pa.int64()),
        *(pa.field(name, pa.list_(pa.float64()), nullable=False) for name in _EXACT),
        *(pa.field(name, SKETCH, nullable=False) for name in _SKETCHES),
    ]
)
"""Partial totals of a class at one place of measuring: rows with one key add up (`merged`).

They are the TERMS, sketches of the VALUES, and times. A term of real numbers is a list of floats with the exact sum.
`first_ns` and `last_ns` are the first commit and the last end, unix ns.
"""


@dataclass(slots=True)
class ClassTotals:
    """The totals of the judged requests of one class, measured at one place: terms by name, and sketches of values."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    exact: dict[str, ExactSum] = field(default_factory=lambda: {name: ExactSum() for name in _EXACT})
    sketches: dict[str, Sketch] = field(default_factory=lambda: {name: Sketch() for name in _SKETCHES})
    first_ns: int | None = None
    last_ns: int | None = None

    @classmethod
    def of_requests(cls, table: pa.Table, objective: Objective) -> ClassTotals:
        """Return the totals of a table of JUDGED, all of one class and place."""
        requests = Requests(judgements(table), objective)
        found = cls({name: int(requests.total(name)) for name in COUNTED})
        found.first_ns, found.last_ns = pc.min(table["start_unix_nano"]).as_py(), pc.max(table["end_unix_nano"]).as_py()
        for name, exact in found.exact.items():
            term = requests.terms[name]
            for value in term[term != 0].tolist():
                exact.add(value)
        for name, values in requests.values.items():
            sketch = found.sketches[name]
            for value in values[~np.isnan(values)].tolist():
                sketch.add(value)
        found.sketches[GAPS] = gap_counts(table).pooled(requests.longest_gap_s)
        return found

    def merge(self, other: ClassTotals) -> None:
        """Add another total."""
        for name in COUNTED:
            self.counts[name] += other.counts[name]
        for name in _EXACT:
            self.exact[name].merge(other.exact[name])
        for name in _SKETCHES:
            self.sketches[name].merge(other.sketches[name])
        self._span(other.first_ns, other.last_ns)

    def _span(self, first_ns: int | None, last_ns: int | None) -> None:
        if first_ns is not None:
            self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        if last_ns is not None:
            self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)

    def row(self) -> dict[str, Any]:
        """Return the columns of TOTALS but the key."""
        terms = {name: exact.terms() for name, exact in self.exact.items()}
        sketches = {name: sketch.parts() for name, sketch in self.sketches.items()}
        return {**self.counts, "first_ns": self.first_ns, "last_ns": self.last_ns, **terms, **sketches}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ClassTotals:
        """Return the totals of a row of TOTALS."""
        return cls(
            {name: row[name] for name in COUNTED},
            {name: ExactSum(row[name]) for name in _EXACT},
            {name: Sketch.of(**row[name]) for name in _SKETCHES},
            row["first_ns"],
            row["last_ns"],
        )

    def figures(self, objective: Objective, span_s: float | None) -> Figures:
        """Return the figures of `slo.summary.figures`, rates per second of `span_s`."""
        return summary_figures(_OfClass(self, targets(objective)[1]), span_s)


@dataclass(frozen=True, slots=True)
class _OfClass:
    """The totals of a class, and the share of requests in its objective."""

    totals: ClassTotals
    tail: Fraction

    def total(self, term: str) -> int | float:
        """Return the sum of a term."""
        return self.totals.counts[term] if term in COUNTED else self.totals.exact[term].value

    def quantile(self, value: str, share: Fraction) -> float | None:
        """Return a percentile of a value, or of GAPS, within 1 %."""
        return self.totals.sketches[value].quantile(share)


Key = tuple[str, str]


def totals(batches: Iterable[pa.RecordBatch], classes: SloClasses) -> Iterator[pa.RecordBatch]:
    """Yield the TOTALS of batches of JUDGED, a row for each class and place."""
    found: dict[Key, ClassTotals] = {}
    for batch in batches:
        table = pa.Table.from_batches([batch.select(_COLUMNS)])
        for (name, place), rows in positions_by(table, ("slo_class", "measured_at")).items():
            part = ClassTotals.of_requests(table.take(rows), classes.get(str(name)).objective)
            found.setdefault((str(name), str(place)), ClassTotals()).merge(part)
    yield _batch(found)


def merged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the TOTALS that are the sums of batches of TOTALS."""
    yield _batch(_merged(row for batch in batches for row in batch.to_pylist()))


def summary(rows: Iterable[Mapping[str, Any]], classes: SloClasses, skipped: int) -> dict[str, Any]:
    """Return the object of `--format json` from rows of TOTALS: classes in file order, each by `measured_at`."""
    found = _merged(rows)
    every = ClassTotals()
    for one in found.values():
        every.merge(one)
    span_s = None if every.first_ns is None or every.last_ns is None else (every.last_ns - every.first_ns) / 1e9
    return {
        "requests": every.counts["requests"],
        "tokens": every.counts["tokens"],
        "span_s": span_s,
        "skipped": skipped,
        "classes": {
            name: {
                place: found[key, place].figures(classes.get(name).objective, span_s)
                for key, place in sorted(found)
                if key == name
            }
            for name in classes.names
            if any(key == name for key, _ in found)
        },
    }


def _merged(rows: Iterable[Mapping[str, Any]]) -> dict[Key, ClassTotals]:
    found: dict[Key, ClassTotals] = {}
    for row in rows:
        found.setdefault((row["slo_class"], row["measured_at"]), ClassTotals()).merge(ClassTotals.of(row))
    return found


def _batch(found: Mapping[Key, ClassTotals]) -> pa.RecordBatch:
    rows = [{"slo_class": name, "measured_at": place, **one.row()} for (name, place), one in found.items()]
    return pa.RecordBatch.from_pylist(rows, TOTALS)
