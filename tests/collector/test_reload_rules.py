"""Classes and rules are taken anew while streams run: what means the same goes on, what is gone ends."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from rules.scripted import one_rule, ruleset
from support.chance import chances
from support.core.core_cases import MS, at, commit, ends, request, seen, segment, story, take
from support.core.core_fleets import Fleet, Seen, advances, fleet, slo_classes
from support.core.core_rules import rule, rule_set
from support.examples import examples
from support.otlp import IDENTITY

from otel_llm import semconv
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import Deadline, SloClasses


@pytest.fixture(params=["columns", "engine"])
def by_columns(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "columns")


def reload(one: Seen, ms: float, rules: RuleSet, classes: SloClasses | None = None) -> None:
    one.evaluator.reload(one.evaluator.classes if classes is None else classes, rules, at(ms))


def starving(rules: RuleSet, *, by_columns: bool) -> Seen:
    """Return an evaluator with a stream that has had no token since 100 ms."""
    one = seen(rules, by_columns=by_columns)
    take(one, 0, commit())
    take(one, 200, segment(1, 0, [100], 200))
    return one


GAP = "gap_seconds > 0.5"


def test_a_rule_that_stays_fires_when_it_would_have(by_columns: bool) -> None:
    one = starving(one_rule(GAP), by_columns=by_columns)
    reload(one, 300, one_rule(GAP))
    one.evaluator.advance(at(1500))
    assert story(one) == [("R", 1, "firing", "done", 600.000001, 600.000001)]


def test_what_has_held_for_a_while_has_held_for_it_after_a_reload_too(by_columns: bool) -> None:
    one = starving(one_rule(GAP, for_="400ms"), by_columns=by_columns)
    one.evaluator.advance(at(700))
    reload(one, 800, one_rule(GAP, for_="400ms"))
    one.evaluator.advance(at(1500))
    assert story(one) == [("R", 1, "firing", "done", 1000.000001, 1000.000001)]


def test_a_rule_that_fires_and_stays_is_not_reported_twice(by_columns: bool) -> None:
    one = starving(one_rule(GAP), by_columns=by_columns)
    one.evaluator.advance(at(700))
    for ms in (800, 850, 900):
        reload(one, ms, one_rule(GAP))
    take(one, 1000, segment(2, 1, [990], 1000))
    one.evaluator.advance(at(1400))
    assert story(one) == [
        ("R", 1, "firing", "done", 600.000001, 600.000001),
        ("R", 1, "resolved", "resolved", 990.0, 1000.0),
    ]


@pytest.mark.parametrize("change", ["another condition", "another action", "gone"])
def test_a_rule_that_fires_and_is_not_there_any_more_ends(by_columns: bool, change: str) -> None:
    one = starving(one_rule(GAP), by_columns=by_columns)
    one.evaluator.advance(at(700))
    follower = {
        "another condition": one_rule("gap_seconds > 0.4"),
        "another action": one_rule(GAP, actions="[{alert: {name: B}}]"),
        "gone": RuleSet(()),
    }[change]
    reload(one, 800, follower)
    reported = story(one)
    assert reported[1][:4] == ("R", 1, "resolved", "ended")
    assert reported[1][5] == 800.0
    again = [] if change == "gone" else [("R", 1, "firing", "done")]
    assert [one[:4] for one in reported[2:]] == again
    if again:
        assert reported[2][5] == 800.0
        assert one.decisions[0].rule_hash == one.decisions[1].rule_hash != one.decisions[2].rule_hash
    one.evaluator.advance(at(1400))
    take(one, 1500, segment(2, 1, [], 1500, stated=ends(1, 3)))
    assert len(story(one)) == 2 + 2 * len(again)


def test_a_rule_that_waits_and_is_not_there_any_more_says_nothing(by_columns: bool) -> None:
    one = starving(one_rule(GAP, for_="10s", max_fact_age="60s"), by_columns=by_columns)
    one.evaluator.advance(at(700))
    reload(one, 800, RuleSet(()))
    one.evaluator.advance(at(20_000))
    assert story(one) == []


def test_a_new_rule_is_evaluated_at_once_for_streams_that_say_nothing(by_columns: bool) -> None:
    one = starving(RuleSet(()), by_columns=by_columns)
    one.evaluator.advance(at(900))
    reload(one, 900, one_rule(GAP))
    assert story(one) == [("R", 1, "firing", "done", 600.000001, 900.0)]


def test_a_new_rule_is_evaluated_when_its_time_comes(by_columns: bool) -> None:
    one = starving(RuleSet(()), by_columns=by_columns)
    reload(one, 300, one_rule(GAP))
    one.evaluator.advance(at(1500))
    assert story(one) == [("R", 1, "firing", "done", 600.000001, 600.000001)]


def test_a_group_of_another_name_is_the_same_rule(by_columns: bool) -> None:
    text = """version: 1
groups:
- name: {}
  scope: stream
  rules: [{{rule: R, when: 'gap_seconds > 0.5', actions: [{{alert: {{name: A}}}}]}}]
