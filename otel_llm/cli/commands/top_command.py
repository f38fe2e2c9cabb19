"""`otel-llm top`: the live view of a running collector or relay."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click
from rich.live import Live

from otel_llm.cli.number_options import KnownRange
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.keys import pressed_keys
from otel_llm.cli.output.live_view import view
from otel_llm.cli.output.terminal_console import WIDTH, SafeConsole, wide_console
from otel_llm.cli.output.top_screen import Screen
from otel_llm.cli.web_client import Source, UnreachableError, WebClientError
from otel_llm.config.secret_files import exposed
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.clock import monotonic_s


@click.command()
@click.argument("url", default="http://127.0.0.1:9464")
@click.option("--every", "every_s", type=KnownRange(0.1, 60), default=0.25, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one view and exit.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with a bearer token of the collector (auth); its own tokens file will do.",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    help="PEM file of the authority of the collector's certificate. [default: those this machine trusts]",
)
def top(url: str, every_s: float, once: bool, token_file: Path | None, ca: Path | None) -> None:
    """Watch the streams in flight of the collector or relay at URL (its web port), closest to starving first.

    Keys: arrows select, Enter opens a stream, Escape closes it; s sorts (runway, idle, age, tokens); c, m, i filter by
    class, model, instance, x shows all again; q ends. A collector that restarts is shown again when it is back.
    docs/glossary.md explains the terms.

    \b
    Examples:
      otel-llm top http://127.0.0.1:9464
      otel-llm top http://127.0.0.1:9465             # the relay's
      otel-llm top https://collector.example:9464 --token-file token.txt --ca ca.pem
    """
    try:
        source = Source(url, token_file=token_file, ca=ca)
        first = source.streams()
    except UnreachableError as problem:
        raise click.UsageError(f"{problem}; start one: otel-llm collect, or otel-llm relay") from problem
    except (WebClientError, ConfigError, ValueError) as problem:
        raise click.UsageError(str(problem)) from problem
    warning = None if token_file is None else exposed(token_file)
    if warning is not None:
        echo(f"warning: {warning}", err=True)
    console = SafeConsole()
    if once:
        wide_console(max(WIDTH, console.width)).print(view(first, steady=console.is_terminal))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does: the terminal is restored
    try:
        _watch(source, console, first, every_s)
    except KeyboardInterrupt:
        return


def _watch(source: Source, console: SafeConsole, first: dict[str, Any], every_s: float) -> None:
    """Show the streams until the key for the end; a service that does not answer is asked again."""
    screen = Screen()
    screen.show(first)
    due_s = monotonic_s() + every_s
    with pressed_keys() as read, Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            live.update(screen.draw(console.height, console.width), refresh=True)
            asked = screen.query()
            if not all(screen.press(key) for key in read(max(0.0, due_s - monotonic_s()))):
                return
            if screen.query() == asked and monotonic_s() < due_s:
                continue  # at most the selection has moved
            due_s = monotonic_s() + every_s
            try:
                screen.show(source.streams(screen.query()))
            except WebClientError as problem:
                screen.lost(f"{problem}; asking again")
