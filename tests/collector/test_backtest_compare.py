"""What a backtest says of decisions, beside numbers worked out by hand."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from otel_llm.actions.execute.open_actions import CONFIRMATION
from otel_llm.backtest.comparison import Comparison, RuleCompared, compare
from otel_llm.backtest.decision_store import NEW, THEN, Store
from otel_llm.rules.decisions.decision_records import Decision, LeftOut

T = 1_790_000_000_000_000_000
MS = 1_000_000
S = 1_000 * MS


def decision(
    at: float,
    *,
    rule: str = "R",
    request: int = 1,
    choice: int = 0,
    instance: str = "a",
    action: str | None = "alert",
    outcome: str = "done",
    late: float = 0.0,
    **others: Any,
) -> Decision:
    """Return one whose flip is `at` seconds after T; it is made `late` seconds after that."""
    made = Decision(
        now_ns=T + round((at + late) * S),
        flip_ns=T + round(at * S),
        offset_ns=0,
        group="g",
        rule=rule,
        rule_hash=f"{rule:0>16}",
        scope="stream",
        stream=(request.to_bytes(16, "big"), request.to_bytes(8, "big"), "default", choice),
        identity={"slo_class": "chat", "model": "m", "instance": instance, "measured_at": "client"},
        state="resolved" if action is None else "firing",
        action=action,  # type: ignore[arg-type]
        mode=None if action is None else "shadow" if outcome == "shadow" else "enforce",
        outcome=outcome,  # type: ignore[arg-type]
        facts={"gap_seconds": 0.5},
        fact_age_ns=0,
        budget={},
        arguments={},
    )
    return replace(made, **others)


def end(at: float, outcome: str = "resolved", **others: Any) -> Decision:
    return decision(at, action=None, outcome=outcome, **others)


@pytest.fixture
def store() -> Iterator[Store]:
    with Store(["people"]) as one:
        yield one


def compared(store: Store, then: Iterable[Decision] | None, new: Iterable[Decision]) -> Comparison:
    """Compare decisions; those of then come from a file, as they would have been written."""
    for one in then or ():
        store.recorded(one.record(one.now_ns + 3 * MS))
    store.decided(NEW, new)
    return compare(store, compared=then is not None)


def only(found: Comparison) -> RuleCompared:
    (rule,) = found.rules
    return rule


# Decisions without a record.


def left_out(count: int, first: float, last: float, *, rule: str = "R", tenant: str = "default") -> LeftOut:
    return LeftOut(tenant, rule, f"{rule:0>16}", count, T + round(first * S), T + round(last * S))


@pytest.mark.parametrize(
    ("count", "taken"),
    [
        (left_out(3, 1, 3), 3),
        (left_out(9, 0, 9), 3),
        (left_out(2, 1, 3), 2),
        (left_out(3, 2, 3), 2),
        (left_out(3, 1, 3, rule="Other"), 0),
        (left_out(3, 1, 3, tenant="other"), 0),
    ],
)
def test_so_many_as_were_left_out_then_of_that_rule_tenant_and_time_are_no_difference(
    store: Store, count: LeftOut, taken: int
) -> None:
    shadow = [decision(at, request=at + 1, outcome="shadow") for at in (0, 1, 2, 3, 4)]
    store.decided(NEW, shadow)
    for one in (shadow[0], shadow[4]):
        store.recorded(one.record())
    assert store.take_for([count]) == taken
    found = compare(store, compared=True)
    assert found.records.identical == (taken == 3)
    assert only(found).only_new == 3 - taken
    assert only(found).same == 2 + taken


def test_what_was_enforced_is_never_taken_for_left_out(store: Store) -> None:
    store.decided(NEW, [decision(1, outcome="done")])
    assert store.take_for([left_out(1, 0, 2)]) == 0


# Decision by decision.


def test_the_same_decisions_are_the_same(store: Store) -> None:
    both = [decision(1), end(2), decision(3), decision(3.5, request=2)]
    records = compared(store, both, both).records
    assert (records.then, records.new, records.same, records.identical) == (4, 4, 4, True)


def test_another_order_is_another_story(store: Store) -> None:
    one, other = decision(1), decision(1, request=2)
    records = compared(store, [one, other], [other, one]).records
    assert (records.same, records.in_order, records.identical) == (2, False, False)


def test_enforced_actions_are_written_when_their_outcome_is_known(store: Store) -> None:
    act = decision(1, action="abort", outcome="unconfirmed")
    completed = replace(act, outcome="failed")
    records = compared(store, [end(2), completed], [act, end(2)]).records
    assert records.identical


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"facts": {"gap_seconds": 0.5000000000000001}}, "facts"),
        ({"offset_ns": 1}, "now_offset_nano"),
        ({"fact_age_ns": 7}, "fact_age_seconds"),
        ({"outcome": "budget"}, "outcome"),
        ({"mode": "shadow"}, "mode"),
        ({"budget": {"per_request": True}}, "budget"),
    ],
)
def test_what_differs_is_named(store: Store, changed: dict[str, Any], field: str) -> None:
    one = decision(1)
    records = compared(store, [one], [replace(one, **changed)]).records
    assert not records.identical
    assert dict(records.fields) == {field: 1}
    assert [side for side, _ in records.examples] == ["then", "new"]


@pytest.mark.parametrize(
    "changed",
    [
        {"flip_ns": T + 1},
        {"rule_hash": "f" * 16},
        {"stream": (b"\1" * 16, b"\1" * 8, "default", 0)},
        {"stream": ((1).to_bytes(16, "big"), (1).to_bytes(8, "big"), "acme", 0)},
        {"state": "resolved"},
    ],
)
def test_another_decision_is_another_one(store: Store, changed: dict[str, Any]) -> None:
    one = decision(1)
    records = compared(store, [one], [replace(one, **changed)]).records
    assert (records.same, records.identical, dict(records.fields)) == (0, False, {})


def test_two_actions_of_one_verb_are_two(store: Store) -> None:
    one = decision(1)
    records = compared(store, [one, one], [one]).records
    assert (records.then, records.new, records.same, records.identical) == (2, 1, 1, False)


def test_only_the_wall_clock_of_the_writing_the_group_and_what_became_of_an_action_are_set_aside(store: Store) -> None:
    one = decision(1, outcome="unconfirmed")
    then = replace(one, group="other", outcome="expired")
    assert compared(store, [then], [one]).records.identical


# Firing by firing.


def test_firings_are_paired_by_the_time_that_they_last(store: Store) -> None:
    then = [
        *(decision(1), end(2)),  # the same
        *(decision(3), end(4)),  # later by 0.25
        *(decision(5), end(6)),  # earlier by 0.5, and goes on beyond
        *(decision(8), end(9)),  # gone
        decision(20),  # never ends; earlier by 9
    ]
    new = [
        *(decision(1), end(2.5)),
        *(decision(3.25), end(3.5)),
        *(decision(4.5), end(7)),
        *(decision(9), end(10)),  # when the one of then is over: another
        *(decision(11), end(21)),
    ]
    rule = only(compared(store, then, new))
    assert (rule.then.firings, rule.new.firings) == (5, 5)
    assert (rule.same, rule.earlier, rule.later, rule.only_then, rule.only_new) == (1, 2, 1, 1, 1)
    assert sorted(rule.shifts_ns) == [-9 * S, -S // 2, S // 4]
    assert rule.shift_s == -0.5
    assert [flip_ns - T for _, flip_ns in rule.examples["only_new"]] == [9 * S]
    assert [flip_ns - T for _, flip_ns in rule.examples["only_then"]] == [8 * S]


def test_firings_of_other_streams_and_rules_are_not_the_same(store: Store) -> None:
    then = [decision(1), decision(1, rule="Q")]
    new = [decision(1, choice=1), decision(1.5, rule="Q", request=2)]
    found = compared(store, then, new)
    assert [(rule.name, rule.only_then, rule.only_new, rule.same) for rule in found.rules] == [
        ("Q", 1, 1, 0),
        ("R", 1, 1, 0),
    ]


def test_what_was_refuted_lasted_no_time(store: Store) -> None:
    then = [decision(1), end(1, "refuted"), decision(1.5), end(3)]
    new = [decision(1.2), end(1.4), decision(1.5), end(3)]
    rule = only(compared(store, then, new))
    assert (rule.same, rule.only_then, rule.only_new, rule.earlier + rule.later) == (1, 1, 1, 0)
    assert rule.then.ends == {"refuted": 1, "resolved": 1}


def test_a_firing_of_several_actions_is_one(store: Store) -> None:
    both = [decision(1), decision(1, action="migrate", outcome="budget")]
    rule = only(compared(store, both, both))
    assert (rule.then.firings, rule.new.firings, rule.same) == (1, 1, 1)
    assert rule.new.actions == {("alert", "acted"): 1, ("migrate", "budget"): 1}


def test_of_instances_and_classes_the_labels_tell(store: Store) -> None:
    a, b = {"instance": "a"}, {"instance": "b"}
    one = replace(decision(1), stream=None, scope="instance", identity=a)
    found = compared(store, [one], [one, replace(one, identity=b)])
    rule = only(found)
    assert (rule.scope, rule.same, rule.only_new) == ("instance", 1, 1)
    assert rule.examples["only_new"] == [('{"instance":"b"}', T + S)]


# What an action makes unknowable.


def rests(store: Store, new: Iterable[Decision], then: Iterable[Decision] | None = None) -> dict[str, int]:
    return dict(only(compared(store, then, new)).rests)


def test_what_comes_after_an_action_rests_on_a_record_without_it(store: Store) -> None:
    new = [
        decision(1, request=1),
        decision(2, request=2, action="migrate", outcome="shadow"),
        decision(2, request=3),  # at that very instant
        decision(3, request=2),
        decision(4, request=2, choice=1),  # the same request
        decision(5, request=4),  # the same instance
        decision(6, request=5, instance="b"),
    ]
    assert rests(store, new) == {"as_recorded": 3, "same_request": 2, "same_instance": 1, "elsewhere": 1}


@pytest.mark.parametrize("outcome", ["budget", "only_if"])
def test_an_action_that_was_held_back_changes_nothing(store: Store, outcome: str) -> None:
    new = [decision(1, action="migrate", outcome=outcome), decision(2)]
    assert rests(store, new) == {"as_recorded": 2}


def test_an_alert_changes_nothing_that_could_be_known(store: Store) -> None:
    assert rests(store, [decision(1), decision(2)]) == {"as_recorded": 2}


@pytest.mark.parametrize(("to", "known"), [("people", 2), ("machine", 1)])
def test_a_webhook_that_only_tells_people_is_an_alert(store: Store, to: str, known: int) -> None:
    new = [decision(1, action="webhook", outcome="unconfirmed", arguments={"to": to}), decision(2)]
    assert rests(store, new)["as_recorded"] == known


def test_an_action_that_was_done_is_in_the_record(store: Store) -> None:
    act = decision(1, action="abort", outcome="unconfirmed")
    done = replace(act, outcome="done")
    found = compared(store, [done], [act, decision(2)])
    assert dict(only(found).rests) == {"as_recorded": 2}
    actions = found.actions
    assert (actions.hypothetical, actions.first, actions.done_both, actions.done_then_only) == (0, None, 1, 0)


@pytest.mark.parametrize(
    ("outcome", "budget", "known"),
    [
        ("unconfirmed", {}, 2),
        ("sent", {}, 2),
        ("queued", {}, 2),
        ("dropped: table full", {}, 1),
        ("failed", {}, 1),  # let through all the same, but not executed
        ("expired", {}, 1),
        ("shadow", {}, 1),  # the kill switch
        ("refuted", {}, 1),  # withdrawn
        ("budget", {CONFIRMATION: False}, 1),  # another was open for its instance
    ],
)
def test_what_became_of_an_enforced_action_is_no_difference_of_rules(
    store: Store, outcome: str, budget: dict[str, bool], known: int
) -> None:
    act = decision(1, action="abort", outcome="unconfirmed", budget={"per_request": True})
    then = replace(act, outcome=outcome, budget={"per_request": True, **budget})  # type: ignore[arg-type]
    found = compared(store, [then, decision(2)], [act, decision(2)])
    assert found.records.identical
    assert only(found).rests["as_recorded"] == known
    assert found.actions.hypothetical == 2 - known


@pytest.mark.parametrize("outcome", ["budget", "only_if"])
def test_an_enforced_action_that_its_rule_held_back_was_not_let_through(store: Store, outcome: str) -> None:
    act = decision(1, action="abort", outcome="unconfirmed")
    held_back = replace(act, outcome=outcome)  # type: ignore[arg-type]
    assert not compared(store, [held_back], [act]).records.identical


def test_an_action_that_was_done_in_shadow_was_not_done(store: Store) -> None:
    act = decision(1, action="abort", outcome="shadow")
    assert rests(store, [act, decision(2)], then=[act]) == {"as_recorded": 1, "same_request": 1}


def test_an_action_that_is_not_decided_any_more_is_reported(store: Store) -> None:
    done = decision(1, action="abort", outcome="done")
    other = decision(2, action="drain", outcome="shadow")
    actions = compared(store, [done], [other]).actions
    assert (actions.hypothetical, actions.done_both, actions.done_then_only) == (1, 0, 1)
    assert actions.first == {
        "at_unix_nano": T + 2 * S,
        "rule": "R",
        "action": "drain",
        "subject": f"{1:032x}/{1:016x}/0",
    }


# The store.


def test_decisions_lie_on_disk(store: Store) -> None:
    tracemalloc.start()
    try:
        for number in range(12_000):
            store.decided(THEN if number % 2 else NEW, [decision(number, request=number)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20  # of 12 MB
    assert store.last_ns(THEN) == T + 11_999 * S


def test_the_file_is_gone_at_the_end() -> None:
    with Store() as store:
        folder = store.folder
        assert list(folder.iterdir())
    assert not folder.exists()


@pytest.mark.parametrize("line", [{}, {"rule": "R"}, [], 7, "x", None])
def test_a_line_that_is_no_decision_is_refused(store: Store, line: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        store.recorded(line)
    assert compare(store, compared=True).records.then == 0
