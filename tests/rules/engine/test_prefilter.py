"""A look at rows finds what each stream's facts alone say; a rule that may not change before an instant does not."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nextafter
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from rules.drawn_streams import COMMIT, Rows, drawn
from rules.scripted import View, one_rule
from support.chance import chances
from support.core.core_fleets import MS
from support.core.core_rules import expression, rule
from support.examples import examples

from otel_llm.core.rule_tables import ALWAYS, BY_ENGINE, FIRING_FINAL, FIRING_REFUTABLE, INACTIVE
from otel_llm.rules.engine.prefilter import Prefilter, state_of
from otel_llm.rules.engine.rule_state import RuleState, next_due_ns, stays_inactive
from otel_llm.rules.engine.state_machine import Phase
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.language.condition import condition
from otel_llm.rules.language.facts import FACTS, STREAM_FACTS
from otel_llm.rules.language.snapshot import IDENTITY, READ, Snapshot
from otel_llm.slo.live.columns import NEVER

FAR_NS = 20_000 * MS
NUMBERS = [fact.name for fact in STREAM_FACTS if fact.name not in IDENTITY]


def near(random: Random, name: str, one: View, x_ns: int) -> str:
    """Draw a constant that is a stream's fact, or the number beside it."""
    value = READ[name](Snapshot(one), x_ns)
    if FACTS[name].type == "int":
        return str(int(value or 0) + random.choice((-1, 0, 1)))
    beside = random.choice((-inf, None, inf))
    return f"{float(value or 0.0) if beside is None else nextafter(float(value or 0.0), beside):.30f}"


@pytest.mark.parametrize("name", NUMBERS)
@settings(max_examples=examples(40))
@given(chances())
def test_a_fact_compares_as_it_does_alone(name: str, random: Random) -> None:
    views, x_ns = drawn(random, 12)
    op = random.choice(("<", "<=", ">", ">=", "==", "!="))
    at = random.randrange(12)
    when = condition(f"{name} {op} {near(random, name, views[at], x_ns[at])}", "stream")
    chosen = replace(rule(random, "R", plain=True), when=when, max_fact_age_ns=10**18)
    prefilter = Prefilter(RuleSet((chosen,)))
    rows = Rows(views, prefilter)
    found = rows.evaluate(x_ns, INACTIVE)
    for one, x, may, opens in zip(
        views, x_ns, found.may_change[:, 0].tolist(), found.opens_ns[:, 0].tolist(), strict=True
    ):
        facts = Snapshot(one)
        assert may is (when.truth(facts, x) is True), when.text
        assert may or opens > x
        if not may and opens != NEVER and FACTS[name].linear:
            assert not when.truth(facts, opens - 1), when.text
            assert when.truth(facts, opens) or op in ("==", "!="), when.text
    found = rows.evaluate(x_ns, FIRING_FINAL)
    for one, x, may in zip(views, x_ns, found.may_change[:, 0].tolist(), strict=True):
        assert may is (when.truth(Snapshot(one), x) is False), when.text


def engine_alone(one: View, state: RuleState, x_ns: int) -> int | None:
    """Return when the engine, looking at a unchanged rule whenever it would, finds that it holds, if no token comes."""
    facts, at_ns = Snapshot(one), x_ns
    while at_ns < x_ns + FAR_NS:
        truth = state.rule.when.truth(facts, at_ns, state.rule.max_fact_age_ns)
        if truth:
            return at_ns
        if stays_inactive(state, facts, at_ns):
            return None
        following = next_due_ns(state, facts, at_ns, truth, muted=False)
        if following is None:
            return None
        at_ns = following
    return None


@settings(max_examples=examples(150))
@given(chances())
def test_a_rule_that_is_calm_until_then_is_calm_until_then(random: Random) -> None:
    chosen = rule(random, "R", plain=True)
    prefilter = Prefilter(RuleSet((chosen,)))
    if not prefilter.clear:
        return
    views, x_ns = drawn(random, 8)
    found = Rows(views, prefilter).evaluate(x_ns, INACTIVE)
    for one, x, (may,), (due,) in zip(views, x_ns, found.may_change.tolist(), found.opens_ns.tolist(), strict=True):
        first = engine_alone(one, RuleState(chosen, one.stream.commit_ns), x)
        if first == x:
            assert may, chosen.when.text
        elif not may:
            assert due > x
            assert first is None or due <= first, chosen.when.text


@settings(max_examples=examples(150))
@given(chances())
def test_a_rule_that_fires_until_then_fires_until_then(random: Random) -> None:
    chosen = rule(random, "R", plain=True)
    prefilter = Prefilter(RuleSet((chosen,)))
    if not prefilter.clear:
        return
    views, x_ns = drawn(random, 8)
    found = Rows(views, prefilter).evaluate(x_ns, FIRING_FINAL)
    for one, x, (may,), (due,) in zip(views, x_ns, found.may_change.tolist(), found.opens_ns.tolist(), strict=True):
        facts = Snapshot(one)
        if may:
            continue
        assert chosen.when.truth(facts, x, chosen.max_fact_age_ns) is not False, chosen.when.text
        for instant in chosen.when.check_instants(facts, x, min(due - 1, x + FAR_NS)):
            assert chosen.when.truth(facts, instant, chosen.max_fact_age_ns) is not False, chosen.when.text


