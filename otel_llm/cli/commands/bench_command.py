"""`otel-llm bench`: sends a load to a server, and says what its readers felt."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click
from rich.live import Live
from rich.table import Table
from rich.text import Text

from otel_llm.audit import terminal
from otel_llm.bench.client.learning import Learned, learn
from otel_llm.bench.client.load_client import LoadClient
from otel_llm.bench.live_figures import LiveFigures
from otel_llm.bench.load_test import AUTO, LoadTest
from otel_llm.bench.plan.load_plan import LoadPlan, draw_plan
from otel_llm.bench.plan.prompts import PromptSpec
from otel_llm.bench.recording.run_folder import make_folder, write_run_file
from otel_llm.bench.recording.run_journal import RequestRecords
from otel_llm.cli.load_options import (
    about_run,
    check_outputs,
    interrupts,
    judging_options,
    load_options,
    refusing,
)
from otel_llm.cli.option_types import Duration, format_option
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.terminal_console import SafeConsole, wide_console
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.clock import MonotonicClock, monotonic_ns
from otel_llm.shared.formatting import number, seconds
from otel_llm.shared.outputs import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_llm.bench.client.observed_request import ObservedRequest
    from otel_llm.bench.live_figures import LiveSnapshot
    from otel_llm.bench.load_result import LoadResult
    from otel_llm.bench.load_settings import LoadSettings
    from otel_llm.slo.classes import SloClasses


EVERY_NS: Final = 250_000_000


@contextlib.contextmanager
def showing() -> Iterator[Callable[[Callable[[], LiveSnapshot]], None] | None]:
    """Give a function that shows a snapshot, made when it is time for one; None without a terminal."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        shown_ns = 0

        def show(snapshot: Callable[[], LiveSnapshot]) -> None:
            nonlocal shown_ns
            now_ns = monotonic_ns()
            if now_ns - shown_ns >= EVERY_NS:
                shown_ns = now_ns
                live.update(view(snapshot()), refresh=True)

        yield show


def view(now: LiveSnapshot) -> Table:
    """Return the view of one snapshot: one line of figures under their names."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("sent", "requests/s", "in flight", "waiting now", "ended", "failed", "TTFT", "time left"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(
        f"{now.sent:,}",
        number(now.rate),
        f"{now.in_flight:,}",
        f"{now.waiting:,}",
        f"{now.ended:,}",
        f"{now.failed:,}",
        "-" if now.ttft_s is None else seconds(now.ttft_s),
        "-" if now.left_s is None else seconds(now.left_s),
    )
    return table


EXAMPLES = """
\b
Examples:
  otel-llm bench http://127.0.0.1:8000 --model llama --rate 4 --duration 60s
  otel-llm bench http://127.0.0.1:8000 --model llama --rate 8 --arrivals gamma:2 --input 64..512 --output 32..256
  otel-llm bench http://127.0.0.1:8000 --model llama --trace azure.csv --speed 0.5 --out monday --html monday.html
  otel-llm bench https://api.example.com/v1 --model m --api-key-file key.txt --concurrency 8 --requests 200
  otel-llm audit monday                                   # the recording, judged again

