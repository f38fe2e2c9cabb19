"""`otel-llm rules backtest`: evaluates rules over a recorded journal."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from otel_llm.cli.duration_options import Duration
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.progress import reading
from otel_llm.cli.rules_commands.decision_file_check import refuse_without_record
from otel_llm.config.yaml_file import ConfigError
from otel_llm.rules.files.load import RulesError, load_rules
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.outputs import Inputs, OutputError, check_output_path, refuse_clashes, replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.backtest.backtest import Backtest
    from otel_llm.rules.decisions.decision_records import Decision

WIDTH: Final = 140
"""The width of the table where the output is no terminal."""
LONG_JOURNAL_BYTES: Final = 2_000_000
"""Smaller journals are evaluated too fast for a progress bar."""
_FILE = click.Path(path_type=Path)

EXAMPLES = """
\b
Examples:
  otel-llm rules backtest --rules new.yaml ~/.local/state/otel-llm/journal
  otel-llm rules backtest --rules new.yaml --against rules/chat.yaml journal
  otel-llm rules backtest --rules new.yaml --decisions decisions.jsonl journal
  otel-llm rules backtest --rules rules/ --decisions decisions.jsonl --fail-on-difference journal

\b
Exit code: 0 fine; 1 the decisions differ (with --fail-on-difference), or a rule file is
refused; 2 bad usage, or nothing to read.
"""


@click.command("backtest", epilog=EXAMPLES, short_help="What rules would have decided over a journal.")
@click.argument("journals", nargs=-1, required=True, type=_FILE, metavar="JOURNAL...")
@click.option(
    "--rules",
    "rule_paths",
    multiple=True,
    help="Rule file, folder or glob; may be repeated. [default: the shipped rules, in shadow]",
)
@click.option("--against", multiple=True, help="The old rules: file, folder or glob; may be repeated.")
@click.option(
    "--decisions",
    multiple=True,
    type=_FILE,
    help="The recorded decisions: a file of collect --decisions, with its closed files; may be repeated.",
)
@click.option("--slo", type=_FILE, metavar="F", help="SLO classes. [default: the shipped ones]")
@click.option("--config", type=_FILE, metavar="F", help="The collector's settings: limits, receivers.")
@click.option("--window", type=Duration(), default="10s", show_default=True, help="As collect was given it.")
@click.option("--lateness", type=Duration(), default="5s", show_default=True, help="As collect was given it.")
@click.option("--lost-after", type=Duration(), default="120s", show_default=True, help="As collect was given it.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="The output: a table, or one JSON object.",
)
@click.option("--write", type=_FILE, metavar="OUT", help="Write the decisions of --rules here (JSON lines).")
@click.option("--fail-on-difference", is_flag=True, help="Exit 1 unless both sides decide exactly the same.")
def backtest(
    journals: tuple[Path, ...],
    rule_paths: tuple[str, ...],
    against: tuple[str, ...],
    decisions: tuple[Path, ...],
    slo: Path | None,
    config: Path | None,
    window: int,
    lateness: int,
    lost_after: int,
    form: str,
    write: Path | None,
    fail_on_difference: bool,
) -> None:
    """Evaluate rules over JOURNALs of `otel-llm collect` (folders or files), with their receipt times.

    The collector's own evaluator runs; no action is done. With --against or --decisions the result is compared with
    the old rules, or the recorded decisions, firing by firing.
    """
    from otel_llm.backtest.backtest import VERBS
    from otel_llm.backtest.backtest import backtest as run
    from otel_llm.backtest.backtest_evaluator import Terms
    from otel_llm.backtest.journal_recordings import Recording
    from otel_llm.backtest.summary_json import summary
    from otel_llm.collector.settings import load_settings
    from otel_llm.evaluate.timers import Timeouts
    from otel_llm.formats.records import InputError
    from otel_llm.journal.checkpoint import RESUME_FILE

    if against and decisions:
        raise click.UsageError("--against or --decisions, not both: each names the other side of the comparison")
    if fail_on_difference and not against and not decisions:
        raise click.UsageError("--fail-on-difference needs another side to compare with: --against or --decisions")
    try:
        kept = [folder / RESUME_FILE for folder in journals]
        _check_output(write, Inputs(journals, (*rule_paths, *against), decisions, journals, [slo, config, *kept]))
        _refuse_without_records(decisions)
        settings = load_settings(config)
        new = load_rules(rule_paths, VERBS)
        old = load_rules(against, VERBS) if against else None
    except RulesError as refused:
        echo("\n".join(str(one) for one in refused.errors), err=True)
        sys.exit(1)
    except (ConfigError, OutputError) as error:
        raise click.UsageError(str(error)) from error
    try:
        terms = Terms(load_slo(slo), settings.limits, Timeouts(lateness, lost_after), window)
        recording = Recording(journals)
        with _writer(write) as decided, reading(recording.size, LONG_JOURNAL_BYTES) as advance:
            found = run(
                recording,
                rules=new,
                terms=terms,
                against=old,
                decisions=decisions,
                notified=[one.name for one in settings.receivers.values() if one.kind == "notification"],
                progress=advance,
                decided=decided,
            )
    except (ConfigError, InputError, OutputError, OSError) as error:
        raise click.UsageError(str(error)) from error
    if form == "json":
        click.echo(json.dumps(summary(found), allow_nan=False))
    else:
        _print(found)
    if fail_on_difference and found.differs:
        sys.exit(1)


def _check_output(path: Path | None, inputs: Inputs) -> None:
    if path is not None:
        check_output_path(path)
        refuse_clashes([path], inputs)


def _refuse_without_records(files: tuple[Path, ...]) -> None:
    """Refuse files that hold no decision records: compared with them, every firing would look new."""
    for file in files:
        with contextlib.suppress(OSError):  # reported when the files are read
            refuse_without_record(file)


@contextlib.contextmanager
def _writer(path: Path | None) -> Iterator[Callable[[list[Decision]], None] | None]:
    """Give a function that writes decisions as records; None for no file."""
    if path is None:
        yield None
        return
    with replacing(path) as file:

        def write(decisions: list[Decision]) -> None:
            for decision in decisions:
                file.write(json.dumps(decision.record(), separators=(",", ":"), allow_nan=False).encode() + b"\n")

        yield write


def _print(found: Backtest) -> None:
    from otel_llm.cli.output.terminal_console import wide_console
    from otel_llm.cli.rules_commands.backtest_view import show

    show(wide_console(WIDTH), found)
