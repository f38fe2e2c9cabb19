"""`otel-llm sweep`: judges recorded streams over alphas, reading speeds and loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.audit import write
from otel_llm.audit.compare import sweep
from otel_llm.audit.compare.bootstrap import RESAMPLES, Drawing
from otel_llm.audit.input.runs import load_runs
from otel_llm.audit.report import sweep_page
from otel_llm.cli.option_types import NumbersError, format_option, numbers
from otel_llm.cli.output.echo import CSV_RAW, write_data
from otel_llm.cli.output.progress import reading_files
from otel_llm.cli.output.terminal_console import figures_table, wide_console
from otel_llm.config.yaml_file import ConfigError
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.formatting import number, seconds, share
from otel_llm.shared.outputs import Inputs
from otel_llm.shared.printable import printable
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.table import Table

    Columns = Mapping[str, Callable[[dict[str, Any]], str]]

EXAMPLES = """
\b
Examples:
  otel-llm sweep journal                                    # one recording: alpha against smooth goodput
  otel-llm sweep --at 1=q1.jsonl --at 2=q2.jsonl --at 4=q4.jsonl --alpha 0..10 --html sweep.html
  otel-llm sweep q1.jsonl q2.jsonl q4.jsonl --alpha 2.5,10 --reading-speed 3,5,8 --points points.csv
  otel-llm sweep --at 1=q1 --at '2=q2/*.jsonl'              # several files of one load

