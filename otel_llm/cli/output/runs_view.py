"""The table of `otel-llm audit --runs`: a row for each run, class and place of measurement."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.audit import coverage, write
from otel_llm.audit.runs import COLUMNS
from otel_llm.cli.output.echo import write_data
from otel_llm.cli.output.terminal_console import wide_console
from otel_llm.shared.formatting import number, seconds, share
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.audit.runs import Run

SHOWN: Final[tuple[tuple[str, str, Callable[[Any], str]], ...]] = (
    ("load_req_s", "stated\nreq/s", number),
    ("requests", "re-\nquests", number),
    ("throughput_req_s", "req/s", number),
    ("throughput_tok_s", "tok/s", number),
    ("ttft_p50_s", "TTFT\np50", seconds),
    ("ttft_p99_s", "TTFT\np99", seconds),
    ("itl_p99_s", "ITL\np99", seconds),
    ("tpot_p50_s", "TPOT\np50", seconds),
    ("e2e_p50_s", "E2E\np50", seconds),
    ("e2e_p99_s", "E2E\np99", seconds),
    ("idle_p99_s", "idle\np99", seconds),
    ("attainment", "attain-\nment", share),
)
"""(figure, heading, formatter), the stated load first."""


def show(found: Sequence[Run], form: str, *, csv_raw: bool) -> None:
    """Print the runs as a table, one JSON object, or CSV."""
    rows = [row for run in found for row in run.rows]
    if form == "json":
        click.echo(json.dumps({"runs": [run.summary() for run in found]}, allow_nan=False))
    elif form == "csv":
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
