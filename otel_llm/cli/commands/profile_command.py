"""`otel-llm profile`: how long the iterations of an engine last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from otel_llm.audit import load_streams, write
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.progress import reading_files
from otel_llm.cli.output.terminal_console import figures_table, wide_console
from otel_llm.config.yaml_file import ConfigError
from otel_llm.scheduling.profiles import aic_import, load_profile, shipped_profiles
from otel_llm.scheduling.profiles.grid import Point
from otel_llm.scheduling.profiles.profile_file import exact_duration_ns
from otel_llm.scheduling.profiles.profile_fit import duration_text, fit_profile, profile_text, read_requests, table_text
from otel_llm.scheduling.profiles.profile_page import (
    PRIORS,
    batches_of,
    chunks_of,
    contexts_of,
    decode_rows,
    facts_of,
    headline,
    most_rows,
    prefill_rows,
    render,
)
from otel_llm.shared.formatting import number, share
from otel_llm.shared.outputs import Inputs, OutputError
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.scheduling.profiles.profile import Profile
    from otel_llm.scheduling.profiles.profile_fit import Fit

SHOW_EXAMPLES: Final = """
\b
Examples:
  otel-llm profile show h200-llama-3.1-8b
  otel-llm profile show mine.yaml --html mine.html

\b
Exit code: 0 fine; 2 bad usage, or a profile that is refused.
"""
FIT_EXAMPLES: Final = """
\b
Examples:
  otel-llm profile fit journal --out mine --kv-tokens 35000 --max-batch 64 --max-batched-tokens 2048
  otel-llm profile show mine.yaml

\b
Exit code: 0 fine; 2 bad usage, nothing to read, or too little to fit.
"""
AIC_EXAMPLES: Final = """
\b
Example:
  otel-llm profile import-aic --model meta-llama/Meta-Llama-3.1-8B --system h100_sxm --tensor-parallel 2 \\
    --kv-tokens 1000000 --max-batch 512 --max-batched-tokens 8192 --step-overhead 1.75ms --out h100-tp2

