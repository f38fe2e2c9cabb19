"""The command `otel-llm`: a list of its commands, each loaded when it is asked for."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import click

from otel_llm.cli.lazy_group import Lazy, LazyGroup
from otel_llm.cli.output.say import SafeLog
from otel_llm.cli.output.standard_output import watched_output
from otel_llm.shared.printable import printable_lines

COMMANDS: Final = {
    "demo": Lazy(
        "otel_llm.cli.commands.demo_command",
        "demo",
        "Everything on this machine: server, client, collector, report.",
        True,
    ),
    "collect": Lazy(
        "otel_llm.cli.commands.collect_command",
        "collect",
        "Receive telemetry and follow every stream live.",
        True,
        True,
    ),
    "relay": Lazy(
        "otel_llm.cli.commands.relay_command", "relay", "Pass streams on, and move those whose readers run dry."
    ),
    "top": Lazy("otel_llm.cli.commands.top_command", "top", "Watch the streams in flight of a running collector."),
    "audit": Lazy(
        "otel_llm.cli.commands.audit_command", "audit", "Judge recorded spans offline, with the same arithmetic.", True
    ),
    "report": Lazy(
        "otel_llm.cli.commands.report_command", "report", "The audit's report once more, from saved tables.", True
    ),
    "sweep": Lazy(
        "otel_llm.cli.commands.sweep_command",
        "sweep_command",
        "Smooth goodput over alphas, reading speeds and loads.",
        True,
    ),
    "calibrate": Lazy(
        "otel_llm.cli.commands.calibrate_command", "calibrate", "Alpha and first-token targets from recordings.", True
    ),
    "doctor": Lazy(
        "otel_llm.cli.commands.doctor_command", "doctor", "Look for what keeps streams from being recorded."
    ),
    "alerts": Lazy("otel_llm.cli.commands.alerts_command", "alerts", "Send again what was given up."),
    "rules": Lazy("otel_llm.cli.rules_commands.rules_command", "rules", "Check, test, backtest and explain rules."),
}


class WatchedGroup(LazyGroup):
    """Run a command; where standard output fails, that decides the exit code, of every command alike."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run with a standard output that is watched, unless a program calls."""
        if not options.get("standalone_mode", True):
            return super().main(*arguments, **options)
        if logging.lastResort is not None:  # what writes to stderr where a program configures no log
            logging.lastResort.setFormatter(SafeLog())
        with watched_output():
            return super().main(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what is wrong is told in words that do not act on a terminal."""
        try:
            return super().invoke(ctx)
        except click.ClickException as problem:
            problem.message = printable_lines(problem.message)  # type: ignore[misc]  # Final in name only
            raise


@click.group(cls=WatchedGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="otel-llm", prog_name="otel-llm")
def main() -> None:
    """Know what the readers of your LLM product feel, live, and do something about it.

    \b
    Start here:
      otel-llm demo                       see it work on this machine
      otel-llm collect                    listen for telemetry on 127.0.0.1
      otel-llm audit ~/.local/state/otel-llm/journal --html report.html

    \b
    Exit code, of every command: 2 where standard output cannot be written to (a full disk);
    141, and not a word, where it is a pipe whose reader went away (`| head`).
    """


if __name__ == "__main__":
    sys.exit(main())