"""
    one = starving(ruleset(text.format("before")), by_columns=by_columns)
    one.evaluator.advance(at(700))
    reload(one, 800, ruleset(text.format("after")))
    take(one, 1000, segment(2, 1, [990], 1000))
    assert [(decision.group, decision.outcome) for decision in one.decisions] == [
        ("before", "done"),
        ("after", "resolved"),
    ]


@pytest.mark.parametrize("budget", ["per_request: 1", "per_instance: 1 in 10s", "in_flight: 1"])
def test_what_was_spent_stays_spent(by_columns: bool, budget: str) -> None:
    actions = f"[{{alert: {{name: A}}, ttl: 10s, budget: {{{budget}}}}}]"
    one = starving(one_rule(GAP, actions=actions), by_columns=by_columns)
    one.evaluator.advance(at(700))
    reload(one, 800, one_rule(GAP, actions=actions))
    take(one, 1000, segment(2, 1, [990], 1000))
    one.evaluator.advance(at(1700))
    assert [reported[3] for reported in story(one)] == ["done", "resolved", "budget"]


def test_what_was_decided_before_a_crash_is_known_after_a_reload(by_columns: bool) -> None:
    first = starving(one_rule(GAP), by_columns=by_columns)
    first.evaluator.advance(at(700))
    again = Seen(first.fleet, by_columns=by_columns, known={one.key for one in first.decisions})
    take(again, 0, commit())
    take(again, 200, segment(1, 0, [100], 200))
    reload(again, 300, one_rule(GAP))
    again.evaluator.advance(at(700))
    assert again.decisions == []


def test_classes_that_change_judge_streams_in_flight(by_columns: bool) -> None:
    strict = load_slo()
    (chat, *others) = strict.classes
    patient = SloClasses((replace(chat, deadline=Deadline("e2e", 60_000 * MS)), *others), "chat")
    for classes, met in ((strict, False), (patient, True)):
        one = starving(RuleSet(()), by_columns=by_columns)
        reload(one, 300, RuleSet(()), classes)
        take(one, 3000, segment(2, 1, [2900], 3000, stated=ends(2, 3)), request(3000))
        (row,) = one.rows
        assert (row["slo_class"], row["met"]) == ("chat", met)


def test_a_class_that_is_gone_leaves_its_streams_to_the_default(by_columns: bool) -> None:
    one = seen(by_columns=by_columns, window_ns=1_000 * MS)
    take(one, 0, commit(stated={**IDENTITY, semconv.SLO_CLASS: "voice"}))
    take(one, 200, segment(1, 0, [100], 200))
    known = load_slo()
    kept = SloClasses(tuple(slo for slo in known.classes if slo.name != "voice"), "chat")
    reload(one, 300, RuleSet(()), kept)
    take(one, 500, segment(2, 1, [], 500, stated=ends(1, 3)), request(500))
    one.evaluator.advance(at(30_000))
    assert [row["slo_class"] for row in one.rows] == ["chat"]
    ended = [window for window in one.windows if window["requests_ended"]]
    assert [window["slo_class"] for window in ended] == ["chat"]
    assert sum(window["tokens_read"] for window in one.windows) == 1


def driven(drawn: Fleet, reloads: list[tuple[int, SloClasses, RuleSet]], *, by_columns: bool, at_ns: list[int]) -> Seen:
    """Run a fleet through reloads and looks at the clock, each before what is received then."""
    one = Seen(drawn, by_columns=by_columns)
    waiting = sorted([*reloads, *((instant, None, None) for instant in at_ns)], key=lambda step: step[0])

    def step() -> None:
        instant, classes, rules = waiting.pop(0)
        if classes is None or rules is None:
            one.evaluator.advance(instant)
        else:
            one.evaluator.reload(classes, rules, instant)

    for delivery in drawn.deliveries:
        while waiting and waiting[0][0] < delivery.receipt_ns:
            step()
        one.take(delivery)
    while waiting:
        step()
    return one.rest()


@settings(max_examples=examples(25))
@given(chances())
def test_columns_and_the_engine_alone_decide_the_same_through_reloads(random: Random) -> None:
    drawn = replace(fleet(random), rules=rule_set(random))
    if not drawn.deliveries:
        return
    rules, classes = drawn.rules.rules, drawn.classes
    reloads = []
    for number, instant in enumerate(sorted(advances(random, drawn, random.randint(1, 4)))):
        kept = tuple(one for one in rules if random.random() < 0.7)
        added = (rule(random, f"N{number}", plain=random.random() < 0.8),) if random.random() < 0.6 else ()
        rules = (*kept, *added)
        classes = slo_classes(random) if random.random() < 0.3 else classes
        reloads.append((instant, classes, RuleSet(rules)))
    ways = [
        driven(drawn, reloads, by_columns=by_columns, at_ns=at_ns)
        for by_columns in (True, False)
        for at_ns in ([], advances(random, drawn))
    ]
    for way in ways[1:]:
        assert sorted(map(repr, way.rows)) == sorted(map(repr, ways[0].rows))
        assert way.windows == ways[0].windows
        assert way.story() == ways[0].story()
        assert way.totals() == ways[0].totals()


def test_a_late_stream_fires_nothing_because_of_a_reload(by_columns: bool) -> None:
    one = seen(one_rule("gap_seconds > 8.0", max_fact_age="60s"), by_columns=by_columns)
    take(one, 0, commit())
    take(one, 6000, segment(1, 0, [100], 200))
    reload(one, 6500, one_rule("gap_seconds > 8.0", max_fact_age="60s"))
    one.evaluator.advance(at(9000))
    assert story(one) == []
