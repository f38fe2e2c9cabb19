"""`otel-llm capacity`: searches for the highest request rate at which an objective holds."""

from __future__ import annotations

import json
import re
import secrets
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from rich.text import Text

from otel_llm import semconv
from otel_llm.bench.capacity.capacity_answer import PROBE_HEADINGS, answer, as_json, failures, probe_rows
from otel_llm.bench.capacity.capacity_search import CapacityResult, SearchPlan, find_capacity
from otel_llm.bench.capacity.objective import ObjectiveError, parse_objective
from otel_llm.bench.capacity.observations import INTERRUPTED
from otel_llm.bench.capacity.simulated_source import SimulatedSource
from otel_llm.bench.client.learning import learn
from otel_llm.bench.client.load_client import LoadClient
from otel_llm.bench.client.target import OPERATIONS
from otel_llm.bench.plan.load_plan import MOST_REQUESTS
from otel_llm.bench.plan.prompts import PromptSpec
from otel_llm.bench.recording.run_folder import make_folder
from otel_llm.bench.recording.run_journal import RequestRecords
from otel_llm.cli.load_options import (
    about_run,
    check_outputs,
    interrupts,
    judging_options,
    probe_options,
    refusing,
)
from otel_llm.cli.option_types import KnownRange, format_option
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.terminal_console import SafeConsole, figures_table, wide_console
from otel_llm.config.durations import parse_duration_ns
from otel_llm.config.yaml_file import ConfigError
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.shared.clock import MonotonicClock
from otel_llm.shared.formatting import number
from otel_llm.shared.outputs import replacing

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.bench.load_settings import LoadSettings
    from otel_llm.scheduling.scenario.scenario import Scenario
    from otel_llm.slo.classes import SloClass

EXAMPLES = """
\b
Examples:
  otel-llm capacity http://127.0.0.1:8000 --model llama
  otel-llm capacity http://127.0.0.1:8000 --model llama --objective 'ttft_p99 <= 500ms && idle_p99 <= 1s'
  otel-llm capacity http://127.0.0.1:8000 --model llama --between 2..32 --precision 0.2 --budget 30m --out probes
  otel-llm capacity --simulate scenario.yaml --precision 0.15 --html capacity.html
  otel-llm audit probes/probe-01-8.0                      # the recording of a probe

\b
Exit code: 0 decided: both ends are found, as close as the precision asks; 1 not decided: the interval so far, and why;
2 bad usage, or no server that answers.
"""
OBJECTIVE: Final = "attainment >= 0.9"
MOST_RATE: Final = 1_000_000.0


class Between(click.ParamType[tuple[float, float]]):
    """A range of rates, as 0.5..64."""

    name = "between"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """Return the lowest and the highest rate."""
        if isinstance(value, tuple):
            return value
        low, dots, high = str(value).partition("..")
        try:
            ends = float(low), float(high)
        except ValueError:
            ends = 0.0, 0.0
        if not dots or not 0 < ends[0] < ends[1] <= MOST_RATE:
            self.fail(f"{value!r}: write two rising rates in requests/s above 0, as 0.5..64", param, ctx)
        return ends


class Budget(NamedTuple):
    """An amount of seconds or of requests."""

    amount: float
    in_seconds: bool


SECONDS_BUDGET: Final = Budget(15 * 60, in_seconds=True)
REQUESTS_BUDGET: Final = Budget(30_000, in_seconds=False)


class BudgetOption(click.ParamType[Budget]):
    """A duration with a unit, or a number of requests."""

    name = "budget"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Budget:
        """Return the budget."""
        if isinstance(value, Budget):
            return value
        text = str(value)
        if re.fullmatch(r"[0-9]+", text):
            budget = Budget(float(text), in_seconds=False)
        else:
            try:
                budget = Budget(parse_duration_ns(text) / 1e9, in_seconds=True)
            except ValueError as problem:
                self.fail(f"{problem}: write a duration as 15m, or a number of requests as 30000", param, ctx)
        if budget.amount <= 0:
            self.fail(f"{text!r} is nothing", param, ctx)
        if not budget.in_seconds and budget.amount > MOST_REQUESTS:
            self.fail(f"{text!r}: at most {MOST_REQUESTS:,} requests", param, ctx)
        return budget