\b
Exit code: 0 fine; 2 bad usage, or no data of this engine.
"""
_COUNT: Final = click.IntRange(1, 10**12)


@click.group("profile", short_help="How long the iterations of an engine last.")
def profile() -> None:
    """Show how long the iterations of an engine last, as a scheduler knows it, and fit this to a recording."""


@profile.command("show", epilog=SHOW_EXAMPLES, short_help="Print and draw a profile.")
@click.argument("name", metavar="NAME")
@click.option("--html", type=click.Path(path_type=Path), metavar="OUT", help="The page to write, with pictures.")
def show(name: str, html: Path | None) -> None:
    """Print how long iterations of decodes and of prefills last, and how many decodes a TPOT allows.

    NAME is a profile that ships (cpu-tiny, h100-llama-3.1-8b, h200-llama-3.1-8b, h200-paper-era) or a file.
    """
    try:
        if html is not None:
            write.check_outputs([(html, (".html",))], Inputs(recordings=[], files=_files(name)))
        found = load_profile(name)
        if html is not None:
            write.write_text(html, render(found))
    except (ConfigError, OutputError) as error:
        raise click.UsageError(printable(str(error), 1000)) from error
    _print(found)
    if html is not None:
        echo(f"{printable(str(html), 300)}: {html.stat().st_size / 1e6:.1f} MB")


@profile.command("fit", epilog=FIT_EXAMPLES, short_help="Fit a profile to recordings of the plugin in an engine.")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="JOURNAL...")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="NAME", help="Write NAME.yaml and NAME.csv."
)
@click.option("--kv-tokens", type=_COUNT, required=True, metavar="N", help="Tokens that the KV cache holds.")
@click.option("--max-batch", type=_COUNT, required=True, metavar="N", help="vLLM's --max-num-seqs.")
@click.option("--max-batched-tokens", type=_COUNT, required=True, metavar="N", help="vLLM's --max-num-batched-tokens.")
@click.option("--tensor-parallel", type=_COUNT, default=1, show_default=True, metavar="N", help="GPUs of an engine.")
@click.option("--accelerator", default="unknown", show_default=True, metavar="WORDS", help="What it runs on.")
@click.option("--engine", default="vLLM", show_default=True, metavar="WORDS", help="The engine and its version.")
def fit(
    paths: tuple[Path, ...],
    out: Path,
    kv_tokens: int,
    max_batch: int,
    max_batched_tokens: int,
    tensor_parallel: int,
    accelerator: str,
    engine: str,
) -> None:
    """Fit a profile to what the plugin of otel-llm recorded in vLLM, or in continuous batching of transformers.

    JOURNAL is any input of `otel-llm audit`. The iterations are rebuilt from the token times and lengths of all
    requests; record a load with several streams at once and prompts of several lengths, without prefix caching.
    """
    target = out if out.suffix in (".yaml", ".yml") else out.with_name(f"{out.name}.yaml")
    try:
        table = target.with_suffix(".csv")
        write.check_outputs([(target, (".yaml", ".yml")), (table, (".csv",))], Inputs(recordings=paths))
        with reading_files(paths) as advance:
            engines, model = read_requests(load_streams(*paths, progress=advance))
        found = fit_profile(engines, model, max_batched_tokens)
        facts = {
            "accelerator": accelerator,
            "engine": engine,
            "tensor_parallel": tensor_parallel,
            "kv_tokens": kv_tokens,
            "max_batch": max_batch,
            "max_batched_tokens": max_batched_tokens,
        }
        write.write_text(table, table_text(found))
        write.write_text(target, profile_text(found, facts, table.name))
    except (ConfigError, ValueError, OSError) as error:
        raise click.UsageError(printable(str(error), 1000)) from error
    _print_fit(found)
    echo(f"{printable(str(target), 300)}, {printable(str(table), 300)}: a profile for `otel-llm profile show`")


@profile.command("import-aic", epilog=AIC_EXAMPLES, short_help="Make a profile from AIConfigurator's data.")
@click.option("--model", required=True, metavar="NAME", help="As on Hugging Face: its configuration may be fetched.")
@click.option("--system", required=True, metavar="NAME", help="AIConfigurator's name of the GPU, as h200_sxm.")
@click.option("--backend", default="vllm", show_default=True, metavar="NAME", help="vllm, sglang or trtllm.")
@click.option("--backend-version", default="current", show_default=True, metavar="V", help="Of those with data.")
@click.option("--tensor-parallel", type=_COUNT, default=1, show_default=True, metavar="N", help="GPUs of an engine.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="NAME", help="NAME.yaml and NAME.csv.")
@click.option("--kv-tokens", type=_COUNT, required=True, metavar="N", help="Tokens that the KV cache holds.")
@click.option(
    "--max-batch", type=_COUNT, default=512, show_default=True, metavar="N", help="Requests that run at once."
)
@click.option(
    "--max-batched-tokens", type=_COUNT, default=8192, show_default=True, metavar="N", help="Tokens of an iteration."
)
@click.option("--step-overhead", default="0ms", show_default=True, metavar="LENGTH", help="Beside each iteration.")
@click.option("--request-overhead", default="0ms", show_default=True, metavar="LENGTH", help="Before the queue.")
def import_aic(
    model: str,
    system: str,
    backend: str,
    backend_version: str,
    tensor_parallel: int,
    out: Path,
    kv_tokens: int,
    max_batch: int,
    max_batched_tokens: int,
    step_overhead: str,
    request_overhead: str,
) -> None:
    """Make a profile from AIConfigurator's data: sums of measured kernels, without the engine's own overhead.

    It needs the extra `aic`: pip install 'otel-llm[collector,aic]'.
    """
    profile_path, table_path = (out.with_name(f"{out.name}{ending}") for ending in (".yaml", ".csv"))
    try:
        for option, overhead in (("--step-overhead", step_overhead), ("--request-overhead", request_overhead)):
            _check_duration(option, overhead)
        write.check_outputs([(profile_path, (".yaml",)), (table_path, (".csv",))], Inputs())
        estimate = aic_import.estimator(model, system, backend, backend_version, tensor_parallel)
        facts = {
            "model": model,
            "accelerator": system,
            "engine": f"{backend} {backend_version}",
            "tensor_parallel": tensor_parallel,
            "kv_tokens": kv_tokens,
            "max_batch": max_batch,
            "max_batched_tokens": max_batched_tokens,
            "step_overhead": step_overhead,
            "request_overhead": request_overhead,
        }
        table = aic_import.table_text(estimate, aic_import.sizes(kv_tokens, max_batch, max_batched_tokens))
        write.write_text(table_path, table)
        write.write_text(profile_path, aic_import.profile_text(table_path.name, facts))
    except ModuleNotFoundError as missing:
        advice = "pip install 'otel-llm[collector,aic]'"
        raise click.UsageError(f"`otel-llm profile import-aic` needs {aic_import.PACKAGE}: {advice}") from missing
    except (ConfigError, ValueError, OSError) as error:
        raise click.UsageError(printable(str(error), 1000)) from error
    _print(load_profile(profile_path))
    echo(f"{printable(str(profile_path), 300)}, {printable(str(table_path), 300)}")


def _check_duration(option: str, length: str) -> None:
    try:
        exact_duration_ns(length)
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}; write a length as 1.75ms") from error


def _files(name: str) -> list[Path | None]:
    return [] if name in shipped_profiles() else [Path(name)]


def _print(found: Profile) -> None:
    console = wide_console()
    console.print(Text(f"{found.name}: {headline(found)}", style="bold"))
    console.print(Text(", ".join(f"{name} {value}" for name, value in facts_of(found))))
    console.print(Text(found.source, style="dim"))
    contexts = [f"{one:,} tokens" for one in contexts_of(found)]
    decodes = [(f"{size:,}", *map(_ms, line)) for size, line in decode_rows(found, batches_of(found))]
    _print_table("Iterations of decodes, by the context of each, ms", ["decodes", *contexts], decodes)
    prefills = [(f"{size:,}", *map(_ms, line)) for size, line in prefill_rows(found, chunks_of(found))]
    _print_table("Iterations of a prefill chunk alone, ms", ["chunk", *(f"after {one:,}" for one in PRIORS)], prefills)
    _print_table("The most decodes that a TPOT allows, overhead included", ["TPOT", *contexts], most_rows(found))


def _print_fit(found: Fit) -> None:
    console = wide_console()
    console.print(
        f"{found.requests:,} requests, {found.steps:,} iterations; of unknown length {found.idle_before:,}, doubtful "
        f"{found.doubtful:,}",
        style="bold",
    )
    nodes = found.curve.nodes
    points = [Point(size, 0, 0, 0) for size in nodes.decodes[1:]] + [Point(0, 0, size, 0) for size in nodes.chunks[1:]]
    lengths = [duration_text(length_ns) for length_ns in found.curve.lengths_ns(points)]
    sizes = [("decodes", f"{at.decodes:,}") if at.decodes else ("chunk", f"{at.chunk:,}") for at in points]
    _print_table(
        "Iterations", ["of", "size", "length"], [(*size, length) for size, length in zip(sizes, lengths, strict=True)]
    )
    terms = [
        ("per KV token", duration_text(found.curve.per_kv_token_ns)),
        ("per chunk token and token before", duration_text(found.curve.per_chunk_kv_ns)),
        ("pauses, part of all of these", share(found.pauses)),
        ("request_overhead", found.request_overhead),
    ]
    _print_table("Terms", ["term", "value"], terms)
    seen = [(name, f"{low:,}", f"{high:,}") for name, (low, high) in found.ranges.items()]
    _print_table("Sizes that were seen", ["", "from", "to"], seen)
    residuals = [
        (kind, f"{one.iterations:,}", share(one.median), share(one.p90), f"{one.bias:+.2%}")
        for kind, one in found.residuals.items()
    ]
    headings = ["iterations", "number", "median of sizes", "p90 of sizes", "median"]
    _print_table("Residuals, relative", headings, residuals)


def _ms(length_ns: int | None) -> str:
    return number(None if length_ns is None else length_ns / 1e6)


def _print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    wide_console().print(figures_table(title, headings, rows))
