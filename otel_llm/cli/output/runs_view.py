"""The table of `otel-llm audit --runs`: a row for each run, class and place of measurement."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.audit import coverage, write
from otel_llm.audit.runs import COLUMNS
from otel_llm.audit.summary_figures import RUN_TABLE, format_of
from otel_llm.cli.output.echo import write_data
from otel_llm.cli.output.terminal_console import wide_console
from otel_llm.shared.formatting import number
from otel_llm.shared.printable import printable
from otel_llm.slo.figures import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.audit.runs import Run

_NARROW: Final = {"requests": "re-\nquests"}
"""Headings that a row of twelve figures leaves less room for."""
SHOWN: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("load_req_s", "stated\nreq/s", number),
    *((name, _NARROW.get(name, BY_NAME[name].heading), format_of(name)) for name in RUN_TABLE),
)
"""(figure, heading, formatter), the stated load first."""


def show(found: Sequence[Run], output_format: str, *, csv_raw: bool) -> None:
    """Print the runs as a table, one JSON object, or CSV."""
    rows = [row for run in found for row in run.rows]
    if output_format == "json":
        click.echo(json.dumps({"runs": [run.summary() for run in found]}, allow_nan=False))
    elif output_format == "csv":
        write_data(write.csv_text(rows, COLUMNS, raw=csv_raw))
    else:
        _print(rows)
        for run in found:
            if about := coverage.sampled(run.audit.judged_table, run.audit.counts):
                wide_console().print(f"{printable(run.name, 120)}: {about}", style="dim", markup=False)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    """Print a row for each; a class and place that all have in common, and loads that none states, take no column."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    whose = [(printable(row["slo_class"], 24), str(row["measured_at"])) for row in rows]
    common = len(set(whose)) == 1
    title = Text(f"Judged as {whose[0][0]}, measured at {whose[0][1]}") if common else None
    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("run",) if common else ("run", "class, at"):
        table.add_column(heading, overflow="fold")
    shown = SHOWN if any(row["load_req_s"] is not None for row in rows) else SHOWN[1:]
    for _, heading, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, who in zip(rows, whose, strict=True):
        names = (printable(row["run"], 120), ", ".join(who))
        figures = (write(row[key]) for key, _, write in shown)
        table.add_row(*(Text(cell) for cell in (*(names[:1] if common else names), *figures)))
    wide_console().print(table)
