"""`otel-llm rules`: what can be done with rule files before they run."""

from __future__ import annotations

import sys

import click

from otel_llm.rules.check import check_rules
from otel_llm.rules.yamlfile import UnreadableConfigError


@click.group()
def rules() -> None:
    """Check rule files."""


@rules.command()
@click.argument("files", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
def check(files: tuple[str, ...], strict: bool) -> None:
    """Check rule FILES (files, folders, globs) as `collect` would load them.

    Exits 0 if they are right, 1 if one is refused (file, line, column, what is wrong and what to write), 2 if one
    cannot be read.

    \b
    Example:
      otel-llm rules check rules/ my-rules.yaml
    """
    try:
        report = check_rules(files)
    except UnreadableConfigError as problem:
        raise click.UsageError(str(problem)) from problem
    click.echo(str(report))
    sys.exit(report.exit_code(strict=strict))
