"""A migration that was refuted: its `per_request` is given back, and the next flip of `when` tries it again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules.first_hand import RULES, FirstHand, migrations
from rules.scripted import COMMIT, MS, View, key, ruleset
from support.examples import examples

from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import Rule, RuleSet
from otel_llm.rules.language.snapshot import Snapshot
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

STALL = "tokens_read > 0 && gap_seconds > 0.3"
LONG = "keep_firing_for: 10s"


def rules(when: str = STALL, more: str = LONG, budget: str = "per_request: 1") -> RuleSet:
    return ruleset(RULES.format(when=when, more=more, budget=budget), ["migrate"])


def test_the_next_flip_of_when_tries_it_again_within_the_firing() -> None:
    found = FirstHand(rules(), lambda _: 200).run([100, 600, 700, 1500], 5000)
    # 100 + 300 and a nanosecond; refuted at 601; then gaps at 700 and at 1500.
    assert migrations(found) == [
        (400.000001, "unconfirmed"),
        (1000.000001, "unconfirmed"),
        (1800.000001, "unconfirmed"),
    ]
    assert [(one.action, one.outcome) for one in found if one.action != "migrate"] == [
        ("alert", "done"),
        (None, "ended"),
    ]


def test_what_is_done_is_not_tried_again() -> None:
    found = FirstHand(rules(), lambda _: None).run([100, 600, 1500], 5000)
    assert migrations(found) == [(400.000001, "unconfirmed")]


def test_while_when_goes_on_holding_it_is_not_tried_again() -> None:
    found = FirstHand(rules(), lambda _: 100).run([100, 4000], 4200)
    assert migrations(found) == [(400.000001, "unconfirmed")]


def test_for_is_not_waited_for_again() -> None:
    found = FirstHand(rules(more="for: 500ms\n    keep_firing_for: 10s"), lambda _: 200).run([100, 1200], 3000)
    assert migrations(found) == [(900.000001, "unconfirmed"), (1500.000001, "unconfirmed")]


def test_what_was_given_back_is_there_for_the_next_firing() -> None:
    found = FirstHand(rules(more="on_missing: hold"), lambda number: 200 if number == 0 else None)
    assert migrations(found.run([100, 600, 1500, 2500], 5000)) == [
        (400.000001, "unconfirmed"),
        (900.000001, "unconfirmed"),
        (1800.000001, "budget"),
        (2800.000001, "budget"),
    ]
    assert [one.outcome for one, _ in found.refuted] == ["unconfirmed"]


@pytest.mark.parametrize("early", [False, True])
def test_a_refutation_after_the_firing_gives_back(early: bool) -> None:
    """The token of the source resolves the rule at the very instant, before the engine hears of it or after."""
    told = FirstHand(rules(more="on_missing: hold"), lambda _: 199, early=early)
    assert [outcome for _, outcome in migrations(told.run([100, 600], 2000))] == ["unconfirmed"] * 2


def test_the_other_limits_keep_what_was_spent() -> None:
    told = FirstHand(rules(budget="per_request: 1, per_instance: 2 in 1m"), lambda _: 200)
    found = migrations(told.run([100, 600, 1500, 2500], 5000))
    assert [outcome for _, outcome in found] == ["unconfirmed", "unconfirmed", "budget"]


def test_only_if_is_asked_again() -> None:
    told = FirstHand(rules(), lambda _: 200)
    told.move(0, token=False)
    for at_ms in (100, 600):
        told.wait(at_ms)
        told.move(at_ms, token=True)
    told.wait(700)
    told.view.exact_resume = False
    told.move(700, token=True)
    told.wait(1500)
    told.move(1500, token=True)
    assert [outcome for _, outcome in migrations(told.decisions)] == ["unconfirmed", "only_if"]


def fired() -> tuple[FirstHand, Decision]:
    told = FirstHand(rules(), lambda _: None)
    told.move(0, token=False)
    told.move(100, token=True)
    told.wait(600)
    told.move(600, token=False)
    return told, next(one for one in told.decisions if one.action == "migrate")


def test_what_cannot_be_refuted_changes_nothing() -> None:
    told, migrate = fired()
    alert = next(one for one in told.decisions if one.action == "alert")
    for other in (
        alert,
        replace(migrate, mode="shadow"),
        replace(migrate, outcome="only_if"),
        replace(migrate, budget={"per_request": False}),
        replace(migrate, rule_hash="0" * 16),
        replace(migrate, stream=key(9)),
        replace(migrate, stream=None),
        replace(migrate, action_index=None),
    ):
        assert not told.engine.refuted(other, told.at(600)), other
    assert told.engine.refuted(migrate, told.at(600))


def test_a_stream_that_is_over_changes_nothing() -> None:
    told, migrate = fired()
    told.engine.ended(told.view, told.at(700), told.at(700))
    assert not told.engine.refuted(migrate, told.at(700))
    assert told.engine.next_timer() is None


def test_choices_share_what_is_given_back() -> None:
    told, migrate = fired()
    other = View(Stream(SloClass(), COMMIT), key(1, 1), exact_resume=True, offset_ns=0, watermark_ns=told.at(600))
    told.engine.update(other, told.at(600))
    told.engine.ended(told.view, told.at(700), told.at(700))
    assert told.engine.refuted(migrate, told.at(700)), "the request is still there"
    other.stream.extend((told.at(800),))
    other.watermark_ns = told.at(1200)
    told.engine.update(other, told.at(1200))
    found = told.engine.advance(told.at(1200), {other.key: other})
    assert [one.outcome for one in found if one.action == "migrate"] == ["unconfirmed"]


@pytest.mark.parametrize("before", [False, True])
def test_reloaded_rules_that_mean_the_same_try_it_again(before: bool) -> None:
    told, migrate = fired()
    if before:
        assert told.engine.refuted(migrate, told.at(600))
    engine = RuleEngine(rules())
    assert engine.succeed(told.engine, told.at(610), {told.view.key: told.view}) == []
    told.engine = engine
    assert told.engine.refuted(migrate, told.at(620)) is not before
    for at_ms in (700, 1500):
        told.wait(at_ms)
        told.move(at_ms, token=True)
    assert migrations(told.decisions) == [(400.000001, "unconfirmed"), (1000.000001, "unconfirmed")]


def test_reloaded_rules_that_mean_something_else_forget_it() -> None:
    told, migrate = fired()
    assert told.engine.refuted(migrate, told.at(600))
    engine = RuleEngine(rules(when="tokens_read > 0 && gap_seconds > 9.0"))
    assert [one.outcome for one in engine.succeed(told.engine, told.at(610), {told.view.key: told.view})] == ["ended"]
    told.engine = engine
    assert not told.engine.refuted(migrate, told.at(620))
    told.move(700, token=True)
    told.wait(3000)
    assert len(migrations(told.decisions)) == 1


def test_a_late_look_finds_the_same() -> None:
    told, migrate = fired()
    told.engine.refuted(migrate, told.at(650))
    told.move(700, token=True)
    told.view.watermark_ns = told.at(1900)
    told.decisions += told.engine.advance(told.at(1900), {told.view.key: told.view})
    assert migrations(told.decisions) == [(400.000001, "unconfirmed"), (1000.000001, "unconfirmed")]


def test_a_refutation_ahead_of_a_look_is_begun_at_its_own_instant() -> None:
    told, migrate = fired()
    told.move(610, token=True)
    told.view.watermark_ns = told.at(620)
    told.engine.update(told.view, told.at(620))
    assert told.engine.refuted(migrate, told.at(650)), "what is due at 620 was not looked at yet"
    told.decisions += told.engine.advance(told.at(1900), {told.view.key: told.view})
    assert migrations(told.decisions) == [(400.000001, "unconfirmed"), (910.000001, "unconfirmed")]


@given(
    gaps_ms=st.lists(st.sampled_from([20, 60, 150, 299, 300, 301, 420, 700, 1300]), min_size=1, max_size=14),
    refutes_ms=st.lists(st.one_of(st.none(), st.integers(0, 900)), max_size=10),
    when=st.sampled_from([STALL, "tokens_read > 0 && runway_seconds < 0.1", f"{STALL} && runway_seconds < 0.25"]),
    more=st.sampled_from([LONG, "keep_firing_for: 400ms", "resolve_when: 'gap_seconds < 0.1'", "for: 100ms"]),
    limit=st.integers(1, 3),
)
@settings(max_examples=examples(150))
def test_any_refutations(gaps_ms: list[int], refutes_ms: list[int | None], when: str, more: str, limit: int) -> None:
    tokens_ms = [sum(gaps_ms[: at + 1]) for at in range(len(gaps_ms))]
    end_ms = tokens_ms[-1] + 600
    the_rules = rules(when, more, f"per_request: {limit}")

    def executes(number: int) -> int | None:
        return refutes_ms[number] if number < len(refutes_ms) else None

    told = [FirstHand(the_rules, executes, early=early) for early in (False, True)]
    found, other = (one.run(tokens_ms, end_ms) for one in told)
    assert [one.record() for one in found] == [one.record() for one in other]
    holds = Oracle(the_rules.rules[0], tokens_ms)
    _never_over_its_limit(told[0], limit)
    fires = False
    waits_ns: int | None = None
    """Since when the last try is refuted."""
    flips: set[int] = set()
    for one in found:
        if one.action == "alert":
            assert not fires, "only what was refuted is tried again"
            fires = True
        elif one.action is None:
            assert waits_ns is None or holds.next_flip_ns(waits_ns, one.flip_ns - 1) is None, "it was not tried again"
            fires, waits_ns = False, None
        else:
            assert one.flip_ns not in flips, "once a flip"
            flips.add(one.flip_ns)
            if fires:
                assert waits_ns is not None, "only what was refuted is tried again"
                assert one.flip_ns == holds.next_flip_ns(waits_ns, one.flip_ns)
            waits_ns = next((told[0].at(at_ms) for each, at_ms in told[0].refuted if each is one), None)


def _never_over_its_limit(told: FirstHand, limit: int) -> None:
    spent = [(one.now_ns, 1) for one in told.decisions if one.action == "migrate" and one.outcome == "unconfirmed"]
    given = [(told.at(at_ms), -1) for _, at_ms in told.refuted]
    assert len(spent) == told.tries
    net = 0
    for _, change in sorted([*spent, *given], key=lambda each: (each[0], each[1])):
        net += change
        assert 0 <= net <= limit


class Oracle:
    """Where `when` holds, by looking at every millisecond and the nanosecond after it."""

    def __init__(self, rule: Rule, tokens_ms: list[int]) -> None:
        self.rule = rule
        self.tokens_ns = [COMMIT + at_ms * MS for at_ms in tokens_ms]

    def holds(self, x_ns: int) -> bool:
        stream = Stream(SloClass(), COMMIT)
        stream.extend([at_ns for at_ns in self.tokens_ns if at_ns <= x_ns])
        return self.rule.when.truth(Snapshot(View(stream, watermark_ns=x_ns)), x_ns) is True

    def next_flip_ns(self, after_ns: int, until_ns: int) -> int | None:
        """Return the first instant after one, not after another, at which it holds and did not before."""
        held = self.holds(after_ns)
        for at_ns in range(after_ns // MS * MS, until_ns + 1, MS):
            for x_ns in (at_ns, at_ns + 1):
                if after_ns < x_ns <= until_ns:
                    holds = self.holds(x_ns)
                    if holds and not held:
                        return x_ns
                    held = holds
        return None
