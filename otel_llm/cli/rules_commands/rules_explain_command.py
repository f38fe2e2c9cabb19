"""`otel-llm rules explain`: explains a recorded decision in words."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from otel_llm.cli.output.echo import echo
from otel_llm.cli.output.progress import reading
from otel_llm.cli.rules_commands.decision_file_check import refuse_others
from otel_llm.config.yaml_file import ConfigError, did_you_mean
from otel_llm.rules.decisions.explain import explain as in_words
from otel_llm.rules.decisions.explain import headline
from otel_llm.rules.decisions.files import decision_files, read_back
from otel_llm.rules.decisions.transitions import NoIdError, find, newest
from otel_llm.rules.files.load import load_rules
from otel_llm.shared.formatting import plural
from otel_llm.shared.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.rules.files.ruleset import Rule

MOST_SHOWN = 20
"""The most ids with the same beginning that are named."""
LONGEST_LINE = 6000
"""A condition has at most 4,096 characters."""
_TRACE: Final = re.compile("[0-9a-fA-F]{6,32}", re.ASCII)
"""A trace id, or the part that tables show: `top` its first 6 digits, the audit its last 12."""


@click.command("explain", short_help="Explain a recorded decision.")
@click.argument("id_", required=False, metavar="[ID]")
@click.option(
    "--decisions",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The decision file of `collect`; its closed files (FILE.000001 ...) are read too.",
)
@click.option(
    "--rules", "rule_files", multiple=True, metavar="F", help="File of its rule. [default: the shipped rules]"
)
@click.option("--list", "listing", is_flag=True, help="List the last decisions, with ids.")
@click.option("--rule", metavar="NAME", help="List only decisions of this rule.")
@click.option(
    "--trace", metavar="HEX", help="List only decisions on this trace: its id, or its first or last 6 digits."
)
@click.option(
    "--last", type=click.IntRange(1, 100_000), default=MOST_SHOWN, show_default=True, help="How many to list."
)
def explain(
    id_: str | None,
    decisions: Path,
    rule_files: tuple[str, ...],
    listing: bool,
    rule: str | None,
    trace: str | None,
    last: int,
) -> None:
    """Explain a decision of a rule: its time, its subject, its facts, its outcome.

    ID names one firing of one rule on one stream, instance or class, with all its actions: 16 hex digits, or a unique
    beginning of at least 4. --list shows the ids. Exits 0, 1 if the ID names none or several, 2 if a file cannot be
    read or holds no decision records.

    \b
    Example:
      otel-llm rules explain --decisions decisions.jsonl --list
      otel-llm rules explain --decisions decisions.jsonl 3f2a9c
    """
    if listing and id_ is not None:
        raise click.UsageError("an ID or --list, not both: --list shows which ids there are")
    if not listing and id_ is None:
        raise click.UsageError("name an ID, or ask for --list")
    if trace is not None and not _TRACE.fullmatch(trace):
        raise click.UsageError(f"--trace {trace!r} is no trace id: it has 32 hex digits; the first or last 6 will do")
    if id_ is not None and (rule is not None or trace is not None):
        raise click.UsageError("--rule and --trace choose what --list shows")
    try:
        files = decision_files(decisions)
        if not files:
            raise click.UsageError(f"{decisions}: no such file; `collect --decisions` writes it")
        with reading(sum(file.stat().st_size for file in files) * (1 if listing else 2)) as advance:
            lines = _counted(decisions, advance)
            if listing:
                _list(decisions, lines, last, rule, (trace or "").lower())
                return
            assert id_ is not None  # noqa: S101
            found = find(id_, lines)
        if not found.records:
            refuse_others(decisions, found.broken)
        if len(found.matches) != 1:
            _report_others(0, found.left_out)
            sys.exit(_not_one(id_, list(found.matches)))
        (one,) = found.matches.values()
        for line in in_words(one, found.before, found.after, _rule(rule_files, str(one.first["rule_hash"]))):
            echo(printable(line, LONGEST_LINE))
        _report_others(found.broken, found.left_out)
    except (OSError, ConfigError, NoIdError) as problem:
        raise click.UsageError(str(problem)) from problem


def _list(path: Path, lines: Callable[[], Iterator[str]], last: int, rule: str | None, trace: str) -> None:
    found, broken, rules, left_out = newest(lines(), last, rule=rule, trace=trace)
    if not rules:
        refuse_others(path, broken)
    for one in found:
        echo(printable(headline(one), LONGEST_LINE))
    if not found:
        echo("no decisions")
        if rules and rule is not None and rule not in rules:
            why = f"no record has the rule {rule}; {did_you_mean(rule, sorted(rules))}"
            echo(printable(why, LONGEST_LINE), err=True)
        elif rules and trace:
            of = "" if rule is None else f" of the rule {rule}"
            echo(printable(f"no record{of} has the trace {trace}", LONGEST_LINE), err=True)
    _report_others(broken, left_out)


def _not_one(id_: str, matches: list[str]) -> int:
    if not matches:
        echo(f"no decision's id begins with {id_}", err=True)
    else:
        shown = ", ".join(matches[:MOST_SHOWN]) + (" ..." if len(matches) > MOST_SHOWN else "")
        echo(f"{len(matches)} ids begin with {id_}: {shown}", err=True)
    return 1


def _report_others(broken: int, left_out: int) -> None:
    if left_out:
        echo(f"{plural(left_out, 'decision')} in shadow left out when they were made: see `rules backtest`", err=True)
    if broken:
        words = "1 line is no decision record" if broken == 1 else f"{broken} lines are no decision records"
        echo(words, err=True)


def _rule(files: tuple[str, ...], rule_hash: str) -> Rule | None:
    """Return the rule with this hash; None if there is none.

    Raises:
        ConfigError: a rule file is refused.
    """
    return next((rule for rule in load_rules(files, _ANY).rules if rule.hash == rule_hash), None)


_ANY = frozenset({"migrate", "preempt", "abort", "drain", "scale", "webhook"})
"""All actions: rules of any process are read."""


def _counted(path: Path, advance: Callable[[int], None] | None) -> Callable[[], Iterator[str]]:
    done = 0

    def lines() -> Iterator[str]:
        nonlocal done
        for number, line in enumerate(read_back(path)):
            done += len(line)
            if advance is not None and not number % 4096:
                advance(done)
            yield line

    return lines
