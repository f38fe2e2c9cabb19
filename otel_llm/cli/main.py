"""The command `otel-llm`: a list of its commands, each loaded when it is asked for."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import click

from otel_llm.cli.standard_output import watched_output

COMMANDS: Final = {
    "demo": ("otel_llm.cli.demo_command", "demo", "Everything on this machine: server, client, collector, report."),
    "collect": ("otel_llm.cli.collect_command", "collect", "Receive telemetry and follow every stream live."),
    "relay": ("otel_llm.cli.relay_command", "relay", "Pass streams on, and move those whose readers run dry."),
    "top": ("otel_llm.cli.top_command", "top", "Watch the streams in flight of a running collector."),
    "audit": ("otel_llm.cli.audit_command", "audit", "Judge recorded spans offline, with the same arithmetic."),
    "report": ("otel_llm.cli.report_command", "report", "The audit's report once more, from saved tables."),
    "sweep": ("otel_llm.cli.sweep_command", "sweep_command", "Smooth goodput over alphas, reading speeds and loads."),
    "calibrate": ("otel_llm.cli.calibrate_command", "calibrate", "Alpha and first-token targets from recordings."),
    "doctor": ("otel_llm.cli.doctor_command", "doctor", "Look for what keeps streams from being recorded."),
    "alerts": ("otel_llm.cli.alerts_command", "alerts", "Send again what was given up."),
    "rules": ("otel_llm.cli.rules_command", "rules", "Check, test, backtest and explain rules."),
}
"""Name of the command, its module and attribute, and what it does."""

OURS: Final = ("otel_llm",)


class MissingExtraError(click.UsageError):
    """Say that a command's dependencies are not installed; exit code 2."""

    def __init__(self, command: str, package: str) -> None:
        super().__init__(f"`otel-llm {command}` needs {package}: pip install 'otel-llm[collector]'")


class LazyGroup(click.Group):
    """Load a command's module only when that command runs: `--help` stays quick, and a missing extra is named."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a command; where standard output fails, that decides the exit code, of every command alike."""
        if not options.get("standalone_mode", True):
            return super().main(*arguments, **options)
        with watched_output():
            return super().main(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of a first visit."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command; raise MissingExtraError where a dependency of it is not installed."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.split(".")[0] in OURS:
                raise
            raise MissingExtraError(cmd_name, missing.name) from missing
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, _, words) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
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
