"""`otel-llm rules`: the table of its commands."""

from __future__ import annotations

from typing import Final

import click

from otel_llm.cli.lazy_group import Lazy, LazyGroup

COMMANDS: Final = {
    "backtest": Lazy(
        "otel_llm.cli.rules_commands.rules_backtest_command",
        "backtest",
        "What rules would have decided over a journal.",
        True,
    ),
    "check": Lazy(
        "otel_llm.cli.rules_commands.rules_check_command",
        "check",
        "Check rule files as `collect` or `relay` load them.",
    ),
    "explain": Lazy("otel_llm.cli.rules_commands.rules_explain_command", "explain", "Explain a recorded decision."),
    "prometheus": Lazy(
        "otel_llm.cli.rules_commands.rules_prometheus_command",
        "prometheus",
        "Print Prometheus rules for the objectives of SLO classes.",
    ),
    "schema": Lazy(
        "otel_llm.cli.rules_commands.rules_schema_command",
        "schema",
        "Print the JSON schema of rule files, for editors.",
    ),
    "test": Lazy("otel_llm.cli.rules_commands.rules_test_command", "test", "Run unit tests of rules.", True),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def rules() -> None:
    """Check, test, backtest and explain rules."""
