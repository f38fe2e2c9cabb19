"""`otel-llm audit`: judges recorded streams, and writes a table, files and a report."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.audit import load, objectives, terminal, write
from otel_llm.audit.input import parquet_streams
from otel_llm.audit.input.load_inputs import BrokenRecordError, SeveralRunsError, Tokens
from otel_llm.audit.kernel.workers import WorkerError, cores
from otel_llm.audit.runs import runs
from otel_llm.cli.option_types import format_option
from otel_llm.cli.output import comparison_view, runs_view
from otel_llm.cli.output.echo import CSV_RAW, echo, write_data
from otel_llm.cli.output.progress import reading_files
from otel_llm.cli.output.terminal_console import wide_console
from otel_llm.config.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.config.yaml_file import ConfigError
from otel_llm.formats.io.bytestream import STDIN
from otel_llm.shared.outputs import Inputs, replacing
from otel_llm.shared.printable import printable
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from otel_llm.audit import Audit
    from otel_llm.audit.runs import Run

SHIPPED: Final = "Judged by the shipped SLO classes; --slo FILE for your own."
"""The last line of the table: a collector with another file gives other verdicts."""
RUNS: Final = "Each run is judged by itself; --run NAME|N audits one in full."
"""The last line of the table of runs."""


EXAMPLES = """
\b
Examples:
  otel-llm audit ~/.local/state/otel-llm/journal
  otel-llm audit traces.jsonl --html report.html
  otel-llm audit journal --requests rows.parquet --windows windows.csv --window 1m
  otel-llm audit journal --class voice --format json
  otel-llm audit 'runs/**/*.json' --streams runs.parquet   # token times, for later audits
  otel-llm audit journal --fail-on-objective          # exit 1 when an objective is missed
  otel-llm audit new.jsonl --baseline old.jsonl --fail-on-regression
  otel-llm audit --runs 'runs/*.json'                 # a row for each run
  otel-llm audit sweep.json --run 3 --html third.html # one run of a file that holds several
  otel-llm audit journal --tiers                      # each class under each class's deadline