\b
Exit code: 0 fine; 2 bad usage, or nothing to read.
"""

_FILE = click.Path(path_type=Path)


@click.command("sweep", epilog=EXAMPLES, short_help="Smooth goodput over alphas, reading speeds and loads.")
@click.argument("paths", nargs=-1, type=_FILE, metavar="[PATH]...")
@click.option(
    "--at", "labelled", multiple=True, metavar="LOAD=PATH", help="A recording at LOAD requests/s; repeatable."
)
@click.option("--alpha", default="0..10", show_default=True, metavar="NUMBERS", help="As 0,2.5,10 or 0..10:0.5.")
@click.option("--reading-speed", metavar="NUMBERS", help="Tokens/s, as 3,5,8; each class's own where not given.")
@click.option("--slo", type=_FILE, metavar="F", help="SLO classes; the shipped ones where not given.")
@click.option("--class", "class_name", metavar="NAME", help="Judge every request by this class.")
@format_option("table", "json", "csv")
@click.option("--csv-raw", is_flag=True, help=CSV_RAW)
@click.option("--points", type=_FILE, metavar="OUT", help="Write a row for each point: .parquet, .csv or .jsonl.")
@click.option("--optima", type=_FILE, metavar="OUT", help="Write a row for each best load; same formats.")
@click.option("--html", type=_FILE, metavar="OUT", help="Write the charts: one page that needs no network.")
@click.option("--resamples", default=RESAMPLES, show_default=True, metavar="N", help="For intervals; 100 or more.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Of the resampling.")
@click.option("--block", default=1, show_default=True, metavar="N", help="Resample N requests in a row.")
def sweep_command(
    paths: tuple[Path, ...],
    labelled: tuple[str, ...],
    alpha: str,
    reading_speed: str | None,
    slo: Path | None,
    class_name: str | None,
    output_format: str,
    csv_raw: bool,
    points: Path | None,
    optima: Path | None,
    html: Path | None,
    resamples: int,
    seed: int,
    block: int,
) -> None:
    """Judge recordings over ranges of parameters: how much do the figures depend on alpha and the reading speed?

    PATH is a recording of one load, any input of `otel-llm audit`; its load is the rate that a result file states, else
    its requests per second, unless `--at` names it. Each load is given once: several files of one run are one PATH, a
    folder or a quoted pattern. A result file of several runs (GuideLLM, vLLM, SGLang, genai-perf) is a load for each.
    """
    outputs = [(points, write.ENDINGS), (optima, write.ENDINGS), (html, (".html",))]
    try:
        recordings = [(path, None) for path in paths] + [_labelled(one) for one in labelled]
        if not recordings:
            raise click.UsageError("no recording: name a PATH, or --at LOAD=PATH")
        inputs = Inputs(recordings=[path for path, _ in recordings], files=[slo])
        write.check_outputs([(path, endings) for path, endings in outputs if path], inputs)
        classes = load_slo(slo)
        classes = classes if class_name is None else classes.judging(class_name)
        alphas = numbers(alpha, "--alpha")
        speeds: list[float | None] = [None]
        if reading_speed is not None:
            speeds = list(numbers(reading_speed, "--reading-speed"))
            if 0.0 in speeds:
                raise NumbersError("--reading-speed 0: write speeds above zero")
        drawing = Drawing(resamples, seed, block)
        levels: list[sweep.Level] = []
        for path, load in recordings:
            with reading_files([path]) as advance:
                for run in load_runs(path, load, advance):
                    levels += sweep.judge_recording(run.name, run.streams, classes, speeds, run.load_req_s)
        found = sweep.sweep(levels, alphas, drawing)
        if points is not None:
            write.write_table(points, found.points, sweep.POINTS, csv_raw=csv_raw)
        if optima is not None:
            write.write_table(optima, found.optima, sweep.OPTIMA, csv_raw=csv_raw)
        if html is not None:
            write.write_text(html, sweep_page.render(found))
    except (ConfigError, UnknownClassError, ValueError, OSError) as error:
        raise click.UsageError(str(error)) from error
    _print(found, output_format, csv_raw=csv_raw)


def _labelled(text: str) -> tuple[Path, float | None]:
    load, equals, path = text.partition("=")
    try:
        at = float(load)
    except ValueError:
        at = -1.0
    if not equals or not path or not 0 < at < float("inf"):
        raise click.UsageError(f"--at {text!r}: write LOAD=PATH with the load in requests/s, as 2.5=run.jsonl")
    return Path(path), at


def _print(found: sweep.Sweep, output_format: str, *, csv_raw: bool) -> None:
    if output_format == "json":
        click.echo(json.dumps({"points": found.points, "optima": found.optima}, allow_nan=False))
    elif output_format == "csv":
        write_data(write.csv_text(found.points, tuple(sweep.POINTS), raw=csv_raw))
    else:
        console = wide_console()
        console.print(_points_table(found.points))
        if found.optima:
            console.print(_optima_table(found.optima))


def _points_table(rows: Sequence[dict[str, Any]]) -> Table:
    return figures_table("Smooth goodput", [*_POINTS], _cells(_POINTS, rows), texts=(0, 1))


def _optima_table(rows: Sequence[dict[str, Any]]) -> Table:
    title = "The load of the highest smooth goodput, requests/s"
    table = figures_table(title, [*_OPTIMA], _cells(_OPTIMA, rows), texts=(0, 7))
    if any(row["at_edge"] for row in rows):
        table.caption = "edge: the lowest or the highest load recorded; the peak may lie beyond"
        table.caption_justify = "left"
    return table


def _cells(columns: Columns, rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[text(row) for text in columns.values()] for row in rows]


def _speed(row: dict[str, Any]) -> str:
    return "own" if row["reading_speed_tok_s"] is None else number(row["reading_speed_tok_s"])


_POINTS: Final[Columns] = {
    "recording": lambda row: printable(Path(row["recording"]).name, 18),
    "at": lambda row: printable(row["measured_at"]),
    "requests/s": lambda row: number(row["load_req_s"]),
    "reads\ntok/s": _speed,
    "alpha": lambda row: number(row["alpha"]),
    "idle\np50": lambda row: seconds(row["idle_p50_s"]),
    "idle\np99": lambda row: seconds(row["idle_p99_s"]),
    "through-\nput": lambda row: number(row["throughput_tok_s"]),
    "smooth\ngoodput": lambda row: number(row["smooth_goodput_tok_s"]),
    "95 %": lambda row: sweep_page.between(row["smooth_goodput_low"], row["smooth_goodput_high"]),
    "aborted": lambda row: share(row["aborted_share"]),
}
"""The columns of the points in the terminal: heading, and text of a row."""
_OPTIMA: Final[Columns] = {
    "at": lambda row: printable(row["measured_at"]),
    "reads\ntok/s": _speed,
    "alpha": lambda row: number(row["alpha"]),
    "best load": lambda row: number(row["load_req_s"]),
    "95 %": lambda row: sweep_page.between(row["load_low"], row["load_high"]),
    "best in\nresamples": lambda row: share(row["best_share"]),
    "smooth\ngoodput": lambda row: number(row["smooth_goodput_tok_s"]),
    "": lambda row: "edge" if row["at_edge"] else "",
}
