"""The summary of many judged requests from partial totals in any order: counts, exact sums, quantile sketches.

The figures are those of `slo.summary`: counts, shares and sums the same to the bit; quantiles (and the fluid token
rate, which is one) come from sketches, within 1 % of the local audit's nearest ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_llm.audit.kernel.judged_columns import gap_counts, positions_by
from otel_llm.audit.kernel.samples import reals, sample
from otel_llm.audit.kernel.window_totals import SKETCH
from otel_llm.slo.exact import ExactSum
from otel_llm.slo.fluid.fluid_rate import targets
from otel_llm.slo.metrics import LATENCIES, STATISTICS
from otel_llm.slo.quantiles import Sketch
from otel_llm.slo.ranks import P50, P99
from otel_llm.slo.summary import PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from otel_llm.slo.classes import Objective, SloClasses

_COUNTS: Final = (
    "requests", "tokens", "incomplete", "undetermined", "aborted", "met", "judged", "tokens_read", "counted",
    "valued", "judgeable", "goodput_tokens", "fluid_ok", "fluid_due",
)  # fmt: skip
_SUMS: Final = {"goodput_tokens": "met_tokens", "fluid_ok": "fluid", "fluid_due": "due"}
"""Counts that have other names in `samples.sample`."""
_SKETCHES: Final = ("fluidity", "idle", "ttft", "ttfo", "tpot", "e2e", "itl", "fluid_tbt")
_EXACT: Final = {"benefit": "benefit", "ttft_s": "ttft_sum", "itl_s": "gap_s", "tpot_s": "tpot_sum", "e2e_s": "e2e_sum"}
"""The exact sums, and their columns in `samples.sample`."""
_COLUMNS: Final = (
    "slo_class", "measured_at", "start_unix_nano", "end_unix_nano", "outcome", "tokens", "tokens_read", "coverage",
    "met", "benefit", "fluidity_index", "idle_s", "ttft_s", "ttfo_s", "tpot_s", "e2e_s", "tbt_max_s",
    "gap_buckets", "gap_counts", "deadlines", "deadline_misses", "fluid_tbt_ns",
)  # fmt: skip

TOTALS: Final = pa.schema(
    [
        pa.field("slo_class", pa.string(), nullable=False),
        pa.field("measured_at", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in _COUNTS),
        pa.field("first_ns", pa.int64()),
        pa.field("last_ns", pa.int64()),
        *(pa.field(f"{name}_terms", pa.list_(pa.float64()), nullable=False) for name in _EXACT),
        *(pa.field(name, SKETCH, nullable=False) for name in _SKETCHES),
    ]
)
"""Partial totals of a class at one place of measuring: rows with one key add up (`merged`).

