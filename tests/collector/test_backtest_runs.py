"""A backtest over the journal of a run decides what the run decided: the same decisions, in the same order.

`pytest --hypothesis-profile=long tests/collector/test_backtest_runs.py` looks at 25 times as many fleets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from support.chance import chances
from support.core.core_fleets import Fleet, Seen, advances, fleet
from support.core.core_rules import rule_set
from support.evaluate.groups import scoped
from support.examples import examples
from support.otlp import export

from otel_llm.actions.sinks.write_limits import WriteLimits
from otel_llm.backtest.backtest import Backtest, backtest
from otel_llm.backtest.backtest_evaluator import Terms
from otel_llm.backtest.journal_recordings import Recording
from otel_llm.collector.checkpoints import STOPPED_NS
from otel_llm.collector.settings import Limits
from otel_llm.journal.checkpoint import write_resume
from otel_llm.journal.journal import Journal
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.files.ruleset import Rule, RuleSet

GROUP_RULES = {
    "instance": ("starving > 0", "streams > 2 && starving_share > 0.3", "requests_1m > 1", "idle_p99_1m > 0.5"),
    "class": ("attainment_1m < 0.7", "burn_rate_5m > 2.0 || streams > 4", "goodput_1m < 0.3", "requests_5m >= 2"),
}


def lived(fleet: Fleet, random: Random) -> list[Decision]:
    """Return the decisions of a collector that reads the clock at random, until nothing is left to do."""
    seen = Seen(fleet)
    seen.run(advances=advances(random, fleet))
    return seen.decisions


def journaled(fleet: Fleet, folder: Path, *, stopped: bool = True) -> Path:
    """Write the journal of a fleet, in several files; `stopped`: the collector was, and did not die."""
    with Journal(folder, fsync="never", compress=False, max_bytes=4096) as journal:
        for delivery in fleet.deliveries:
            journal.append(export(*delivery.spans).SerializeToString(), delivery.receipt_ns)
    if stopped:
        write_resume(folder, {STOPPED_NS: fleet.end_ns})
    return folder


def backtested(
    fleet: Fleet,
    folder: Path,
    *,
    rules: RuleSet | None = None,
    against: RuleSet | None = None,
    decisions: Iterable[Path] = (),
) -> tuple[list[Decision], Backtest]:
    """Backtest a fleet's journal; return what was decided, in order, and what was found."""
    decided: list[Decision] = []
    found = backtest(
        Recording([folder]),
        rules=fleet.rules if rules is None else rules,
        terms=Terms(fleet.classes, Limits(), fleet.timeouts, fleet.window_ns),
        against=against,
        decisions=list(decisions),
        decided=decided.extend,
    )
    return decided, found


def group_rules(random: Random) -> tuple[Rule, ...]:
    """Draw rules of the scopes instance and class."""
    rules: list[Rule] = []
    for scope, conditions in GROUP_RULES.items():
        for index, when in enumerate(random.sample(conditions, random.randint(0, 2))):
            (one,) = scoped(scope, when, for_=random.choice(("0s", "500ms", "3s"))).rules
            rules.append(replace(one, name=f"{scope}{index}"))
    return tuple(rules)


def drawn_fleet(random: Random) -> Fleet:
    drawn = fleet(random, streams=random.randint(1, 12), calm=random.random() < 0.4, spread_s=random.choice((0, 5, 40)))
    return replace(drawn, rules=RuleSet((*rule_set(random).rules, *group_rules(random))))


def write(path: Path, decisions: list[Decision]) -> Path:
    """Write a decision file as a collector does, a little after each was made."""
    lines = [json.dumps(one.record(one.now_ns + 1_000_000)) + "\n" for one in decisions]
    path.write_text("".join(lines), encoding="utf-8")
    return path


@settings(max_examples=examples(60))
@given(chances())
def test_the_same_is_decided_in_the_same_order(tmp_path_factory: pytest.TempPathFactory, random: Random) -> None:
    drawn = drawn_fleet(random)
    if not drawn.deliveries:
        return
    live = lived(drawn, random)
    folder = tmp_path_factory.mktemp("run")
    written = write(folder / "decisions.jsonl", live)
    decided, found = backtested(drawn, journaled(drawn, folder / "journal"), decisions=[written])
    assert decided == live
    assert not found.differs
    records = found.comparison.records
    assert (records.then, records.new, records.same, records.in_order) == (len(live), len(live), len(live), True)
    for rule in found.comparison.rules:
        assert rule.same == rule.then.firings == rule.new.firings
        assert rule.earlier == rule.later == rule.only_new == rule.only_then == 0


