"""The command `otel-llm`: the table of its commands."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import click

from otel_llm.cli.lazy_group import Lazy, LazyGroup
from otel_llm.cli.output.echo import SafeLog
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
        "Receive telemetry and evaluate every stream live.",
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
    "bench": Lazy(
        "otel_llm.cli.commands.bench_command", "bench", "Send a load to a server: what would its readers feel?", True
    ),
    "capacity": Lazy(
        "otel_llm.cli.commands.capacity_command",
        "capacity",
        "Search for the load that a server, or a simulated fleet, carries.",
        True,
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
    "profile": Lazy(
        "otel_llm.cli.commands.profile_command", "profile", "How long the iterations of an engine last.", True
    ),
    "simulate": Lazy(
        "otel_llm.cli.commands.simulate_command", "simulate", "Simulate a fleet of engines by a scenario."
    ),
    "doctor": Lazy(
        "otel_llm.cli.commands.doctor_command", "doctor", "Find faults that keep streams from being recorded."
    ),
    "alerts": Lazy("otel_llm.cli.commands.alerts_command", "alerts", "Resend dead letters."),
    "rules": Lazy("otel_llm.cli.rules_commands.rules_command", "rules", "Check, test, backtest and explain rules."),
}


class WatchedGroup(LazyGroup):
    """A group whose commands exit with one code when standard output fails."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run with a watched standard output, unless a program calls."""
        if not options.get("standalone_mode", True):
            return super().main(*arguments, **options)
        if logging.lastResort is not None:  # the handler of a process that configures no log
            logging.lastResort.setFormatter(SafeLog())
        with watched_output():
            return super().main(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; escape error messages for the terminal."""
        try:
            return super().invoke(ctx)
        except click.ClickException as problem:
            problem.message = printable_lines(problem.message)  # type: ignore[misc]  # Final in name only
            raise


@click.group(cls=WatchedGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="otel-llm", prog_name="otel-llm")
def main() -> None:
    """Know what the readers of your LLM product feel, live, and act on it.

    \b
    Start here:
      otel-llm demo                       see it work on this machine
      otel-llm collect                    listen for telemetry on 127.0.0.1
      otel-llm audit ~/.local/state/otel-llm/journal --html report.html

    \b
    Exit code of every command: 2 if standard output cannot be written (a full disk);
    141, without a message, if it is a pipe whose reader has closed it (`| head`).
    """


if __name__ == "__main__":
    sys.exit(main())
