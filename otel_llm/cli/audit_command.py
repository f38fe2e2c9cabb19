"""`otel-llm audit`: recorded streams to a table, files and a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console

from otel_llm.audit import load, objectives, terminal, write
from otel_llm.audit.words import printable
from otel_llm.cli.progress import reading
from otel_llm.rules.yamlfile import ConfigError
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.audit import Audit

WIDTH: Final = 120
"""Columns of the table where the output is no terminal."""

EXAMPLES = """
\b
Examples:
  otel-llm audit ~/.local/state/otel-llm/journal
  otel-llm audit traces.jsonl --html report.html
  otel-llm audit journal --requests rows.parquet --windows windows.csv --window 1m
  otel-llm audit journal --class voice --format json
  otel-llm audit journal --fail-on-objective          # exit 1 when a promise is broken

\b
Exit code: 0 fine; 1 an objective is missed (with --fail-on-objective) or a record is
broken (with --strict); 2 bad usage, or nothing to read.
"""

_FILE = click.Path(path_type=Path)


@click.command("audit", epilog=EXAMPLES, short_help="What readers felt, from recorded telemetry.")
@click.argument("paths", nargs=-1, required=True, type=_FILE, metavar="PATH...")
@click.option("--slo", type=_FILE, metavar="F", help="SLO classes; the shipped ones where not given.")
@click.option("--class", "class_name", metavar="NAME", help="Judge every request by this class.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv"]),
    default="table",
    show_default=True,
    help="What is printed: a table to read, one JSON object, or one CSV line for each class and measured_at.",
)
@click.option("--requests", type=_FILE, metavar="OUT", help="Write a row for each request: .parquet, .csv or .jsonl.")
@click.option("--windows", type=_FILE, metavar="OUT", help="Write a row for each window and group: the same endings.")
@click.option("--window", default="10s", show_default=True, metavar="LENGTH", help="Length of a window, as 10s or 1m.")
@click.option("--html", type=_FILE, metavar="OUT", help="Write the report: one page that needs no network.")
@click.option("--strict", is_flag=True, help="Exit 1 when a record is broken.")
@click.option("--fail-on-objective", is_flag=True, help="Exit 1 when a class misses an objective it states.")
def audit(
    paths: tuple[Path, ...],
    slo: Path | None,
    class_name: str | None,
    form: str,
    requests: Path | None,
    windows: Path | None,
    window: str,
    html: Path | None,
    strict: bool,
    fail_on_objective: bool,
) -> None:
    """Judge recorded streams: what did their readers feel?

    PATH is a journal of `otel-llm collect` (a file or its folder), OTLP JSON lines or OTLP protobuf as the
    OpenTelemetry Collector writes them, plain, gzip or zstd; what a file holds is seen from its content.
    """
    outputs = [(requests, write.ENDINGS), (windows, write.ENDINGS), (html, (".html",))]
    try:
        write.check_outputs([(path, endings) for path, endings in outputs if path is not None], paths)
        with reading(_size(paths)) as advance:
            found = load(*paths, slo=slo, class_name=class_name, window=_length(window), progress=advance)
        if requests is not None:
            found.write_requests(requests)
        if windows is not None:
            found.write_windows(windows)
        if html is not None:
            found.write_html(html)
    except ModuleNotFoundError as missing:
        from otel_llm.cli.main import MissingExtraError

        raise MissingExtraError("audit", missing.name or "a module") from missing
    except (ConfigError, UnknownClassError, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    _print(found, form)
    for note in found.skipped.notes:
        click.echo(printable(note, 300), err=True)
    missed = any(one.state == "missed" for one in objectives.check(found.rows, found.classes))
    if (strict and found.skipped.broken) or (fail_on_objective and missed):
        sys.exit(1)


def _length(window: str) -> str | float:
    """Take a bare number as seconds, as the SLO files do."""
    try:
        return float(window)
    except ValueError:
        return window


def _print(found: Audit, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(found.summary(), allow_nan=False))
        return
    if form == "csv":
        click.echo(terminal.summary_csv(found.summary()), nl=False)
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    terminal.show(console, found)


def _size(paths: Sequence[Path]) -> int:
    return sum(
        file.stat().st_size
        for path in paths
        for file in (path.iterdir() if path.is_dir() else [path])
        if file.is_file()
    )