\b
Exit code: 0 fine; 1 the run is not valid: the client, not the server, has decided the result;
2 bad usage, or no server that answers.
"""


class WarmUpOption(click.ParamType[str | int]):
    """`auto`, or a duration."""

    name = "warmup"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str | int:
        """Return `auto`, or ns; 0 cuts nothing."""
        if value == AUTO or isinstance(value, int):
            return value
        return 0 if str(value) in ("0", "0s") else Duration().convert(value, param, ctx)


_FILE: Final = click.Path(path_type=Path)


@click.command("bench", epilog=EXAMPLES, short_help="Send a load to a server: what would its readers feel?")
@click.argument("url")
@load_options
@judging_options
@click.option(
    "--warmup",
    type=WarmUpOption(),
    default=AUTO,
    show_default=True,
    metavar="auto|10s",
    help="The beginning that is left out: what MSER-5 finds in the finished run, or a duration; 0s for none.",
)
@click.option("--out", type=_FILE, metavar="DIR", help="Keep the recording there, for `otel-llm audit DIR`.")
@click.option("--html", type=_FILE, metavar="F", help="Write the report: one page that needs no network.")
@format_option("table", "json")
def bench(
    load: LoadSettings,
    slo: Path | None,
    class_name: str | None,
    warmup: str | int,
    out: Path | None,
    html: Path | None,
    output_format: str,
) -> None:
    """Send requests to an OpenAI-compatible server at URL, and judge its replies by what readers feel.

    Each request is sent at its intended time, whether the server is ready or not, and its clock starts then: what a
    server that has stopped makes others wait is counted. Ctrl-C ends the run, prints and keeps what there is.
    """
    with refusing():
        classes = load_slo(slo)
        if class_name is not None:
            classes.get(class_name)
        _check(load, warmup)
        check_outputs(out, html)
        plan = draw_plan(load.shape(), load.seed)
        with _folder(out) as folder:
            result = _run(load, plan, classes, class_name, warmup, folder, slo=slo, windows=html is not None)
            _show(result, output_format, shipped=slo is None)  # first: a page that cannot be written loses no result
            if html is not None and result.audit is not None:
                result.write_html(html)
    if not result.validity.valid:
        sys.exit(1)


def _check(load: LoadSettings, warmup: str | int) -> None:
    load.check()
    if isinstance(warmup, int) and load.length_ns is not None and warmup >= load.length_ns:
        raise click.UsageError(f"--warmup {warmup / 1e9:g}s leaves nothing of a load of {load.length_ns / 1e9:g}s")


def _run(
    load: LoadSettings,
    plan: LoadPlan,
    classes: SloClasses,
    class_name: str | None,
    warmup: str | int,
    folder: Path,
    *,
    slo: Path | None,
    windows: bool,
) -> LoadResult:
    target = load.target()
    spec = PromptSpec(load.seed, shared_prefix=load.shared_prefix, salt=secrets.randbits(38))
    learned = learn(target, spec)
    spec = replace(spec, lengths=learned.lengths)
    settings = {"warmup": warmup if isinstance(warmup, str) else f"{warmup / 1e9:g}s"}
    about = about_run("bench", load, spec, slo, class_name, settings) | _learned(learned)
    make_folder(folder)
    write_run_file(folder, about)
    records = RequestRecords(target, class_name, MonotonicClock())
    length_ns = load.length_ns if plan.at_ns is None else plan.length_ns
    figures = LiveFigures(classes.get(class_name or classes.default), length_ns)
    with interrupts() as interrupted:
        with LoadClient(target, learned, spec, workers=load.workers) as client:
            run = client.start(plan, concurrency=load.concurrency, requests=load.requests, duration_ns=load.length_ns)
            with showing() as show:

                def on_step(changed: Sequence[ObservedRequest]) -> None:
                    if show is not None:
                        figures.observe(changed)
                        show(lambda: figures.snapshot(run))

                test = LoadTest(run, folder, records, on_step, lambda: bool(interrupted))
                test.follow()
        result = test.result(warmup, classes, class_name, windows=windows)  # Ctrl-C loses no run that is over
        try:
            write_run_file(folder, about | {"result": {**result.as_json(), "classes": None}})
        except OutputError as error:  # a full disk, which the result names if it has lost a request
            echo(str(error), err=True)
    return result


def _learned(learned: Learned) -> dict[str, Any]:
    return {
        "server": {
            "address": f"{learned.address.host}:{learned.address.port}",
            "refused": list(learned.refused),
            "token_basis": learned.token_basis,
            "counts_prompts": learned.counts_prompts,
        },
    }


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    """Give the folder of the recording; one that is deleted if the user wants none."""
    if out is not None:
        yield out
        return
    with TemporaryDirectory(prefix="otel-llm-bench-") as name:
        yield Path(name)


def _show(result: LoadResult, output_format: str, *, shipped: bool) -> None:
    if output_format == "json":
        click.echo(json.dumps(result.as_json(), allow_nan=False))
        return
    from rich.table import Table

    console = wide_console()
    console.print(Text(result.verdict(), style="bold green" if result.validity.valid else "bold red"))
    if result.audit is not None:
        terminal.show(console, result.audit)
    table = Table(title="The load", title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, text in result.lines():
        table.add_row(Text(label), Text(text))
    console.print(table)
    if shipped and result.audit is not None:
        echo("Judged by the shipped SLO classes; --slo FILE for your own.")
