"""What an audit found: rows, windows, the summary, and what could not be read; pandas only when asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_llm.audit.tables import REQUESTS, WINDOWS, frame
from otel_llm.audit.write import ENDINGS, check_output, write_table, write_text
from otel_llm.slo.summary import summarise

if TYPE_CHECKING:
    import pandas as pd

    from otel_llm.audit.tables import Kind
    from otel_llm.readers.assemble import Assembled
    from otel_llm.readers.files import Skipped
    from otel_llm.readers.rows import Row
    from otel_llm.slo.classes import SloClass, SloClasses
    from otel_llm.slo.verdict import Verdict


@dataclass(slots=True)
class Judged:
    """One stream with its row, its verdict (None where nothing can be said) and the class that judged it.

    `fluid_tbt_ns` is the smallest TBT target at which it is fluid (Etalon, section 5.1), None where it has none.
    """

    row: Row
    verdict: Verdict | None
    fluid_tbt_ns: int | None
    slo: SloClass
    assembled: Assembled


@dataclass(slots=True)
class Audit:
    """Hold everything that was found in the input.

    `judged` are the streams in the order of `--requests`; `window_rows` are those of `--windows`; `skipped` says
    what could not be read, and where; `counts` what was odd but harmless (repetitions, spans of others ...).
    """

    inputs: tuple[str, ...]
    classes: SloClasses
    window_ns: int
    judged: list[Judged]
    window_rows: list[Row]
    skipped: Skipped
    counts: Counter[str] = field(default_factory=Counter)
    _summary: dict[str, Any] | None = None

    @property
    def rows(self) -> list[Row]:
        """Return the rows of `--requests` as dictionaries: ordered by start, trace id, span id, choice."""
        return [one.row for one in self.judged]

    @property
    def requests(self) -> pd.DataFrame:
        """Return the rows of `--requests` as a DataFrame of nullable types; seconds, tokens, unix ns."""
        return frame(self.rows, REQUESTS)

    @property
    def windows(self) -> pd.DataFrame:
        """Return the rows of `--windows` as a DataFrame of nullable types; seconds, tokens, unix ns."""
        return frame(self.window_rows, WINDOWS)

    def summary(self) -> dict[str, Any]:
        """Return the object of `--format json`; `skipped` is the number of broken records, a cut-off one included."""
        if self._summary is None:
            skipped = self.skipped.broken + self.skipped.counts["torn_tail"]
            tbts_ns = [one.fluid_tbt_ns for one in self.judged]
            self._summary = summarise(self.rows, self.classes, self.span_ns, skipped, tbts_ns)
        return self._summary

    @property
    def span_ns(self) -> int | None:
        """Return the time from the first commit to the last end, ns; None where neither is known."""
        streams = [one.assembled for one in self.judged]
        starts = [one.resolved.commit_ns for one in streams if one.resolved.commit_ns is not None]
        ends = [end for one in streams for end in (one.resolved.end_ns, *one.times_ns[-1:]) if end is not None]
        return max(ends) - min(starts) if starts and ends else None

    def write_requests(self, path: str | Path) -> None:
        """Write the rows of `--requests` as .parquet, .csv or .jsonl. Raises OutputError where that cannot be done."""
        _write(Path(path), self.rows, REQUESTS)

    def write_windows(self, path: str | Path) -> None:
        """Write the rows of `--windows` as .parquet, .csv or .jsonl. Raises OutputError where that cannot be done."""
        _write(Path(path), self.window_rows, WINDOWS)

    def write_html(self, path: str | Path) -> None:
        """Write the report as one self-contained page. Raises OutputError where that cannot be done."""
        from otel_llm.audit.report import render

        check_output(Path(path), (".html",))
        write_text(Path(path), render(self))


def _write(path: Path, rows: list[Row], columns: dict[str, Kind]) -> None:
    check_output(path, ENDINGS)
    write_table(path, rows, columns)
