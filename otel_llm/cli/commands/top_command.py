"""`otel-llm top`: the live view of a running collector or relay."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.live import Live

from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.live_view import view
from otel_llm.cli.output.terminal_console import WIDTH, SafeConsole, wide_console
from otel_llm.cli.web_client import Source, UnreachableError, WebClientError
from otel_llm.rules.files.yamlfile import ConfigError
from otel_llm.shared.secret_files import exposed


@click.command()
@click.argument("url", default="http://127.0.0.1:9464")
@click.option("--every", "every_s", type=click.FloatRange(0.1, 60), default=0.25, show_default=True, help="Seconds.")
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
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(view(source.streams()), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return
    except WebClientError as problem:
        raise click.ClickException(f"the collector stopped answering: {problem}") from problem
