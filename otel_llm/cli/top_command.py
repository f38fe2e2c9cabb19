"""`otel-llm top`: the live view of a running collector."""

from __future__ import annotations

import time

import click
from rich.console import Console
from rich.live import Live

from otel_llm.cli.live_view import fetch, reachable, view


@click.command()
@click.argument("url", default="http://127.0.0.1:9464")
@click.option("--every", "every_s", type=click.FloatRange(0.1, 60), default=0.25, show_default=True, help="Seconds.")
@click.option("--once", is_flag=True, help="Print one picture and leave.")
def top(url: str, every_s: float, once: bool) -> None:
    """Watch the streams in flight of the collector at URL, those closest to starving first.

    \b
    Example:
      otel-llm top http://127.0.0.1:9464
    """
    url = url.rstrip("/")
    problem = reachable(url)
    if problem is not None:
        raise click.UsageError(f"no collector answers at {url} ({problem}); start one: otel-llm collect")
    console = Console()
    if once:
        console.print(view(fetch(f"{url}/v1/streams")))
        return
    try:
        with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                live.update(view(fetch(f"{url}/v1/streams")), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return
    except OSError as gone:
        raise click.ClickException(f"the collector at {url} stopped answering: {gone}") from gone
