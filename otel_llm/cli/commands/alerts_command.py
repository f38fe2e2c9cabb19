"""`otel-llm alerts`: resends the dead letters of notifications."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.progress import Progress

from otel_llm.actions.delivery.channels import channels_of, close
from otel_llm.actions.delivery.dead_letters import BusyError, NoDeadLettersError, resend
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.terminal_console import SafeConsole
from otel_llm.collector.settings import load_settings
from otel_llm.config.errors import StartError
from otel_llm.config.yaml_file import ConfigError
from otel_llm.shared.clock import MonotonicClock
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.actions.delivery.dead_letters import Resent

MOST_SHOWN: Final = 20
"""The most messages that stay in the file, and the most broken lines, that are named."""
LONGEST_LINE: Final = 1000


@click.group("alerts")
def alerts() -> None:
    """Manage notifications of alerts."""


@alerts.command("resend", short_help="Resend dead letters.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    required=True,
    help="The collector's settings file, which names the receivers and their secrets.",
)
def resend_command(file: Path, config_path: Path) -> None:
    """Resend the dead letters in FILE once, and keep in it the ones that do not arrive.

    FILE is the file of dead letters (`dead_letters.jsonl` beside the journal, or `alerts.dead_letter`). The collector
    may be running. A message is sent to the receiver of its name in the settings, with its id, by which the receiver
    detects a duplicate. A line that is no dead letter, or is not tried, stays as it is. Exits 0 if all are sent, 1 if
    some are kept, 2 if a file cannot be used or holds no dead letter.

    \b
    Example:
      otel-llm alerts resend ~/.local/state/otel-llm/journal/dead_letters.jsonl --config collector.yaml
    """
    try:
        settings = load_settings(config_path)
        clock = MonotonicClock()
        channels = channels_of(settings, clock, "otel-llm alerts resend")
        try:
            with _progress() as advance:
                resent = resend(file, channels, clock.now_ns, advance)
        finally:
            close(channels.values())
    except (ConfigError, StartError, BusyError) as problem:
        raise click.UsageError(str(problem)) from problem
    except NoDeadLettersError as problem:
        advice = "name the collector's file of dead letters; this one is unchanged"
        raise click.UsageError(f"{printable(str(problem), LONGEST_LINE)}; {advice}") from problem
    except OSError as problem:
        where = file if problem.filename is None else problem.filename
        raise click.UsageError(f"{where}: {problem.strerror}: no message is lost; try again") from problem
    sys.exit(_print(file, resent))


def _print(file: Path, resent: Resent) -> int:
    lines = [f"kept: {one.id} to {one.to}: {reason}" for one, reason in resent.kept[:MOST_SHOWN]]
    lines += [f"kept: line {number}: no dead letter: {why}" for number, why in resent.broken[:MOST_SHOWN]]
    for line in lines:
        echo(printable(line, LONGEST_LINE), err=True)
    kept = len(resent.kept) + len(resent.broken)
    if kept > len(lines):
        echo(f"kept: and {kept - len(lines)} more", err=True)
    echo(f"{resent.sent} sent" + (f", {kept} kept in {file}" if kept else ""))
    return 1 if kept else 0


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Give a function that shows how many messages of how many were tried; None if there is no terminal."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("sending", total=None)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)
