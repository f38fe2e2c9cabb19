"""The rules of instances and classes, second by second: each state of the state table, and how facts are read."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from rules.scripted import ruleset
from support.evaluate.groups import scoped

from otel_llm.rules.engine.decision_maker import DecisionMaker
from otel_llm.rules.engine.scope_engine import ScopeEngine
from otel_llm.rules.engine.scope_facts import LABELS_OF, WINDOW_NS, InFlightCounts, ScopeFacts, needs, split
from otel_llm.rules.engine.sliding_window import SlidingWindow, Totals
from otel_llm.rules.engine.state_machine import TABLE, Event, Phase
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.language.facts import WINDOW_FACTS, Scope
from otel_llm.slo.classes import Objective

S = 1_000_000_000
T0 = 1_790_000_000 * S
LABELS = (("measured_at", "client"), ("model", "m"), ("slo_class", "chat"))
PYTHON = {"int": int, "double": float}


def facts(
    second: int, total: Totals | None = None, *, flying: InFlightCounts | None = None, since: int = -(10**6)
) -> ScopeFacts:
    windows = {window: SlidingWindow(length) for window, length in WINDOW_NS.items()}
    for rolling in windows.values():
        if total is not None:
            rolling.add(total, T0 + second * S)
    return ScopeFacts(
        scope="class",
        labels=LABELS,
        now_ns=T0 + second * S,
        heard_ns=T0 + second * S - S // 2,
        in_flight=flying or InFlightCounts(0, {1_500_000_000: (0, 0)}),
        windows=windows,
        since_ns=dict.fromkeys(windows, T0 + since * S),
        objective=Objective(Fraction(9, 10), Fraction(9, 10), Fraction(9, 10)),
    )


def evaluations(rules: RuleSet, truths: Sequence[bool | None]) -> tuple[ScopeEngine, list[tuple[str, str, int]]]:
    """Look at `attainment_1m < 0.5` with these truths, a second apart."""
    engine = ScopeEngine(rules, DecisionMaker(rules, ()))
    reported: list[tuple[str, str, int]] = []
    for second, truth in enumerate(truths):
        total = None if truth is None else Totals(met_true=0 if truth else 1, met_false=1 if truth else 0)
        reported += [(one.state, one.outcome, second) for one in engine.evaluate(facts(second, total))]
    return engine, reported


def state(engine: ScopeEngine) -> Phase:
    (phase,) = engine.phases("class", LABELS).values()
    return phase


WHEN = "attainment_1m < 0.5"
REACHED = {Phase.INACTIVE: [False], Phase.PENDING: [True], Phase.FIRING: [True, True, True]}
"""With `for: 2s` and `keep_firing_for: 2s`: looks that lead to a state."""
FOLLOWED: dict[tuple[Phase, Event], tuple[list[bool | None], Phase, list[str]]] = {
    (Phase.INACTIVE, Event.HOLDS): ([True], Phase.PENDING, []),
    (Phase.INACTIVE, Event.CLEAR): ([False], Phase.INACTIVE, []),
    (Phase.INACTIVE, Event.MISSING): ([None], Phase.INACTIVE, []),
    (Phase.PENDING, Event.HOLDS): ([True], Phase.PENDING, []),
    (Phase.PENDING, Event.DUE): ([True, True], Phase.FIRING, ["done"]),
    (Phase.PENDING, Event.CLEAR): ([False], Phase.INACTIVE, []),
    (Phase.PENDING, Event.MISSING): ([None], Phase.PENDING, []),
    (Phase.FIRING, Event.HOLDS): ([True], Phase.FIRING, []),
    (Phase.FIRING, Event.DUE): ([True, True, True], Phase.FIRING, []),
    (Phase.FIRING, Event.CLEAR): ([False, False], Phase.FIRING, []),
    (Phase.FIRING, Event.RESOLVED): ([False, False, False], Phase.INACTIVE, ["resolved"]),
    (Phase.FIRING, Event.MISSING): ([None, None, None, None], Phase.FIRING, []),
}


@pytest.mark.parametrize(("entry", "found"), FOLLOWED.items(), ids=lambda value: str(value)[:60])
def test_each_cell_of_the_state_table(
    entry: tuple[Phase, Event], found: tuple[list[bool | None], Phase, list[str]]
) -> None:
    rules = scoped("class", WHEN, for_="2s", keep_firing_for="2s")
    truths, following, outcomes = found
    before, reported = evaluations(rules, REACHED[entry[0]])
    assert state(before) is entry[0]
    after, everything = evaluations(rules, [*REACHED[entry[0]], *truths])
    assert state(after) is following is TABLE[entry].phase
    assert [outcome for _, outcome, _ in everything[len(reported) :]] == outcomes


def test_the_cells_that_are_left_are_those_of_other_stories() -> None:
    left = set(TABLE) - set(FOLLOWED)
    assert left == {
        (Phase.INACTIVE, Event.DUE),  # below, and wherever `for` is 0
        (Phase.INACTIVE, Event.ENDED),
        (Phase.PENDING, Event.ENDED),
        (Phase.FIRING, Event.ENDED),
        (Phase.FIRING, Event.REFUTED),  # nothing is looked back at: a count of a second stands
    }


@pytest.mark.parametrize(("truths", "outcomes"), [([False], []), ([True], []), ([True, True, True], ["ended"])])
def test_the_end_of_a_subject(truths: list[bool | None], outcomes: list[str]) -> None:
    engine, _ = evaluations(scoped("class", WHEN, for_="2s"), truths)
    assert [one.outcome for one in engine.end_firings(facts(9))] == outcomes
    assert engine.end_firings(facts(10)) == []


@pytest.mark.parametrize(
    ("on_missing", "truths", "reported"),
    [
        # `hold` keeps since when: an unknown second neither begins nor breaks a run.
        ("hold", [True, None, True], [("firing", "done", 2)]),
        ("hold", [True, None, False, True, True], []),
        ("'false'", [True, None, True, True], []),
        ("fire", [None, None, None, False], [("firing", "done", 2), ("resolved", "resolved", 3)]),
        ("fire", [True, None, True], [("firing", "done", 2)]),
    ],
)
def test_missing_facts(on_missing: str, truths: list[bool | None], reported: list[tuple[str, str, int]]) -> None:
    assert evaluations(scoped("class", WHEN, for_="2s", on_missing=on_missing), truths)[1] == reported


def test_what_is_missing_does_not_resolve() -> None:
    rules = scoped("class", "requests_1m > 0", resolve_when="attainment_1m > 0.5")
    engine = ScopeEngine(rules, DecisionMaker(rules, ()))
    reported = []
    for second, total in enumerate((Totals(requests_ended=1), None, None, Totals(met_true=1), Totals())):
        reported += [(one.outcome, second, dict(one.facts)) for one in engine.evaluate(facts(second, total))]
    assert reported == [("done", 0, {"requests_1m": 1}), ("resolved", 3, {"attainment_1m": 1.0})]


def test_identity_that_can_never_hold_is_not_followed() -> None:
    rules = ruleset(
        """version: 1
