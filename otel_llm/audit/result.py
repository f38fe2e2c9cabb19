"""The result of an audit: rows, windows, the summary, skipped parts; pandas only if it is needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_llm.audit import metadata
from otel_llm.audit.coverage import timeless
from otel_llm.audit.kernel.judged_columns import judgements, rows_of, span_ns
from otel_llm.audit.sampled import with_totals
from otel_llm.audit.tables import frame, frame_of
from otel_llm.audit.write import ENDINGS, check_output, write_table, write_text
from otel_llm.slo.figures import CLASSES
from otel_llm.slo.metrics import REQUESTS, WINDOWS
from otel_llm.slo.summary import summarise

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from otel_llm.audit.compare.tiers import Tiers
    from otel_llm.audit.input.retained import Retained
    from otel_llm.audit.report.compared import Compared
    from otel_llm.audit.report.report_model import ReportModel
    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.rows import Row
    from otel_llm.slo.classes import SloClasses
    from otel_llm.slo.metrics import Kind


@dataclass
class Audit:
    """The result of an audit.

    `slo` are the classes; `judged_table` has the columns of `kernel.JUDGED`, its rows in the order of `--requests`:
    by start, trace id, span id, choice (null last); `skipped` has the parts that could not be read, and their places;
    `counts` the harmless anomalies (repetitions, foreign spans ...).
    """

    inputs: tuple[str, ...]
    slo: SloClasses
    window_ns: int
    judged_table: pa.Table
    charged_windows: list[Row] | None
    """None if windows were not charged."""
    skipped: Skipped
    retained: Retained
    counts: Counter[str] = field(default_factory=Counter)

    @cached_property
    def rows(self) -> list[Row]:
        """Return the rows of `--requests` as dictionaries, for small inputs."""
        return rows_of(self.judged_table.select(list(REQUESTS)))

    @property
    def requests(self) -> pd.DataFrame:
        """Return the rows of `--requests` as a DataFrame of nullable types; seconds, tokens, unix ns."""
        return frame_of(self.judged_table, REQUESTS)

    @property
    def window_rows(self) -> list[Row]:
        """Return the rows of `--windows` as dictionaries; raises ValueError if `load` charged none."""
        if self.charged_windows is None:
            raise ValueError("windows were not charged; load with windows=True")
        return self.charged_windows

    @property
    def windows(self) -> pd.DataFrame:
        """Return the rows of `--windows` as a DataFrame of nullable types; seconds, tokens, unix ns.

        Raises ValueError if `load` charged none.
        """
        return frame(self.window_rows, WINDOWS)

    @property
    def classes(self) -> pd.DataFrame:
        """Return the figures of `summary()` as a DataFrame: a row for each class and measured_at that occurs."""
        found = self.summary()["classes"]
        rows = [
            {"slo_class": name, "measured_at": place, **figures}
            for name, places in found.items()
            for place, figures in places.items()
        ]
        return frame(rows, CLASSES)

    @cached_property
    def _summary(self) -> dict[str, Any]:
        skipped = self.skipped.broken + self.skipped.counts["torn_tail"]
        summary = summarise(judgements(self.judged_table), self.slo, self.span_ns, skipped)
        return with_totals(summary, self.judged_table, self.unkept)

    @property
    def unkept(self) -> Counter[str]:
        """Return the requests that files count in their totals and do not keep, by outcome."""
        return self.skipped.unkept

    def summary(self) -> dict[str, Any]:
        """Return the object of `--format json`; `skipped` is the number of broken records, a cut-off one included."""
        return self._summary

    @property
    def span_ns(self) -> int | None:
        """Return the time from the first commit to the last end, ns; None if neither is known.

        None too if the requests are a sample, or if none has a time of sending: each then begins at zero of an axis of
        its own.
        """
        return None if timeless(self.judged_table, self.counts) else span_ns(self.judged_table)

    def delivery(self, position: int) -> Assembled | None:
        """Return the token times of the request at a position among the rows; None if they were not retained.

        Those of a small input are; of a larger one those within `load.Limits`, and those of the trace ids in `keep` of
        `load`.
        """
        row = self.judged_table.slice(range(self.judged_table.num_rows)[position], 1)
        trace_id, span_id, tenant, choice = (
            row.column(name)[0].as_py() for name in ("trace_id", "span_id", "tenant", "choice")
        )
        return self.retained.find((trace_id, span_id, tenant, choice))

    def write_requests(self, path: str | Path, *, csv_raw: bool = False) -> None:
        """Write the rows of `--requests` as .parquet, .csv or .jsonl. Raises OutputError if that cannot be done.

        `csv_raw`: text in CSV unchanged, even if a spreadsheet would evaluate it.
        """
        about = metadata.encode(self.summary(), self.skipped.counts, self.counts, self.inputs, self.window_ns)
        _write(Path(path), self.judged_table.select(list(REQUESTS)), REQUESTS, about, csv_raw=csv_raw)

    def write_windows(self, path: str | Path, *, csv_raw: bool = False) -> None:
        """Write the rows of `--windows`, as `write_requests` does."""
        _write(Path(path), self.window_rows, WINDOWS, None, csv_raw=csv_raw)

    def report_model(self, tiers: Tiers | None = None, compared: Compared | None = None) -> ReportModel:
        """Return the report's model, with the classes as tiers and a comparison if they are given."""
        from otel_llm.audit.report.report_model import ReportModel

        return ReportModel(
            requests=self.requests,
            windows=frame([], WINDOWS) if self.charged_windows is None else self.windows,
            summary=self.summary(),
            classes=self.slo,
            window_ns=self.window_ns,
            inputs=self.inputs,
            skipped=self.skipped.counts,
            counts=self.counts,
            delivery=self.delivery,
            tiers=tiers,
            compared=compared,
        )

    def write_html(self, path: str | Path) -> None:
        """Write the report as one self-contained page. Raises OutputError if that cannot be done."""
        from otel_llm.audit.report.report import render

        check_output(Path(path), (".html",))
        write_text(Path(path), render(self))


def _write(
    path: Path,
    rows: list[Row] | pa.Table,
    columns: dict[str, Kind],
    about: dict[bytes, bytes] | None,
    *,
    csv_raw: bool,
) -> None:
    check_output(path, ENDINGS)
    write_table(path, rows, columns, metadata=about, csv_raw=csv_raw)