@settings(max_examples=examples(50))
@given(chances())
def test_what_a_token_may_refute_is_as_final_until_one_comes(random: Random) -> None:
    prefilter = Prefilter(RuleSet((rule(random, "R", plain=True), rule(random, "S", plain=True))))
    if not prefilter.clear:
        return
    views, x_ns = drawn(random, 20)
    states = np.array([[random.choice([INACTIVE, FIRING_FINAL]) for _ in range(2)] for _ in views], dtype=np.int8)
    opened = np.array([[random.random() < 0.5 for _ in range(2)] for _ in views]) & (states == FIRING_FINAL)
    expected = Rows(views, prefilter).evaluate(x_ns, states)
    states = np.where(opened, FIRING_REFUTABLE, states).astype(np.int8)
    found = Rows(views, prefilter).evaluate(x_ns, states)
    assert np.array_equal(found.may_change, expected.may_change)
    assert np.array_equal(found.opens_ns, expected.opens_ns)
    found = Rows(views, prefilter, more_tokens=1).evaluate(x_ns, states)
    assert np.array_equal(found.may_change, expected.may_change | opened)


@settings(max_examples=examples(50))
@given(chances())
def test_a_calm_stream_is_evaluated_when_the_first_of_its_rules_opens(random: Random) -> None:
    prefilter = Prefilter(RuleSet(tuple(rule(random, f"R{at}", plain=True) for at in range(3))))
    if not prefilter.clear:
        return
    views, x_ns = drawn(random, 20)
    rows = Rows(views, prefilter)
    rows.table.due_ns[:] = 7
    found = rows.evaluate(x_ns, INACTIVE)
    assert found.unchanged.tolist() == [not any(row) for row in found.may_change.tolist()]
    first = found.opens_ns.min(axis=1)
    due_ns = np.where(found.unchanged & (first != NEVER), first - [one.offset_ns for one in views], NEVER)
    assert rows.table.due_ns[rows.slots].tolist() == due_ns.tolist()
    assert found.earliest_ns == due_ns.min()
    assert (np.delete(rows.table.due_ns, rows.slots) == 7).all()


def test_without_rules_every_stream_is_calm() -> None:
    views, x_ns = drawn(Random(1), 3)
    rows = Rows(views, Prefilter(RuleSet(())))
    rows.table.due_ns[:] = 7
    found = rows.evaluate(x_ns, INACTIVE)
    assert found.unchanged.tolist() == [True] * 3
    assert (found.may_change.shape, found.opens_ns.shape, found.earliest_ns) == ((3, 0), (3, 0), NEVER)
    assert rows.table.due_ns[rows.slots].tolist() == [NEVER] * 3


@pytest.mark.parametrize(
    "when",
    [
        "gap_seconds > 0.5",
        "0.5 < gap_seconds",
        "slo_class == 'chat' && tokens_read > 0 && runway_seconds < 0.2 && gap_seconds > 0.5",
        "!(gap_seconds <= 0.5) || !exact_resume",
        "slo_class in ['chat', 'voice'] && idle_seconds >= 1.0",
        "deadline_misses > 3",
        "fluidity_index < 0.9 && tokens > 10 && model == 'm'",
        "true",
        "gap_seconds == 0.5 || idle_decode_seconds != 0.0",
    ],
)
def test_rules_that_are_evaluated_by_columns(when: str) -> None:
    assert Prefilter(one_rule(when)).clear


@pytest.mark.parametrize(
    "when",
    [
        "gap_seconds > ttft_seconds",
        "gap_seconds in [0.5, 1.0]",
        "gap_seconds + 1.0 > 2.0",
        "tokens / 2 > 3",
        "exact_resume == (gap_seconds > 0.25)",
        "gap_seconds > 2000000000.0",
        "deadline_misses > 3 && gap_seconds > 0.5",
        "deadline_misses > 3 || tokens > 9",
    ],
)
def test_rules_that_are_left_to_the_engine(when: str) -> None:
    assert not Prefilter(one_rule(when)).clear


@pytest.mark.parametrize("on_missing", ["false", "fire"])
def test_rules_that_do_something_about_missing_facts_are_left_to_the_engine(on_missing: str) -> None:
    assert not Prefilter(one_rule("gap_seconds > 0.5", on_missing=on_missing)).clear


def test_more_terms_on_identity_than_there_are_bits_are_left_to_the_engine() -> None:
    terms = " && ".join(f"model != 'm{number}'" for number in range(62))
    assert Prefilter(one_rule(f"{terms} && gap_seconds > 0.5")).clear
    assert not Prefilter(one_rule(f"{terms} && instance != 'x' && gap_seconds > 0.5")).clear


def test_most_conditions_are_evaluated_by_columns() -> None:
    random = Random(1)
    rules = [rule(random, "R", plain=True) for _ in range(200)]
    assert sum(Prefilter(RuleSet((one,))).clear for one in rules) > 120
    assert len({expression(random) for _ in range(200)}) > 150


def test_a_firing_that_can_still_be_refuted_is_not_final() -> None:
    (chosen,) = one_rule("gap_seconds > 0.5").stream_rules
    state = RuleState(chosen, COMMIT)
    assert state_of(state) == INACTIVE
    firing = replace(state, phase=Phase.FIRING)
    assert state_of(firing) == FIRING_FINAL
    assert state_of(replace(firing, flip_known=(3, 0))) == FIRING_REFUTABLE
    assert state_of(replace(firing, missing=True)) == BY_ENGINE
    assert state_of(replace(state, phase=Phase.PENDING)) == BY_ENGINE


def test_never_and_always_are_no_instants() -> None:
    assert ALWAYS < 0 < 2**62 < NEVER
