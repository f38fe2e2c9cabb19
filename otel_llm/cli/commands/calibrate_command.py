"""`otel-llm calibrate`: fits parameters of SLO classes to recorded behaviour."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.audit import load_streams
from otel_llm.audit.calibrate import churn, prefill
from otel_llm.audit.calibrate.alpha_fit import SHAPES
from otel_llm.audit.kernel.judge_batch import JUDGED, judge_batch
from otel_llm.cli.option_types import format_option
from otel_llm.cli.output.echo import echo, write_data
from otel_llm.cli.output.progress import reading_files
from otel_llm.cli.output.terminal_console import figures_table, wide_console
from otel_llm.config.durations import exact
from otel_llm.config.yaml_file import ConfigError
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.formatting import number, seconds, share
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from otel_llm.audit.calibrate.alpha_fit import Fit, Fits
    from otel_llm.slo.classes import SloClasses

_FILE = click.Path(path_type=Path)
_ERRORS: Final = (ConfigError, UnknownClassError, ValueError, OSError)

ALPHA_EXAMPLES = """
\b
Examples:
  otel-llm calibrate alpha journal                          # leaving, by the time waited
  otel-llm calibrate alpha journal --complaints complaints.csv
  otel-llm calibrate alpha journal --worth 200 --format yaml

\b
Exit code: 0 fine; 2 bad usage, nothing to read, or too little to fit.
"""
PREFILL_EXAMPLES = """
\b
Examples:
  otel-llm calibrate prefill uncontended.jsonl              # a curve that 99 % of the first tokens meet
  otel-llm calibrate prefill uncontended.jsonl --share 0.9 --headroom 1.5 --format yaml

