"""The text output of a backtest: a table of rules, the differences, and the limits of the figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.shared.formatting import instant, number, plural, seconds
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

    from otel_llm.backtest.backtest import Backtest
    from otel_llm.backtest.comparison import RuleCompared

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