\b
Exit code: 0 fine; 1 an objective is missed (with --fail-on-objective), a figure is worse
than in --baseline (with --fail-on-regression) or a record is broken (with --strict); 2 bad
usage, nothing to read, or no verdict that a --fail-on option could check.
"""

_FILE = click.Path(path_type=Path)


@click.command("audit", epilog=EXAMPLES, short_help="What readers felt, from recorded telemetry.")
@click.argument("paths", nargs=-1, required=True, type=_FILE, metavar="PATH...")
@click.option("--slo", type=_FILE, metavar="F", help="SLO classes; the shipped ones where not given.")
@click.option("--class", "class_name", metavar="NAME", help="Judge every request by this class.")
@format_option(
    "table", "json", "csv", of="The output: a table, one JSON object, or one CSV line for each class and measured_at."
)
@click.option("--requests", type=_FILE, metavar="OUT", help="Write a row for each request: .parquet, .csv or .jsonl.")
@click.option("--windows", type=_FILE, metavar="OUT", help="Write a row for each window and group; same formats.")
@click.option(
    "--window",
    metavar="LENGTH",
    help="Length of a window, as 10s or 1m; without it 10s, and shorter for a recording of less than 400 s.",
)
@click.option("--html", type=_FILE, metavar="OUT", help="Write the report: one page that needs no network.")
@click.option("--streams", type=_FILE, metavar="OUT", help="Write the token times as .parquet, for later audits.")
@click.option(
    "--tokens",
    type=click.Choice(["stated", "recorded"]),
    default="stated",
    show_default=True,
    help="Judge the total that a reply states of itself, or the tokens as they were recorded.",
)
@click.option("--runs", "by_run", is_flag=True, help="Audit each file by itself, and print a row for each run.")
@click.option(
    "--run", metavar="NAME|N", help="Audit one run of a file that holds several: its name in --runs, or its number."
)
@click.option("--csv-raw", is_flag=True, help=CSV_RAW)
@click.option("--strict", is_flag=True, help="Stop at the first broken record, and exit 1.")
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes for large inputs; all cores if absent."
)
@click.option("--fail-on-objective", is_flag=True, help="Exit 1, and name it, if a class misses an objective.")
@comparison_view.options
def audit(
    paths: tuple[Path, ...],
    slo: Path | None,
    class_name: str | None,
    output_format: str,
    requests: Path | None,
    windows: Path | None,
    window: str | None,
    html: Path | None,
    streams: Path | None,
    tokens: Tokens,
    by_run: bool,
    run: str | None,
    csv_raw: bool,
    strict: bool,
    jobs: int | None,
    fail_on_objective: bool,
    comparison: comparison_view.ComparisonOptions,
) -> None:
    """Judge recorded streams by what their readers felt.

    PATH is a file, a folder, a quoted pattern such as 'runs/**/*.json', or - for standard input: journals of
    `otel-llm collect`, OTLP as the OpenTelemetry Collector writes it, traces of other stores, results of benchmark
    tools, Parquet or CSV of token times; plain, gzip or zstd. The format is detected from the content. Of a result
    file with several runs of a benchmark, each is judged by itself, and a row is printed for each.
    """
    about_one = any(path is not None for path in (requests, windows, html, streams))
    about_one = about_one or fail_on_objective or comparison.asked or run is not None
    if by_run and about_one:
        raise click.UsageError("--runs prints a row for each run; leave out what is about one recording")
    outputs = [(requests, write.ENDINGS), (windows, write.ENDINGS), (html, (".html",)), (streams, (".parquet",))]
    try:
        written = [(path, endings) for path, endings in outputs if path is not None]
        write.check_outputs(written, Inputs(recordings=(*paths, *comparison.baseline), files=[slo]))
        judging: dict[str, Any] = {"slo": slo, "class_name": class_name, "tokens": tokens}
        how = {**judging, "jobs": jobs or cores(), "strict": strict}
        found: Audit | None = None
        if not by_run:
            try:
                with reading_files(paths) as advance, _written(streams) as observe:
                    found = load(
                        *paths,
                        window=_length(window),
                        windows=windows is not None or html is not None,
                        observe=comparison.observing(slo, class_name, observe),
                        progress=advance,
                        run=run,
                        **how,
                    )
            except SeveralRunsError as several:
                if about_one or STDIN in paths:  # which can be read only once
                    raise click.UsageError(f"{several}, with --run") from several
        if found is None:
            _show_runs(list(runs(paths, **how)), output_format, csv_raw=csv_raw)
            if output_format == "table":
                wide_console().print(RUNS if slo is not None else f"{RUNS} {SHIPPED}", style="dim", markup=False)
            return
        comparison.read(**how)
        if requests is not None:
            found.write_requests(requests, csv_raw=csv_raw)
        if windows is not None:
            found.write_windows(windows, csv_raw=csv_raw)
        if html is not None:
            comparison.write_html(found, html)
    except ModuleNotFoundError as missing:
        from otel_llm.cli.lazy_group import MissingExtraError

        raise MissingExtraError("audit", missing.name or "a module") from missing
    except BrokenRecordError as error:
        echo(f"{printable(str(error), 300)} (--strict: stopped)", err=True)
        sys.exit(1)
    except WorkerError as error:
        raise click.UsageError(str(error)) from error
    except (ConfigError, UnknownClassError, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    worse = comparison.show(found, output_format, _print, csv_raw=csv_raw)
    for note in found.skipped.notes:
        echo(printable(note, 300), err=True)
    if slo is None and output_format == "table" and found.judged_table.num_rows:
        wide_console().print(SHIPPED, style="dim", markup=False)
    missed: list[objectives.Check] = []
    unshown = comparison.unshown(found)
    if fail_on_objective:
        checks = objectives.check(found.judged_table, found.slo)
        missed = [one for one in checks if one.state == "missed"]
        if why := objectives.unshown(found.judged_table, checks):
            unshown.append(f"--fail-on-objective: {why}")
    for one in missed:
        echo(terminal.objective_line(one), err=True)
    if worse or missed:
        for why in unshown:
            echo(why, err=True)
        sys.exit(1)
    if unshown:
        # A gate without verdicts must not pass: the run that should have been recorded may have failed.
        raise click.UsageError("; ".join(unshown))


@contextlib.contextmanager
def _written(path: Path | None) -> Iterator[Callable[[pa.RecordBatch], None] | None]:
    """Give a function that writes batches of streams to a file, which appears at the end; None for no file."""
    if path is None:
        yield None
        return
    with replacing(path) as file, contextlib.closing(parquet_streams.Writer(file)) as writer:
        yield writer.write


def _length(window: str | None) -> str | float | None:
    """Return the length of a window, a plain number as seconds, as SLO files have it; None if it is not stated.

    Raises:
        UsageError: it is no duration.
    """
    if window is None:
        return None
    try:
        length: str | float = float(window)
    except ValueError:
        length = window
    try:
        parse_duration_ns(length)
    except ValueError as error:
        raise click.UsageError(f"--window: {error}; {DURATION_ADVICE}") from error
    return length


def _show_runs(found: list[Run], output_format: str, *, csv_raw: bool) -> None:
    runs_view.show(found, output_format, csv_raw=csv_raw)
    for note in dict.fromkeys(note for run in found for note in run.audit.skipped.notes):
        echo(printable(note, 300), err=True)


def _print(found: Audit, output_format: str, csv_raw: bool) -> None:
    if output_format == "json":
        click.echo(json.dumps(found.summary(), allow_nan=False))
        return
    if output_format == "csv":
        write_data(terminal.summary_csv(found.summary(), raw=csv_raw))
        return
    terminal.show(wide_console(), found)
