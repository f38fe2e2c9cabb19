"""`otel-llm rules backtest`: evaluates rules over a recorded journal."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from otel_llm.cli.option_types import Duration, format_option
from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.progress import reading
from otel_llm.cli.rules_commands.decision_file_check import refuse_without_record
from otel_llm.config.yaml_file import ConfigError
from otel_llm.rules.files.load import RulesError, load_rules
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.formatting import instant, number, plural, seconds
from otel_llm.shared.outputs import Inputs, OutputError, check_output_path, refuse_clashes, replacing
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console
    from rich.table import Table

    from otel_llm.backtest.backtest import Backtest
    from otel_llm.backtest.comparison import RuleCompared
    from otel_llm.rules.decisions.decision_records import Decision


_KINDS: Final = {"moved": "moved", "only_then": "only then", "only_new": "only new"}
MOST_NAMED: Final = 10
"""The most different firings that are named under the table; `--format json` has more."""


def show(console: Console, found: Backtest) -> None:
    """Print the result of a backtest."""
    for line in heading(found):
        console.print(line, style="bold", markup=False)
    if found.comparison.rules:
        console.print(_table(found))
    for line in (*differences(found), *notes(found)):
        console.print(line, markup=False, soft_wrap=True)


def heading(found: Backtest) -> Iterator[str]:
    """Yield the lines above the table: the recording, and whether both sides agree."""
    recording, records = found.recording, found.comparison.records
    streams = found.judged + found.in_flight
    received = f"received {instant(recording.first_ns)} to {instant(recording.last_ns)} UTC"
    yield f"{plural(recording.records, 'record')} of {plural(streams, 'stream')}, {received}"
    if not found.comparison.compared:
        yield f"{plural(records.new, 'decision')} by these rules"
    elif records.identical:
        yield f"{plural(records.new, 'decision')}, on both sides exactly the same, in the same order"
    else:
        order = "" if records.in_order else ", and not in the same order"
        yield f"decisions: {records.then:,} then, {records.new:,} by these rules, {records.same:,} the same{order}"


def _table(found: Backtest) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    compared, hypothetical = found.comparison.compared, found.comparison.actions.hypothetical
    table = Table(header_style="bold", box=SIMPLE_HEAD)
    table.add_column("rule")
    names = ["fired then", "fires", "same", "earlier", "later", "by", "only then", "only new"] if compared else []
    for name in names or ["fires"]:
        table.add_column(name, justify="right")
    if hypothetical:
        table.add_column("of them after an action", justify="right")
    table.add_column("decided" if not compared else "decided (then)")
    for rule in found.comparison.rules:
        cells = [printable(rule.name), *(_numbers(rule) if compared else [number(rule.new.firings)])]
        if hypothetical:
            cells.append(number(rule.new.firings - rule.rests["as_recorded"]))
        table.add_row(*map(Text, (*cells, _decided(rule, compared=compared))))
    return table


def _numbers(rule: RuleCompared) -> list[str]:
    counts = (rule.then.firings, rule.new.firings, rule.same, rule.earlier, rule.later)
    return [*map(number, counts), seconds(rule.shift_s), number(rule.only_then), number(rule.only_new)]


def _decided(rule: RuleCompared, *, compared: bool) -> str:
    """Return the outcomes of the rule's actions, and the number of its refuted firings."""
    outcomes = []
    for verb, outcome in sorted(rule.new.actions.keys() | rule.then.actions.keys(), key=str):
        then = f" ({rule.then.actions[verb, outcome]:,})" if compared else ""
        outcomes.append(f"{printable(verb)} {printable(outcome)} {rule.new.actions[verb, outcome]:,}{then}")
    if refuted := rule.new.ends["refuted"]:
        outcomes.append(f"refuted {refuted:,}")
    return "; ".join(outcomes)


def differences(found: Backtest) -> Iterator[str]:
    """Yield lines on the first firings that differ."""
    named = [
        f"  {_KINDS[kind]}: {printable(rule.name)} at {instant(flip_ns)}: {printable(subject, 120)}"
        for rule in found.comparison.rules
        for kind, examples in rule.examples.items()
        for subject, flip_ns in examples
    ]
    if named:
        yield "firings that differ, on their streams' own clocks:"
        yield from named[:MOST_NAMED]
        if len(named) > MOST_NAMED:
            yield "  ... --format json names more"
    records = found.comparison.records
    if records.fields:
        fields = ", ".join(f"{printable(name)} {count:,}" for name, count in records.fields.most_common())
        yield f"decisions of the same rule at the same instant that differ all the same, by field: {fields}"


def notes(found: Backtest) -> Iterator[str]:
    """Yield lines on the limits of the figures."""
    yield from _unknowable(found)
    recording, live = found.recording, found.live
    if found.headless:
        yield (
            f"{plural(found.headless, 'stream')} began before the journal does, or the beginning was lost: "
            "less is decided of these than was there"
        )
    if found.in_flight:
        yield f"{plural(found.in_flight, 'stream')} still in flight at the end: their firings have no end here"
    if recording.backwards:
        yield f"{plural(recording.backwards, 'record')} received before its predecessor: evaluated at the time of that"
    if live is not None and live.outside:
        yield f"{plural(live.outside, 'decision')} in the files, from before or after this journal: left out"
    if live is not None and live.left_out:
        yield (
            f"{plural(live.left_out, 'decision')} in shadow without a record: there were too many of one rule and "
            f"tenant; {live.found_again:,} of these rules are taken for them"
        )
    if live is not None and live.broken:
        yield f"{plural(live.broken, 'line')} of the decision files that cannot be read: left out"
    for reason, count in sorted((*recording.skipped.counts.items(), *found.counts.items())):
        if count:
            yield f"left out: {plural(count, 'record')} ({reason})"


def _unknowable(found: Backtest) -> Iterator[str]:
    actions = found.comparison.actions
    if actions.first is not None:
        rests = {
            kind: sum(rule.rests[kind] for rule in found.comparison.rules)
            for kind in ("as_recorded", "same_request", "same_instance", "elsewhere")
        }
        first = actions.first
        yield (
            f"{plural(actions.hypothetical, 'action')} decided that was not done in the recording, the first at "
            f"{instant(first['at_unix_nano'])}: {printable(first['rule'])}: {first['action']}. What they would have "
            "changed is not known:"
        )
        yield (
            f"  {plural(rests['as_recorded'], 'firing')} before all of them: not affected. After one of them: "
            f"{rests['same_request']:,} of the same request, which would have continued differently; "
            f"{rests['same_instance']:,} more on an instance of an action, with another load; "
            f"{rests['elsewhere']:,} elsewhere"
        )
    if actions.done_both:
        yield f"{plural(actions.done_both, 'action')} done in the recording are decided by these rules, too"
    if actions.done_then_only:
        yield (
            f"{plural(actions.done_then_only, 'action')} done in the recording are not decided by these rules: the "
            "journal holds the streams with these actions, not without"
        )


WIDTH: Final = 140
"""The width of the table if the output is no terminal."""
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
@format_option("table", "json", of="The output: a table, or one JSON object.")
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
    output_format: str,
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
    if output_format == "json":
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
    from otel_llm.cli.rules_commands.rules_backtest_command import show

    show(wide_console(WIDTH), found)
