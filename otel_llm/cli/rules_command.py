"""`otel-llm rules`: what can be done with rule files before they run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from otel_llm.cli.rules_backtest_command import backtest
from otel_llm.cli.rules_explain_command import explain
from otel_llm.cli.rules_prometheus_command import prometheus
from otel_llm.cli.rules_schema_command import schema
from otel_llm.cli.rules_test_command import test
from otel_llm.rules.check import check_rules, token_read_times
from otel_llm.rules.rule_reader import RELAY_ONLY
from otel_llm.rules.slo_file import load_slo
from otel_llm.rules.yamlfile import ConfigError, UnreadableConfigError


@click.group()
def rules() -> None:
    """Check, test, backtest and explain rules."""


@rules.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@click.option("--slo", "slo_file", metavar="FILE", help="The SLO classes, so that others are warned about.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="The collector's settings: what they name somebody for may be enforced.",
)
def check(files: tuple[str, ...], strict: bool, slo_file: str | None, config_path: Path | None) -> None:
    """Check rule FILES (files, folders, globs) as `collect` would load them, and warn about what is odd in them.

    Of a folder, and of a glob in quotes, tests of rules and SLO classes are left out.
    A `migrate` or `preempt` in `mode: enforce` is right, with a note: a relay does it, and `collect` alone refuses it.
    Exits 0 if they are right, 1 if one is refused (file, line, column, what is wrong and what to write), 2 if one
    cannot be read.

    \b
    Example:
      otel-llm rules check --slo my-slo.yaml --config collector.yaml rules/ my-rules.yaml
    """
    try:
        classes = None if slo_file is None else load_slo(slo_file)
    except ConfigError as problem:
        raise click.UsageError(str(problem)) from problem
    try:
        names, reading = (None, None) if classes is None else (classes.names, token_read_times(classes))
        report = check_rules(files, _executors(config_path), names, reading, RELAY_ONLY)
    except UnreadableConfigError as problem:
        raise click.UsageError(str(problem)) from problem
    click.echo(str(report))
    sys.exit(report.exit_code(strict=strict))


def _executors(config_path: Path | None) -> frozenset[str]:
    """Return the verbs that a collector with these settings can do; a usage error where they cannot be read."""
    if config_path is None:
        return frozenset()
    from otel_llm.actions.executors import executors
    from otel_llm.collector.config_file import load_settings
    from otel_llm.shared.errors import StartError

    try:
        return frozenset(executors(load_settings(config_path)))
    except (ConfigError, StartError) as problem:
        raise click.UsageError(str(problem)) from problem


rules.add_command(prometheus)
rules.add_command(backtest)
rules.add_command(test)
rules.add_command(explain)
rules.add_command(schema)
