"""The audit on a terminal: the summary by class, its data quality, and the top offenders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.audit import coverage, objectives, summary_figures, top_offenders
from otel_llm.audit.compare import by_group
from otel_llm.audit.kernel.judged_columns import rows_of
from otel_llm.audit.kernel.waits import sentences, waits
from otel_llm.audit.write import csv_text
from otel_llm.shared.formatting import plural, seconds, share
from otel_llm.shared.printable import printable
from otel_llm.slo.metrics import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from rich.console import Console
    from rich.table import Table

    from otel_llm.audit.result import Audit
    from otel_llm.formats.rows import Cell

MOST_WORST: Final = 5
TIMELESS: Final = (
    "The recording does not say when requests were sent: each stands at zero of an axis of its own, so that nothing "
    "can be said per second or of the whole time."
)
_STATE_STYLE: Final = {"met": "green", "missed": "bold red", "no data": "dim"}


def show(console: Console, audit: Audit) -> None:
    """Print the summary of an audit; without a request only that, and what the input held instead."""
    summary = audit.summary()
    if not summary["requests"]:
        console.print("0 requests: no request was found in the input", style="bold")
        _show_details(console, audit)
        return
    timeless = coverage.timeless(audit.judged_table, audit.counts)
    span = f" in {seconds(summary['span_s'])}" if summary["span_s"] or timeless else ""
    console.print(f"{plural(summary['requests'], 'request')}, {plural(summary['tokens'], 'token')}{span}", style="bold")
    if about := coverage.sampled(audit.judged_table, audit.counts):
        console.print(f"{about[:1].upper()}{about[1:]}.", markup=False)
    console.print(sentences(waits(audit.judged_table)), markup=False)
    console.print(_table(["", *_columns(summary["classes"])], summary_figures.lines(summary["classes"])))
    console.print(_table(summary_figures.LATENCY_HEADINGS, summary_figures.latency_lines(summary["classes"])))
    if timeless and not audit.counts[coverage.NOT_IN_SAMPLE]:
        console.print(TIMELESS, style="dim", markup=False)
    for check in objectives.check(audit.judged_table, audit.slo):
        console.print(objective_line(check), style=_STATE_STYLE[check.state], markup=False)
    console.print(coverage.statement(audit.judged_table, audit.skipped.counts, audit.counts), style="dim", markup=False)
    _show_details(console, audit)
    for table in by_group.tables(audit):
        console.print(table)
    places = [one.position for one in top_offenders.choose(audit.judged_table, by_idle=MOST_WORST, by_fluidity=0)]
    chosen = rows_of(audit.judged_table.take(places)) if places else []
    if chosen:
        console.print(requests_table(chosen, "Readers who waited longest"))


def _show_details(console: Console, audit: Audit) -> None:
    for what, count in coverage.details(audit.skipped.counts, audit.counts):
        console.print(f"  {what}: {count:,}", style="dim", markup=False)


def objective_line(check: objectives.Check) -> str:
    """Return a line on an objective: its class, its promise, the result, and whether that is enough."""
    return (
        f"objective of {printable(check.slo_class)}, {printable(check.measured_at)}: {check.objective} for "
        f"{share(float(check.wanted))}: {share(check.share)} ({check.held:,} of {check.judged:,}), {check.state}"
    )


def requests_table(rows: Iterable[Mapping[str, Cell]], title: str) -> Table:
    """Return a table of requests: ids, tokens, first token, idle, stalls, fluidity, met."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for name in ("trace", "class", "model", "at", "outcome"):
        table.add_column(name, no_wrap=name == "trace")
    for name in summary_figures.REQUEST_TABLE:
        table.add_column(BY_NAME[name].label, justify="right", no_wrap=True)
    for row in rows:
        choice = f"/{row['choice']}" if row["choice"] else ""
        cells = [
            str(row["trace_id"])[-12:] + choice,
            _text(row["slo_class"]),
            _text(row["model"]),
            _text(row["measured_at"]),
            _text(row["outcome"]),
            *(summary_figures.cell(row, name) for name in summary_figures.REQUEST_TABLE),
        ]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def summary_csv(summary: Mapping[str, Any], *, raw: bool = False) -> str:
    """Return the figures of a summary as CSV: one line for each class and measured_at; `raw`: text unchanged."""
    classes = summary["classes"]
    figures = [
        {"slo_class": name, "measured_at": place} | classes[name][place]
        for name, place in summary_figures.groups(classes)
    ]
    columns = list(figures[0]) if figures else ["slo_class", "measured_at"]
    return csv_text(figures, columns, raw=raw)


def _columns(classes: Mapping[str, Any]) -> list[str]:
    return [f"{printable(name, 24)}\n{measured_at}" for name, measured_at in summary_figures.groups(classes)]


def _table(headings: Sequence[str], lines: Iterable[list[str]]) -> Table:
    """Return a table of figures; a line of one cell heads those below it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold", box=SIMPLE_HEAD)
    table.add_column(headings[0])
    for heading in headings[1:]:
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for place, line in enumerate(lines):
        if len(line) > 1:
            table.add_row(*(Text(cell) for cell in ("  " + line[0], *line[1:])))
            continue
        if place:
            table.add_row()
        table.add_row(Text(line[0], style="bold"))
    return table


def _text(value: Cell) -> str:
    return printable(None if value is None else str(value), 32)
