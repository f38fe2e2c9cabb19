"""`otel-llm top`: the live view of a running collector or relay."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.live import Live

from otel_llm.cli.output.live_view import view
from otel_llm.cli.output.say import say
from otel_llm.cli.output.terminal_console import WIDTH, SafeConsole, wide_console
from otel_llm.cli.web_client import AskError, Source, UnreachableError
from otel_llm.rules.files.yamlfile import ConfigError
from otel_llm.shared.secret_files import exposed


@click.command()
@click.argument("url", default="http://127.0.0.1:9464")
@click.option("--every", "every_s", type=click.FloatRange(0.1, 60), default=0.25, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one picture and leave.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the bearer token that the collector asks for (auth); its own tokens file will do.",
)
@click.option(
    "--ca",
    type=click.Path(path_type=Path),
    help="PEM file of the authority that signed the collector's certificate. [default: those this machine trusts]",
)
def top(url: str, every_s: float, once: bool, token_file: Path | None, ca: Path | None) -> None:
    """Watch the streams in flight of the collector or relay at URL (its web port), those closest to starving first.

    docs/glossary.md explains the words.

    \b
    Examples:
      otel-llm top http://127.0.0.1:9464
      otel-llm top http://127.0.0.1:9465             # the relay's
      otel-llm top https://collector.example:9464 --token-file token.txt --ca ca.pem
    """
    try:
        source = Source(url, token_file=token_file, ca=ca)
        first = source.streams()
    except UnreachableError as nobody:
        raise click.UsageError(f"{nobody}; start one: otel-llm collect, or otel-llm relay") from nobody
    except (AskError, ConfigError, ValueError) as problem:
        raise click.UsageError(str(problem)) from problem
    warning = None if token_file is None else exposed(token_file)
    if warning is not None:
        say(f"warning: {warning}", err=True)
    console = SafeConsole()
    if once:
        wide_console(max(WIDTH, console.width)).print(view(first, steady=console.is_terminal))
        return
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(view(source.streams()), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return
    except AskError as gone:
        raise click.ClickException(f"the collector stopped answering: {gone}") from gone