\b
Exit code: 0 fine; 2 bad usage, nothing to read, or too little to fit.
"""


@click.group("calibrate", short_help="Alpha, its penalty and first-token targets from recorded behaviour.")
def calibrate() -> None:
    """Fit parameters of SLO classes to recordings: the cost of waiting, and the time that prompts take."""


def _common(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        format_option("table", "json", "yaml"),
        click.option("--class", "class_name", metavar="NAME", help="Judge every request by this class."),
        click.option("--slo", type=_FILE, metavar="F", help="SLO classes; the shipped ones where not given."),
        click.argument("paths", nargs=-1, required=True, type=_FILE, metavar="PATH..."),
    ):
        command = option(command)
    return command


@calibrate.command("alpha", epilog=ALPHA_EXAMPLES, short_help="Alpha and the penalty's shape, from readers that left.")
@_common
@click.option("--complaints", type=_FILE, metavar="CSV", help="Fit to these complaints (trace_id) instead of leaving.")
@click.option(
    "--worth", type=float, metavar="TOKENS", help="Of a lost reader; a completed reply's mean where not given."
)
@click.option("--measured-at", metavar="PLACE", help="client, relay or server; the client's view where there is one.")
def alpha(
    paths: tuple[Path, ...],
    slo: Path | None,
    class_name: str | None,
    output_format: str,
    complaints: Path | None,
    worth: float | None,
    measured_at: str | None,
) -> None:
    """Fit alpha and the shape of its penalty to readers that left (cancelled, abandoned) or complained.

    PATH is any input of `otel-llm audit`. The model and its assumptions are in docs/calibration.md.
    """
    import pyarrow as pa

    try:
        if worth is not None and not 0 < worth < float("inf"):
            raise click.UsageError(f"--worth {worth}: write the tokens that a lost reader is worth, above zero")
        classes = _classes(slo, class_name)
        wanted = None if complaints is None else churn.read_complaints(complaints)
        batches = [judge_batch(batch, classes) for batch in _streams(paths)]
        readers = churn.readers_of(pa.Table.from_batches(batches, schema=JUDGED), classes, measured_at)
        unknown = 0 if wanted is None else len(wanted - set(readers.trace_ids))
        if unknown:  # before the fit, which may fail for this reason
            about = "complaint is about a request that is" if unknown == 1 else "complaints are about requests that are"
            echo(f"{unknown:,} {about} not in the recording", err=True)
        fits = churn.calibrate(readers, wanted)
        tokens = churn.worth(readers, worth)
    except _ERRORS as error:
        raise click.UsageError(str(error)) from error
    if output_format == "json":
        click.echo(json.dumps(_fits_object(fits, tokens, readers, complaints), allow_nan=False))
    elif output_format == "yaml":
        write_data(_benefit(fits.best, tokens))
    else:
        _show_fits(fits, tokens, readers, complaints)


@calibrate.command("prefill", epilog=PREFILL_EXAMPLES, short_help="A first-token target that grows with the prompt.")
@_common
@click.option("--share", "wanted", default=0.99, show_default=True, metavar="SHARE", help="Of requests that meet it.")
@click.option("--method", type=click.Choice(["quadratic", "quantile"]), default="quadratic", show_default=True)
@click.option("--headroom", default=1.0, show_default=True, metavar="FACTOR", help="Times the target.")
@click.option("--contended", is_flag=True, help="Include requests that were not alone on their instance.")
def prefill_command(
    paths: tuple[Path, ...],
    slo: Path | None,
    class_name: str | None,
    output_format: str,
    wanted: float,
    method: prefill.Method,
    headroom: float,
    contended: bool,
) -> None:
    """Fit a first-token target to a run in which each request had the engine to itself (Etalon, section 4.1).

    PATH is any input of `otel-llm audit` with the lengths of prompts.
    """
    try:
        part = exact(wanted)
        if not 0 < part <= 1:
            raise click.UsageError(f"--share {wanted:g}: write a share above 0 and up to 1, as 0.99")
        if not 0 < headroom < float("inf"):
            raise click.UsageError(f"--headroom {headroom}: write a factor above zero, as 1.5")
        prompts = prefill.prompts_of(_streams(paths), _classes(slo, class_name))
        found = prefill.fit_prefill(prompts, part, method=method, headroom=headroom, contended=contended)
    except _ERRORS as error:
        raise click.UsageError(str(error)) from error
    if output_format == "json":
        cells = {**asdict(found), "curve": found.curve.points, "left_out": prompts.left_out}
        click.echo(json.dumps({**cells, "not_alone": int((~prompts.alone).sum())}, allow_nan=False))
    elif output_format == "yaml":
        write_data(found.yaml())
    else:
        _show_prefill(found, prompts)


def _classes(slo: Path | None, class_name: str | None) -> SloClasses:
    classes = load_slo(slo)
    return classes if class_name is None else classes.judging(class_name)


def _streams(paths: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    with reading_files(paths) as advance:
        yield from load_streams(*paths, progress=advance)


def _benefit(fit: Fit, tokens: float) -> str:
    return f"benefit: {{alpha: {fit.beta * tokens:.6g}, penalty: {fit.penalty}}}\n"


def _fits_object(fits: Fits, tokens: float, readers: churn.Readers, complaints: Path | None) -> dict[str, Any]:
    return {
        "basis": "leaving" if complaints is None else "complaints",
        "requests": fits.requests,
        "left_out": readers.left_out,
        "events": fits.events,
        "left_waiting": int(readers.left_waiting.sum()),
        "left_reading": int(readers.left_reading.sum()),
        "worth_tokens": tokens,
        "effect_shown": fits.shown,
        "alike": list(fits.indistinguishable),
        "none_aic": fits.none_aic,
        "fits": [_fit_object(one, tokens) for one in fits.fits],
        "by_idle": churn.churn_by_idle(readers, fits.best) if complaints is None else [],
    }


def _fit_object(fit: Fit, tokens: float) -> dict[str, Any]:
    return {
        **asdict(fit),
        "alpha": fit.beta * tokens,
        "alpha_low": fit.beta_low * tokens,
        "alpha_high": fit.beta_high * tokens,
    }


def _show_fits(fits: Fits, tokens: float, readers: churn.Readers, complaints: Path | None) -> None:
    console = wide_console()
    waiting, while_reading = int(readers.left_waiting.sum()), int(readers.left_reading.sum())
    left = f"{waiting:,} left while they waited, {while_reading:,} while they read"
    what = left if complaints is None else f"{fits.events:,} complained"
    console.print(f"{fits.requests:,} readers: {what}; a lost reader is worth {number(tokens)} tokens", style="bold")
    rows = [
        (
            one.penalty,
            number(one.beta * tokens),
            number(one.beta_low * tokens),
            number(one.beta_high * tokens),
            f"{one.beta:.3g}",
            f"{one.base:.3g}",
            number(one.aic - fits.best.aic),
            share(one.weight),
        )
        for one in fits.fits
    ]
    _print_table(
        "Alpha by shape of the penalty", ("penalty", "alpha", "from", "to", "beta", "base", "AIC +", "weight"), rows
    )
    if not fits.shown:
        console.print("The data do not show that waiting has an effect: a model without one explains them as well.")
    elif len(fits.indistinguishable) > 1:
        alike = ", ".join(sorted(fits.indistinguishable, key=SHAPES.index))
        console.print(f"The data cannot tell these shapes from each other: {alike}. Choose by what else you know.")
    if complaints is None:
        stretches = [
            (
                f"{seconds(one['idle_from_s'])} to {seconds(one['idle_to_s'])}",
                seconds(one["waited_s"]),
                number(one["left"]),
                number(one["expected"]),
            )
            for one in churn.churn_by_idle(readers, fits.best)
        ]
        headings = ("idle time so far", "waited there, all readers", "left", f"expected ({fits.best.penalty})")
        _print_table("Where they left", headings, stretches)
    console.print(_benefit(fits.best, tokens).strip(), markup=False)


def _show_prefill(found: prefill.Prefill, prompts: prefill.Prompts) -> None:
    console = wide_console()
    alone = (
        f"{int((~prompts.alone).sum()):,} were not alone, {prompts.left_out:,} lack a prompt length or a first token"
    )
    console.print(f"{found.requests:,} requests ({alone})", style="bold")
    if found.coefficients is not None:
        a, b, c = found.coefficients
        console.print(f"fitted: {seconds(a)} + {b * 1e6:.4g} µs a token + {c * 1e9:.4g} ns a token squared")
        console.print(
            f"raised by {number(found.lift)}; half of the first tokens are off by {share(found.spread)} at most"
        )
    rows = [(number(tokens), seconds(length_ns / 1e9)) for tokens, length_ns in found.curve.points]
    _print_table("First-token target", ("input tokens", "due after"), rows)
    console.print(f"{found.held:,} of {found.requests:,} hold it; beyond its ends the target is constant", style="dim")
    console.print(found.yaml().strip(), markup=False, soft_wrap=True)


def _print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    wide_console().print(figures_table(title, headings, rows, texts=(0,)))