The counts are of requests and tokens; `first_ns`, `last_ns`: the first commit and the last end, unix ns;
`..._terms`: floats whose exact sum is the benefit, or all values of a latency; sketches of 0..1, and of seconds.
"""


@dataclass(slots=True)
class ClassTotals:
    """The totals of the judged requests of one class, measured at one place."""

    requests: int = 0
    tokens: int = 0
    incomplete: int = 0
    undetermined: int = 0
    aborted: int = 0
    met: int = 0
    judged: int = 0
    tokens_read: int = 0
    """Over the complete requests."""
    counted: int = 0
    """Requests with known `tokens_read`; `valued`: with the benefit; `judgeable`: with that, or the verdict."""
    valued: int = 0
    judgeable: int = 0
    goodput_tokens: int = 0
    fluid_ok: int = 0
    """Requests that keep the class's promised fluidity-index, of `fluid_due`."""
    fluid_due: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    benefit: ExactSum = field(default_factory=ExactSum)
    ttft_s: ExactSum = field(default_factory=ExactSum)
    itl_s: ExactSum = field(default_factory=ExactSum)
    tpot_s: ExactSum = field(default_factory=ExactSum)
    e2e_s: ExactSum = field(default_factory=ExactSum)
    fluidity: Sketch = field(default_factory=Sketch)
    idle: Sketch = field(default_factory=Sketch)
    ttft: Sketch = field(default_factory=Sketch)
    ttfo: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)
    e2e: Sketch = field(default_factory=Sketch)
    itl: Sketch = field(default_factory=Sketch)
    fluid_tbt: Sketch = field(default_factory=Sketch)

    @classmethod
    def of_requests(cls, table: pa.Table, objective: Objective) -> ClassTotals:
        """Return the totals of a table of JUDGED, all of one class and place."""
        part = sample(table, objective, None)
        counts: dict[str, Any] = {name: int(part.sums[_SUMS.get(name, name)].sum()) for name in _COUNTS}
        found = cls(**counts)
        found.first_ns, found.last_ns = pc.min(table["start_unix_nano"]).as_py(), pc.max(table["end_unix_nano"]).as_py()
        for name, column in _EXACT.items():
            exact: ExactSum = getattr(found, name)
            for term in part.sums[column][part.sums[column] != 0].tolist():
                exact.add(term)
        longest = reals(table, "tbt_max_s")
        found.itl = gap_counts(table).pooled(float(np.nanmax(longest, initial=0.0)))
        for sketch, column, unit in (
            (found.fluidity, "fluidity_index", 1.0),
            (found.idle, "idle_s", 1.0),
            (found.ttft, "ttft_s", 1.0),
            (found.ttfo, "ttfo_s", 1.0),
            (found.tpot, "tpot_s", 1.0),
            (found.e2e, "e2e_s", 1.0),
            (found.fluid_tbt, "fluid_tbt_ns", 1e9),
        ):
            values = part.ranked[column]
            for value in (values[~np.isnan(values)] / unit).tolist():
                sketch.add(value)
        return found

    def merge(self, other: ClassTotals) -> None:
        """Add another total."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._span(other.first_ns, other.last_ns)
        for name in (*_EXACT, *_SKETCHES):
            getattr(self, name).merge(getattr(other, name))

    def _span(self, first_ns: int | None, last_ns: int | None) -> None:
        if first_ns is not None:
            self.first_ns = first_ns if self.first_ns is None else min(self.first_ns, first_ns)
        if last_ns is not None:
            self.last_ns = last_ns if self.last_ns is None else max(self.last_ns, last_ns)

    def row(self) -> dict[str, Any]:
        """Return the columns of TOTALS but the key."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        terms = {f"{name}_terms": values.pop(name).terms() for name in _EXACT}
        return values | terms | {name: values[name].parts() for name in _SKETCHES}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ClassTotals:
        """Return the totals of a row of TOTALS."""
        found = cls(**{name: row[name] for name in (*_COUNTS, "first_ns", "last_ns")})
        for name in _EXACT:
            setattr(found, name, ExactSum(row[f"{name}_terms"]))
        for name in _SKETCHES:
            setattr(found, name, Sketch.of(**row[name]))
        return found

    def figures(self, objective: Objective, span_s: float | None) -> dict[str, int | float | None]:
        """Return the figures of `slo.summary.figures`, rates per second of `span_s`."""

        def a_second(amount: float, known: int) -> float | None:
            return amount / span_s if span_s and (known or not self.requests) else None

        tbt_s = self.fluid_tbt.quantile(targets(objective)[1])
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "incomplete": self.incomplete,
            "undetermined": self.undetermined,
            "aborted_share": _share(self.aborted, self.requests),
            "attainment": _share(self.met, self.judged),
            "throughput_tok_s": a_second(self.tokens_read, self.counted),
            "throughput_req_s": a_second(self.requests, self.requests),
            "goodput_tok_s": a_second(self.goodput_tokens, self.judgeable),
            "goodput_req_s": a_second(self.met, self.judgeable),
            "smooth_goodput_tok_s": a_second(self.benefit.value, self.valued),
            "fluidity_p50": self.fluidity.quantile(P50),
            "fluidity_ok_share": _share(self.fluid_ok, self.fluid_due),
            "idle_p50_s": self.idle.quantile(P50),
            "idle_p99_s": self.idle.quantile(P99),
            "ttfo_p50_s": self.ttfo.quantile(P50),
            "ttfo_p99_s": self.ttfo.quantile(P99),
            **{key: value for name in LATENCIES for key, value in self._latency(name).items()},
            "fluid_token_rate": 1 / tbt_s if tbt_s else None,
        }

    def _latency(self, name: str) -> dict[str, float | None]:
        sketch: Sketch = getattr(self, name)
        mean = getattr(self, f"{name}_s").value / sketch.count if sketch.count else None
        values = (mean, *(sketch.quantile(share) for share in PERCENTILES))
        return {f"{name}_{statistic}_s": value for statistic, value in zip(STATISTICS, values, strict=True)}


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
        "requests": every.requests,
        "tokens": every.tokens,
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


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