class SearchOptions(NamedTuple):
    """The options of the search; None if one was not given."""

    objective: str | None
    between: tuple[float, float]
    precision: float
    confidence: float
    budget: Budget | None

    def plan(self, objective: str, budget: Budget) -> SearchPlan:
        """Return the plan, with these if the options say nothing. Raises ObjectiveError."""
        wanted = parse_objective(objective if self.objective is None else self.objective)
        return SearchPlan(wanted, *self.between, self.precision, self.confidence, (self.budget or budget).amount)

    def as_json(self) -> dict[str, object]:
        """Return the settings for `run.json`, as the options write them; a search sets the rate of each probe."""
        low, high = self.between
        budget = self.budget or SECONDS_BUDGET
        return {
            "rate": None,
            "duration_s": None,
            "between": f"{low:g}..{high:g}",
            "precision": self.precision,
            "confidence": self.confidence,
            "budget": f"{budget.amount:g}s" if budget.in_seconds else f"{budget.amount:.0f}",
        }


_FILE: Final = click.Path(path_type=Path)


@click.command("capacity", epilog=EXAMPLES, short_help="Search for the load that a server carries.")
@click.argument("url", required=False, default="")
@probe_options
@click.option("--simulate", type=_FILE, metavar="SCENARIO", help="A scenario of `otel-llm simulate` instead of URL.")
@click.option(
    "--objective",
    metavar="TEXT",
    help="attainment or fluidity_ok_share >= SHARE, idle_p99 or ttft_p99 <= DURATION, joined by &&. "
    f"[default: that of the scenario, else {OBJECTIVE!r}]",
)
@click.option(
    "--between", type=Between(), default="0.5..64", show_default=True, help="The rates, in requests/s; never left."
)
@click.option(
    "--precision",
    type=KnownRange(0.01, 10.0),
    default=0.1,
    show_default=True,
    metavar="SHARE",
    help="The upper end may be so much above the lower one.",
)
@click.option(
    "--confidence", type=KnownRange(0.5, 0.9999), default=0.95, show_default=True, help="Of the whole search."
)
@click.option(
    "--budget",
    type=BudgetOption(),
    help="A duration, or a number of requests. [default: 15m; simulated: 30000]",
)
@judging_options
@click.option("--out", type=_FILE, metavar="DIR", help="Keep a recording of each probe there, for `otel-llm audit`.")
@click.option("--html", type=_FILE, metavar="F", help="Write the probes as charts: one page that needs no network.")
@format_option("table", "json")
def capacity(
    load: LoadSettings,
    simulate: Path | None,
    objective: str | None,
    between: tuple[float, float],
    precision: float,
    confidence: float,
    budget: Budget | None,
    slo: Path | None,
    class_name: str | None,
    out: Path | None,
    html: Path | None,
    output_format: str,
) -> None:
    """Search for the highest request rate at which an objective holds and the backlog does not grow.

    URL is an OpenAI-compatible server. The answer is an interval that misses the true capacity with probability at most
    1 - confidence, however the search went. A probe ends as soon as it is decided. Ctrl-C ends the search, prints and
    keeps what there is.
    """
    _check_sources(load, simulate, slo, class_name, out)
    search = SearchOptions(objective, between, precision, confidence, budget)
    with refusing():
        check_outputs(out, html)
        try:
            if simulate is None:
                result = _search_live(load, search, slo, class_name, out)
            else:
                result = _search_simulated(simulate, load.seed, search)
        except ObjectiveError as error:
            raise click.UsageError(f"--objective: {error}") from error
        _show(result, output_format)  # first: a page that cannot be written loses no result
        if html is not None:
            from otel_llm.bench.capacity.capacity_page import render

            with replacing(html) as file:
                file.write(render(f"Capacity of {load.url or simulate}", result).encode())
    if not result.decided:
        sys.exit(1)


