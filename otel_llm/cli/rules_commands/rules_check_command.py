"""`otel-llm rules check`: checks rule files as the service would load them, and lints them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from otel_llm.cli.output.echo import echo
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, load_yaml
from otel_llm.rules.files.rule_parser import RELAY_ONLY
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.rules.lint.check import check_rules, token_read_times


@click.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@click.option("--slo", "slo_file", metavar="FILE", help="The SLO classes: other names give a warning.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path),
    help="Settings of the collector, or of a relay (with `backends`): actions that these can do may be enforced.",
)
def check(files: tuple[str, ...], strict: bool, slo_file: str | None, config_path: Path | None) -> None:
    """Check rule FILES (files, folders, globs) as `collect` or `relay` would load them; warn of likely mistakes.

    A folder or a quoted glob leaves out rule tests and SLO classes. A `migrate` or `preempt` in `mode: enforce` passes
    with a note: a relay does it. There is no note with a --config that names an engine of kind relay: `collect` sends
    the action to that relay. With the settings of a relay `abort` and `drain` pass, too.
    Exits 0 if all pass, 1 if one is refused (with file, line, column, reason and remedy), 2 if one cannot be read.

    \b
    Example:
      otel-llm rules check --slo my-slo.yaml --config collector.yaml rules/ my-rules.yaml
      otel-llm rules check --config relay.yaml relay-rules.yaml
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
    echo(str(report))
    sys.exit(report.exit_code(strict=strict))


def _executors(config_path: Path | None) -> frozenset[str]:
    """Return the actions that a process with these settings can do.

    Raises:
        UsageError: the settings cannot be used.
    """
    if config_path is None:
        return frozenset()
    from otel_llm.actions.execute.executors import RELAY_DOES, executors
    from otel_llm.collector.settings import load_settings
    from otel_llm.config.errors import StartError
    from otel_llm.relay.settings import load_settings as load_relay

    try:
        if "backends" in load_yaml(config_path).data:
            return frozenset(RELAY_DOES | executors(load_relay(config_path, ())))
        return frozenset(executors(load_settings(config_path)))
    except (ConfigError, StartError) as problem:
        raise click.UsageError(str(problem)) from problem
