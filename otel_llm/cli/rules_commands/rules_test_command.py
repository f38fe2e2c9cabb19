"""`otel-llm rules test`: runs unit tests of rules."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from otel_llm.backtest.cases.case_parser import read_test_file
from otel_llm.backtest.cases.case_runner import run_test
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.terminal_console import SafeConsole
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError
from otel_llm.rules.files.load import RulesError
from otel_llm.rules.lint.check import finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.backtest.cases.case_parser import RuleTest, TestFile
    from otel_llm.backtest.cases.case_runner import Result


@click.command("test", short_help="Run unit tests of rules.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--run", "only", metavar="TEXT", help="Run only tests whose name contains this.")
@click.option("-v", "--verbose", is_flag=True, help="Show the decisions of every test, not only of failed ones.")
def test(files: tuple[Path, ...], only: str | None, verbose: bool) -> None:
    """Run the unit tests of rules in FILE...: scripted streams, and the expected decisions.

    The collector's own evaluator runs, in virtual time. docs/rules-test.md has the format. Exits 0 if all tests pass, 1
    if one fails or a file is refused, 2 if a file cannot be read or no test is to be run.

    \b
    Example:
      otel-llm rules test rules/*.test.yaml
    """
    refused = 0
    todo: list[tuple[Path, TestFile, RuleTest]] = []
    for path in files:
        try:
            read = read_test_file(path)
        except UnreadableConfigError as problem:
            raise click.UsageError(str(problem)) from problem
        except ConfigError as problem:
            refused += 1
            for error in problem.errors if isinstance(problem, RulesError) else [problem]:
                echo(str(finding(error, _text(error.file))))
            continue
        todo += [(path, read, one) for one in read.tests if only is None or only in one.name]
    if not todo and not refused:
        raise click.UsageError(f"no test's name contains {only!r}")
    with _progress(len(todo)) as bar:
        results: list[tuple[Path, Result]] = []
        for number, (path, read, one) in enumerate(todo):
            results.append((path, run_test(read, one, None if bar is None else partial(_advance, bar, number))))
    heading: Path | None = None
    for path, result in results:
        if heading != path:
            echo(f"{path}")
            heading = path
        echo(result.text(str(path), story=verbose))
    passed = sum(result.passed for _, result in results)
    failed = len(results) - passed
    echo(f"{passed} passed, {failed} failed" + (f", {refused} refused" if refused else ""))
    sys.exit(1 if failed or refused else 0)


@contextlib.contextmanager
def _progress(tests: int) -> Iterator[Callable[[float], None] | None]:
    """Give a function that shows how many tests are done, fractions included; None if there is no terminal."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal or not tests:
        yield None
        return
    columns = (TextColumn("testing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("testing", total=tests)
        yield lambda done: bar.update(task, completed=done)


def _advance(bar: Callable[[float], None], before: int, share: float) -> None:
    bar(before + share)


def _text(file: str) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return Path(file).read_text("utf-8-sig")
    return None