def _check_sources(
    load: LoadSettings, simulate: Path | None, slo: Path | None, class_name: str | None, out: Path | None
) -> None:
    if simulate is None:
        if not load.url:
            raise click.UsageError("name a URL, or a scenario by --simulate")
        if not load.model:
            raise click.UsageError("--model: name the model, as the server calls it")
        return
    if load.url:
        raise click.UsageError(f"--simulate and the URL {load.url} exclude each other: keep one")
    for option, value in (("--slo", slo), ("--class", class_name), ("--out", out)):
        if value is not None:
            raise click.UsageError(f"{option} is for a server: the scenario has its own promises, and no recording")
    context = click.get_current_context()
    for name in ("model", "trace", "arrivals", "input_", "output", "shared_prefix", "api", "headers", "api_key_file"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = "--" + name.rstrip("_").replace("_", "-")
            raise click.UsageError(f"{option} is for a server: the scenario says what is simulated")


def _scenario(path: Path) -> Scenario:
    runs = load_runs(path)
    if len(runs) > 1:
        raise ConfigError(
            str(path),
            None,
            None,
            "sweep",
            f"a search needs one scenario, this one is {len(runs)}",
            "leave the sweep out",
        )
    return runs[0].scenario


def _objective_of(scenario: Scenario) -> str:
    """Return the scenario's objective as the option writes it."""
    if scenario.objective is None:
        return OBJECTIVE
    if scenario.objective.every_tier:
        raise scenario.file.refuse(
            ("objective", "every_tier"),
            "a search judges all requests together",
            "write `every_tier: false`, or give --objective",
        )
    return f"attainment >= {float(scenario.objective.attainment)!r}"


def _class_of(load: LoadSettings, slo: Path | None, name: str | None) -> SloClass:
    classes = load_slo(slo)
    if name is not None:
        return classes.get(name)
    request = {semconv.GEN_AI_OPERATION_NAME: OPERATIONS[load.api], semconv.GEN_AI_REQUEST_MODEL: load.model}
    return classes.choose(None, request)[0]


def _search_simulated(path: Path, seed: int, search: SearchOptions) -> CapacityResult:
    if search.budget is not None and search.budget.in_seconds:
        raise click.UsageError("--budget: a simulated search takes a number of requests, as 30000")
    scenario = _scenario(path)
    plan = search.plan(OBJECTIVE if search.objective is not None else _objective_of(scenario), REQUESTS_BUDGET)
    return find_capacity(plan, SimulatedSource(scenario, plan.objective.clauses, seed), _shown())


def _search_live(
    load: LoadSettings, search: SearchOptions, slo: Path | None, class_name: str | None, out: Path | None
) -> CapacityResult:
    from otel_llm.bench.capacity.live_source import LiveSource

    plan = search.plan(OBJECTIVE, SECONDS_BUDGET)
    judged_by = _class_of(load, slo, class_name)
    target = load.target()
    load.shape(Fraction(1))
    spec = PromptSpec(load.seed, shared_prefix=load.shared_prefix, salt=secrets.randbits(38))
    try:
        learned = learn(target, spec)
    except KeyboardInterrupt:
        return CapacityResult(plan, why=INTERRUPTED)
    spec = replace(spec, lengths=learned.lengths)
    if out is not None:
        make_folder(out)
    settings = search.as_json() | {"objective": plan.objective.text}
    about = about_run("capacity", load, spec, slo, class_name, settings)
    with interrupts() as interrupted, LoadClient(target, learned, spec, workers=load.workers) as client:
        source = LiveSource(
            client,
            load,
            judged_by,
            plan.objective.clauses,
            in_seconds=(search.budget or SECONDS_BUDGET).in_seconds,
            interrupted=lambda: bool(interrupted),
            out=out,
            records=RequestRecords(target, class_name, MonotonicClock()),
            about=about,
        )
        result = find_capacity(plan, source, _shown())
    if source.problem is not None and source.problem != result.why:
        echo(source.problem, err=True)
    return result


def _shown() -> Callable[[CapacityResult], None] | None:
    """Return a function that writes a line a probe; None without a terminal."""
    if not SafeConsole(stderr=True).is_terminal:
        return None

    def report(result: CapacityResult) -> None:
        probe = result.probes[-1]
        words = probe.verdict if probe.end.invalid is None else f"not valid: {probe.end.invalid}"
        echo(f"{number(probe.rate)} requests/s: {words} ({number(probe.end.requests)} requests)", err=True)

    return report


def _show(result: CapacityResult, output_format: str) -> None:
    if output_format == "json":
        click.echo(json.dumps(as_json(result), allow_nan=False))
        return
    console = wide_console()
    console.print(Text(answer(result), style="bold green" if result.decided else "bold"))
    title = f"Probes: {result.plan.objective.text}"
    texts = (PROBE_HEADINGS.index("verdict"),)
    console.print(figures_table(title, PROBE_HEADINGS, probe_rows(result), texts=texts, unwrapped=()))
    if (failed := failures(result)) is not None:
        echo(failed)
