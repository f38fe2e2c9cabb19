"""`otel-llm alerts`: what became of messages about alerts; so far, to send again what was given up."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.progress import Progress

from otel_llm.actions.delivery.channels import channels_of, close
from otel_llm.actions.delivery.dead_letters import BusyError, NoDeadLettersError, resend
from otel_llm.cli.output.say import say
from otel_llm.cli.output.terminal_console import SafeConsole
from otel_llm.collector.config.schema import load_settings
from otel_llm.rules.files.yamlfile import ConfigError
from otel_llm.shared.clock import MonotonicClock
from otel_llm.shared.errors import StartError
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.actions.delivery.dead_letters import Resent

MOST_SHOWN: Final = 20
"""Of messages that were kept, and of lines that are none, so many are named."""
LONGEST_LINE: Final = 1000


@click.group("alerts")
def alerts() -> None:
    """Look after messages about alerts."""


@alerts.command("resend", short_help="Send again what was given up.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    required=True,
    help="The collector's settings file: it alone says where a receiver is, and signs.",
)
def resend_command(file: Path, config_path: Path) -> None:
    """Send the messages that the collector gave up once more, and keep in FILE what does not arrive.

    FILE is the file of dead letters (`dead_letters.jsonl` beside the journal, or `alerts.dead_letter`). The collector
    may be running. A message goes to the receiver of its name in the settings under the id that it had, by which the
    receiver knows one that it has already. A line that is no dead letter, or that is not tried, stays as it is. Exits
    0 when all are sent, 1 when some are kept, 2 when a file cannot be used or holds no dead letter.

    \b
    Example:
      otel-llm alerts resend ~/.local/state/otel-llm/journal/dead_letters.jsonl --config collector.yaml
    """
    try:
        settings = load_settings(config_path)
        clock = MonotonicClock()
        places = channels_of(settings, clock, "otel-llm alerts resend")
        try:
            with _progress() as tell:
                resent = resend(file, places, clock.now_ns, tell)
        finally:
            close(places.values())
    except (ConfigError, StartError, BusyError) as problem:
        raise click.UsageError(str(problem)) from problem
    except NoDeadLettersError as problem:
        advice = "name the file that the collector gives messages up to; this one is as it was"
        raise click.UsageError(f"{printable(str(problem), LONGEST_LINE)}; {advice}") from problem
    except OSError as problem:
        where = file if problem.filename is None else problem.filename
        raise click.UsageError(f"{where}: {problem.strerror}: nothing of it is lost; ask again") from problem
    sys.exit(_say(file, resent))


def _say(file: Path, resent: Resent) -> int:
    lines = [f"kept: {one.id} to {one.to}: {reason}" for one, reason in resent.kept[:MOST_SHOWN]]
    lines += [f"kept: line {number}: no dead letter: {why}" for number, why in resent.broken[:MOST_SHOWN]]
    for line in lines:
        say(printable(line, LONGEST_LINE), err=True)
    kept = len(resent.kept) + len(resent.broken)
    if kept > len(lines):
        say(f"kept: and {kept - len(lines)} more", err=True)
    say(f"{resent.sent} sent" + (f", {kept} kept in {file}" if kept else ""))
    return 1 if kept else 0


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Give what shows how many of how many were tried; None: nobody looks."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("sending", total=None)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)
