"""`otel-llm simulate`: simulates a fleet of engines by a scenario file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from otel_llm.cli.option_types import format_option
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.progress import counting
from otel_llm.cli.output.terminal_console import figures_table, wide_console
from otel_llm.config.yaml_file import ConfigError
from otel_llm.scheduling.scenario.figures import COLUMNS
from otel_llm.scheduling.scenario.parallel import SweepError, run_sweep
from otel_llm.scheduling.scenario.running import at_objective, common_optimum, load_cells, optimum_text
from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.shared.outputs import Inputs, OutputError, check_output_path, refuse_clashes, replacing
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

EXAMPLES = """
\b
Examples:
  otel-llm simulate scenario.yaml                                    # every combination of its sweep
  otel-llm simulate scenario.yaml --set workload.requests=2000 --set policy.placement=lmetric
  otel-llm simulate scenario.yaml --seed 7 --format json > runs.json
  otel-llm simulate scenario.yaml --html sweep.html
  otel-llm simulate scenario.yaml --streams runs
  otel-llm audit runs/run-0.parquet --slo runs/slo.yaml

\b
Exit code: 0 fine; 1 a process of the sweep was killed; 2 bad usage, or a scenario that is refused.
"""


@click.command("simulate", epilog=EXAMPLES, short_help="Simulate a fleet of engines by a scenario.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="A value over the file's, KEY dotted; repeatable."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N")
@click.option("--jobs", type=click.IntRange(1, 1024), metavar="N", help="Processes; one for each processor by default.")
@click.option(
    "--streams",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the token times of each run as run-N.parquet, and slo.yaml, for `otel-llm audit`.",
)
@click.option("--html", type=click.Path(path_type=Path), metavar="OUT", help="Write the charts: one page, no network.")
@format_option("table", "json")
def simulate(
    scenario: Path,
    settings: tuple[str, ...],
    seed: int,
    jobs: int | None,
    streams: Path | None,
    html: Path | None,
    output_format: str,
) -> None:
    """Simulate requests on a fleet of engines: which promises does it keep, at which load, with which placement?

    SCENARIO is a YAML file: a profile of the engine, the fleet, the workload, the policy, and a sweep of any of them.
    Results depend on the scenario and the seed only.
    """
    try:
        runs = load_runs(scenario, settings)
        if html is not None:
            _check_page(html, [scenario, *(path for run in runs for path in run.scenario.inputs)])
        if streams is not None or html is not None:
            _compile_kernels()
        if streams is not None:
            from otel_llm.scheduling.scenario.streams import prepare_folder

            prepare_folder(streams, runs)
        with counting("simulating", len(runs)) as progress:
            rows = run_sweep(scenario, settings, runs, seed, jobs or len(os.sched_getaffinity(0)), progress, streams)
        loads = at_objective(runs, rows)
        if html is not None:
            from otel_llm.scheduling.scenario.page import render

            with replacing(html) as file:
                file.write(render(f"Simulation of {scenario.stem}", runs, rows, loads, seed).encode())
    except (ConfigError, OutputError) as error:
        raise click.UsageError(str(error)) from error
    except SweepError as error:
        raise click.ClickException(str(error)) from error
    if output_format == "json":
        whole = [{"settings": run.settings} | row for run, row in zip(runs, rows, strict=True)]
        found = {"runs": whole, "at_objective": loads, "optimal_req_s": common_optimum(rows)}
        click.echo(json.dumps(found, allow_nan=False))
        return
    console = wide_console()
    console.print(_runs_table([run.settings for run in runs], rows))
    if loads:
        console.print(_loads_table(load_cells(runs, rows, loads)))
    console.print(Text(optimum_text(rows)))


def _check_page(path: Path, inputs: Sequence[Path]) -> None:
    """Refuse a page that cannot be written, or is an input; raises OutputError."""
    if path.suffix.lower() != ".html":
        raise OutputError(f"{path}: the page is HTML; name a file that ends with .html")
    check_output_path(path)
    refuse_clashes([path], Inputs(files=inputs))


def _compile_kernels() -> None:
    """Compile the kernels that the page and the recordings import with the audit; a simulation alone needs none."""
    from otel_llm.core.compiling.mode import ModeError
    from otel_llm.core.compiling.warm import prepare

    try:
        prepare(lambda line: echo(line, err=True))
    except ModeError as wrong:
        raise click.UsageError(str(wrong)) from wrong


def _runs_table(settings: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Table:
    keys = list(settings[0])
    headings = [*(key.rpartition(".")[2] for key in keys), *(column.heading for column in COLUMNS)]
    cells = [
        (*(printable(str(chosen[key]), 24) for key in keys), *(column.text(row) for column in COLUMNS))
        for chosen, row in zip(settings, rows, strict=True)
    ]
    return figures_table("Simulated runs", headings, cells, texts=range(len(keys)), unwrapped=range(len(keys)))


def _loads_table(cells: Sequence[tuple[str, str, str]]) -> Table:
    title, headings = "The highest load that meets the objective", ("settings", "requests/s", "of the optimum")
    rows = [(printable(settings, 80), load, of) for settings, load, of in cells]
    return figures_table(title, headings, rows, texts=(0,), unwrapped=(0,))