groups:
- name: g
  scope: class
  rules:
  - {rule: A, when: 'slo_class == "voice" && requests_1m > 0', actions: [{alert: {name: A}}]}
  - {rule: B, when: 'slo_class == "chat" && requests_1m > 0', actions: [{alert: {name: A}}]}
"""
    )
    engine = ScopeEngine(rules, DecisionMaker(rules, ()))
    engine.evaluate(facts(1))
    assert list(engine.phases("class", LABELS)) == ["B"]


FULL = Totals(requests_ended=4, met_true=2, met_false=1, aborted=1, goodput_tokens=30, fluid=3, fluid_kept=2, cut=2)
FULL.benefit.add(-12.0)
FULL.idle.add(2.0)
FULL.queue.add(0.5)


@pytest.mark.parametrize("fact", WINDOW_FACTS, ids=lambda fact: fact.name)
def test_every_declared_fact_is_read_with_its_type(fact: object) -> None:
    name, kind = fact.name, fact.type  # type: ignore[attr-defined]
    full = facts(60, FULL, flying=InFlightCounts(5, {1_500_000_000: (4, 1)})).value(name, 1_500_000_000)
    assert type(full) is PYTHON[kind]
    empty = facts(60).value(name, 1_500_000_000)
    stem, window = split(name)
    nothing = {"requests": 0, "smooth_goodput": 0.0, "goodput": 0.0, "streams": 0, "starving": 0}
    assert empty == nothing.get(stem)
    if window is not None and stem.endswith("goodput"):
        assert facts(60, FULL, since=59).value(name, 1_500_000_000) is None


def test_worked_facts() -> None:
    shown = facts(60, FULL, flying=InFlightCounts(5, {1_500_000_000: (4, 1)}))
    found = {name: shown.value(name, 1_500_000_000) for name in ("streams", "starving", "starving_share")}
    assert found == {"streams": 5, "starving": 1, "starving_share": 0.25}
    stems = (
        "requests",
        "attainment",
        "burn_rate",
        "smooth_goodput",
        "goodput",
        "fluidity_ok_share",
        "cut_share",
        "aborted_share",
    )
    assert {stem: shown.value(f"{stem}_1m", 1_500_000_000) for stem in stems} == {
        "requests": 4,
        "attainment": 2 / 3,
        "burn_rate": float(Fraction(10, 3)),
        "smooth_goodput": -0.2,
        "goodput": 0.5,
        "fluidity_ok_share": 2 / 3,
        "cut_share": 0.5,
        "aborted_share": 0.25,
    }


def test_of_streams_that_are_not_known_nothing_is_reported() -> None:
    shown = facts(1, flying=InFlightCounts(5, {1_500_000_000: (0, 0)}))
    assert shown.value("starving", 1_500_000_000) is None
    assert shown.value("starving_share", 1_500_000_000) is None
    assert shown.value("streams", 1_500_000_000) == 5


def test_labels_are_those_of_the_fact_table() -> None:
    scopes: tuple[Scope, ...] = ("instance", "class")
    assert [sorted(LABELS_OF[scope]) for scope in scopes] == [
        ["instance", "measured_at", "model", "slo_class"],
        ["measured_at", "model", "slo_class"],
    ]


def test_only_what_rules_ask_for_is_kept() -> None:
    rules = ruleset(
        """version: 1
groups:
- name: g
  scope: class
  rules:
  - rule: A
    when: 'requests_5m > 3 && burn_rate_1h > 2.0'
    resolve_when: 'attainment_30m > 0.9'
    for: 10s
    max_fact_age: 3s
    actions: [{scale: {only_if: 'starving > 2 && smooth_goodput_1m > 0.0'}}]
"""
    ).rules
    found = needs(rules)
    assert found.windows == ("1m", "5m", "30m", "1h")
    assert (found.starving_ns, found.rates, found.benefit) == ((3 * S,), True, True)
    assert found.lasting_ns == (3600 + 10) * S
    assert needs(()).windows == ()