def write_limited(path: Path, decisions: list[Decision], limits: WriteLimits) -> Path:
    """Write a decision file with no more than the limits allow, and the counts of the others."""
    lines: list[dict[str, Any]] = []
    for _, flip in groupby(decisions, key=lambda one: (one.key.rule_hash, one.key.subject, one.flip_ns, one.now_ns)):
        made = list(flip)
        lines += [one.record(made[0].now_ns) for one in limits.due(made[0].now_ns)]
        lines += [
            one.record(one.now_ns + 1_000_000) for one, written in zip(made, limits.admit(made), strict=True) if written
        ]
    lines += [one.record(decisions[-1].now_ns) for one in limits.due()] if decisions else []
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return path


@settings(max_examples=examples(30))
@given(chances())
def test_decisions_without_a_record_are_no_difference(tmp_path_factory: pytest.TempPathFactory, random: Random) -> None:
    drawn = drawn_fleet(random)
    if not drawn.deliveries:
        return
    drawn = replace(drawn, rules=replace(drawn.rules, shadow=True))
    live = lived(drawn, random)
    folder = tmp_path_factory.mktemp("run")
    limits = WriteLimits(burst=random.randint(1, 3), per_s=random.choice((0.001, 0.1, 1)))
    written = write_limited(folder / "decisions.jsonl", live, limits)
    _, found = backtested(drawn, journaled(drawn, folder / "journal"), decisions=[written])
    assert found.live is not None
    assert found.live.left_out == found.live.found_again == limits.decisions_left_out
    assert not found.differs
    for rule in found.comparison.rules:
        assert rule.same == rule.then.firings == rule.new.firings


@settings(max_examples=examples(20))
@given(chances())
def test_rules_beside_others_decide_what_they_decide_alone(
    tmp_path_factory: pytest.TempPathFactory, random: Random
) -> None:
    drawn = drawn_fleet(random)
    if not drawn.deliveries:
        return
    others = rule_set(random)
    folder = journaled(drawn, tmp_path_factory.mktemp("run") / "journal")
    alone, _ = backtested(drawn, folder)
    beside, found = backtested(drawn, folder, against=others)
    theirs, _ = backtested(drawn, folder, rules=others)
    assert beside == alone
    records = found.comparison.records
    assert (records.new, records.then) == (len(alone), len(theirs))
    assert found.differs == ([one.key for one in alone] != [one.key for one in theirs])


def test_without_a_note_of_the_stop_time_passes_to_the_last_decision_that_is_known(tmp_path: Path) -> None:
    for seed in range(200):
        random = Random(seed)
        drawn = drawn_fleet(random)
        live = lived(drawn, random)
        if live and live[-1].now_ns > drawn.deliveries[-1].receipt_ns:
            break
    folder = journaled(drawn, tmp_path / "journal", stopped=False)
    silent, _ = backtested(drawn, folder)
    assert silent == [one for one in live if one.now_ns <= drawn.deliveries[-1].receipt_ns]
    decided, found = backtested(drawn, folder, decisions=[write(tmp_path / "decisions.jsonl", live)])
    assert decided == live
    assert not found.differs


def test_of_a_part_of_a_journal_the_decisions_of_other_times_are_left_out(tmp_path: Path) -> None:
    random = Random(11)
    drawn = drawn_fleet(random)
    live = lived(drawn, random)
    half = drawn.deliveries[len(drawn.deliveries) // 2].receipt_ns
    early = replace(drawn, deliveries=tuple(one for one in drawn.deliveries if one.receipt_ns <= half))
    folder = journaled(early, tmp_path / "journal", stopped=False)
    before = [replace(one, now_ns=early.deliveries[0].receipt_ns - 2_000_000) for one in live[:3]]
    until = [one for one in live if one.now_ns <= half]
    written = write(tmp_path / "decisions.jsonl", before + until)
    _, found = backtested(drawn, folder, decisions=[written])
    assert until
    assert found.live is not None
    assert found.live.outside == len(before)
    assert not found.differs
