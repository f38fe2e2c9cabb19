"""`otel-llm rules prometheus`: prints recording and alerting rules for Prometheus, from SLO classes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from otel_llm.cli.output.echo import echo, write_data
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, load_yaml
from otel_llm.rules.files.shipped import shipped_slo_file
from otel_llm.rules.files.slo_file import slo_of
from otel_llm.rules.lint.check import finding
from otel_llm.rules.prometheus.class_rules import (
    LEAST_REQUESTS,
    PrometheusSettings,
    UnwritableError,
    prometheus_rules,
)


@click.command()
@click.option("--slo", type=click.Path(path_type=Path), help="SLO classes. [default: the shipped ones]")
@click.option("--job", default="otel-llm", show_default=True, help="Job under which the collectors are scraped.")
@click.option(
    "--match",
    multiple=True,
    metavar="NAME=VALUE",
    help="Label of the scraped target that every rule selects and records; may be repeated.",
)
@click.option("--service", default="otel-llm", show_default=True, help="Name for `sloth_service`.")
@click.option(
    "--least-requests",
    type=click.IntRange(1, 10**9),
    default=LEAST_REQUESTS,
    show_default=True,
    help="Requests that an alert needs in its longer window; raised where a single miss would alert.",
)
def prometheus(slo: Path | None, job: str, match: tuple[str, ...], service: str, least_requests: int) -> None:
    """Print Prometheus rules for the objectives of SLO classes, and alerts on the collector itself.

    Error ratios and budgets have Sloth's record names; alerts use two windows and need a least number of requests.
    Omissions are noted on stderr. Exits 0, 1 (the classes are refused) or 2 (usage, a file that cannot be read).

    \b
    Example:
      otel-llm rules prometheus --slo slo.yaml --job otel-llm > otel-llm.rules.yml
    """
    path = slo or shipped_slo_file()
    try:
        settings = PrometheusSettings(job, service, tuple(map(_pair, match)), least_requests)
    except UnwritableError as problem:
        raise click.UsageError(str(problem)) from problem
    source = None
    try:
        file = load_yaml(path)
        source = file.text
        written = prometheus_rules(slo_of(file), settings)
    except UnreadableConfigError as problem:
        raise click.UsageError(str(problem)) from problem
    except ConfigError as problem:
        echo(str(finding(problem, source)), err=True)
        sys.exit(1)
    except UnwritableError as problem:
        raise click.ClickException(f"{path}: {problem}") from problem
    for note in written.notes:
        echo(f"note: {note}", err=True)
    write_data(written.text)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--match {text}: write NAME=VALUE, as env=production")
    return name, value
