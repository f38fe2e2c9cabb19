"""`otel-llm profile`: how long the iterations of an engine last."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from otel_llm.audit import write
from otel_llm.audit.formatting import number
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.terminal_console import wide_console
from otel_llm.rules.files.yamlfile import ConfigError
from otel_llm.scheduling.profiles import load_profile, shipped_profiles
from otel_llm.scheduling.profiles.profile_page import (
    decode_rows,
    facts_of,
    headline,
    most_rows,
    prefill_rows,
    render,
)
from otel_llm.scheduling.profiles.summary import PRIORS, batches_of, chunks_of, contexts_of
from otel_llm.shared.outputs import Inputs, OutputError
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.scheduling.profiles.profile import Profile

SHOW_EXAMPLES: Final = """
\b
Examples:
  otel-llm profile show h200-llama-3.1-8b
  otel-llm profile show mine.yaml --html mine.html

\b
Exit code: 0 fine; 2 bad usage, or a profile that is refused.
"""


@click.group("profile", short_help="Show profiles: how long the iterations of an engine last.")
def profile() -> None:
    """Show how long the iterations of an engine last, as the scheduler and the simulator know it."""


@profile.command("show", epilog=SHOW_EXAMPLES, short_help="Print and draw a profile.")
@click.argument("name", metavar="NAME")
@click.option("--html", type=click.Path(path_type=Path), metavar="OUT", help="The page to write, with pictures.")
def show(name: str, html: Path | None) -> None:
    """Print how long iterations of decodes and of prefills last, and how many decodes a TPOT allows.

    NAME is a profile that ships (h100-llama-3.1-8b, h200-llama-3.1-8b, h200-paper-era) or a file.
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


def _files(name: str) -> list[Path | None]:
    return [] if name in shipped_profiles() else [Path(name)]


def _print(found: Profile) -> None:
    console = wide_console()
    console.print(Text(f"{found.name}: {headline(found)}", style="bold"))
    console.print(Text(", ".join(f"{name} {value}" for name, value in facts_of(found))))
    console.print(Text(found.source, style="dim"))
    contexts = [f"{one:,} tokens" for one in contexts_of(found)]
    decodes = [(f"{size:,}", *map(_ms, line)) for size, line in decode_rows(found, batches_of(found))]
    _table("Iterations of decodes, by the context of each, ms", ["decodes", *contexts], decodes)
    prefills = [(f"{size:,}", *map(_ms, line)) for size, line in prefill_rows(found, chunks_of(found))]
    _table("Iterations of a prefill chunk alone, ms", ["chunk", *(f"after {one:,}" for one in PRIORS)], prefills)
    _table("The most decodes that a TPOT allows, overhead included", ["TPOT", *contexts], most_rows(found))


def _ms(length_ns: int | None) -> str:
    return number(None if length_ns is None else length_ns / 1e6)


def _table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    wide_console().print(table)
