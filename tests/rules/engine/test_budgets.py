"""Budgets: what may be done how often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rules.scripted import MS, S

from otel_llm.rules.engine.budget import Budget, Spends
from otel_llm.rules.engine.decision_maker import About, DecisionMaker
from otel_llm.rules.files.ruleset import Action, Limits, Rule, RuleSet
from otel_llm.rules.language.condition import condition

A = b"a" * 16, b"a" * 8
B = b"b" * 16, b"b" * 8


def test_per_request_is_for_ever() -> None:
    budget = Budget(Limits(per_request=2))
    assert [budget.take(A, "i", at * 1000 * S, 1)["per_request"] for at in range(4)] == [True, True, False, False]
    assert budget.take(B, "i", 0, 1) == {"per_request": True}
    budget.forget(A)
    assert budget.take(A, "i", 9 * S, 1) == {"per_request": True}


def test_per_instance_slides() -> None:
    budget = Budget(Limits(per_instance=(2, 10 * S)))
    takes = [(0, "i"), (4 * S, "i"), (9 * S, "i"), (9 * S, "j"), (10 * S, "i"), (10 * S, "i"), (14 * S, "i")]
    within = [budget.take(A, instance, at, None)["per_instance"] for at, instance in takes]
    # The one of instant 0 counts up to, not at, 10 s; what was refused counts nowhere.
    assert within == [True, True, False, True, True, False, True]


def test_in_flight_is_given_back_after_the_time_to_live() -> None:
    budget = Budget(Limits(in_flight=1))
    takes = [(0, 400 * MS), (399 * MS, 1), (400 * MS, 1000 * MS), (1399 * MS, 1), (1400 * MS, 1)]
    assert [budget.take(A, "i", at, ttl)["in_flight"] for at, ttl in takes] == [True, False, True, False, True]


def test_what_one_limit_refuses_spends_nothing_of_the_others() -> None:
    budget = Budget(Limits(per_request=1, per_instance=(2, 10 * S), in_flight=2))
    assert budget.take(A, "i", 0, S) == {"per_request": True, "per_instance": True, "in_flight": True}
    for at in range(1, 5):
        assert budget.take(A, "i", at, S) == {"per_request": False, "per_instance": True, "in_flight": True}
    assert budget.take(B, "i", 5, S) == {"per_request": True, "per_instance": True, "in_flight": True}


def test_without_limits_nothing_is_reported() -> None:
    assert Budget(Limits()).take(A, "i", 0, None) == {}


@given(
    st.integers(1, 3),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 15), st.sampled_from("ij")), max_size=40),
)
def test_a_window_never_holds_more_than_its_limit(count: int, window: int, steps: list[tuple[int, str]]) -> None:
    budget = Budget(Limits(per_instance=(count, window)))
    spent: list[tuple[int, str]] = []
    now = 0
    for wait, instance in steps:
        now += wait
        inside = sum(1 for at, where in spent if where == instance and now - window < at)
        taken = budget.take(A, instance, now, None)["per_instance"]
        assert taken == (inside < count)
        if taken:
            spent.append((now, instance))


def test_per_group_counts_what_others_spent() -> None:
    group = Spends(2)
    ours, free = Budget(Limits(per_group=(2, 10 * S))), Budget(Limits(per_request=1))
    assert free.take(A, "i", 0, None, group) == {"per_request": True}
    assert free.take(A, "i", 0, None, group) == {"per_request": False}  # refused: counts nowhere
    within = [ours.take(B, "i", at * S, None, group)["per_group"] for at in (1, 2, 9, 10, 10, 11, 19, 20)]
    # The first of another rule counts up to, not at, 10 s; that of 1 s up to 11 s.
    assert within == [True, False, False, True, False, True, False, True]


def test_rules_of_a_group_share_their_verb_and_keep_it_when_reloaded() -> None:
    def limited(name: str, group: str, verb: str, limits: Limits) -> Rule:
        action = Action(verb, (), "shadow", S, limits)  # type: ignore[arg-type]
        when = condition("streams > 1", "class")
        return Rule(name, group, "class", when, None, 0, 0, "hold", S, (action,))

    def fire(decision_maker: DecisionMaker, rule: Rule, at: int) -> str:
        about = About(None, {"slo_class": "chat"}, name_of(rule), at * S, 0, 0)
        [decision] = decision_maker.act(rule, at * S, about, read=lambda _: {}, holds=lambda _: True)
        return decision.outcome

    def name_of(rule: Rule) -> str:
        return rule.name

    one = limited("one", "g", "drain", Limits(per_group=(2, 10 * S)))
    two = limited("two", "g", "drain", Limits())
    other_verb = limited("three", "g", "scale", Limits())
    other_group = limited("four", "h", "drain", Limits(per_group=(1, 10 * S)))
    rules = RuleSet((one, two, other_verb, other_group))
    acting = DecisionMaker(rules, ())
    assert [fire(acting, rule, at) for at, rule in enumerate((two, other_verb, one))] == ["shadow"] * 3
    assert fire(acting, one, 3) == "budget"
    assert fire(acting, two, 4) == "shadow"  # has no such limit itself
    assert fire(acting, other_group, 5) == "shadow"
    again = DecisionMaker(rules, ())
    again.succeed(acting)
    assert fire(again, one, 11) == "budget"
    assert fire(again, one, 14) == "shadow"
    assert one.canonical()["actions"][0]["budget"]["per_group"] == [2, 10 * S]
    assert "per_group" not in two.canonical()["actions"][0]["budget"]


def test_an_attempt_keeps_its_slot_until_it_ends() -> None:
    budget, group = Budget(Limits(per_request=1, per_instance=(1, 10 * S), in_flight=1)), Spends(0)
    budget.begin(A, "i", 0, group)
    assert budget.within(B, "j", 99 * S, group) == {"per_request": True, "per_instance": True, "in_flight": False}
    budget.end(A, "i", group, done=False)
    assert budget.within(A, "i", 9 * S, group) == {"per_request": True, "per_instance": False, "in_flight": True}
    assert budget.room_ns("i", 9 * S, group) == 10 * S
    budget.begin(A, "i", 10 * S, group)
    budget.end(A, "i", group, done=True)
    assert budget.within(A, "i", 20 * S, group)["per_request"] is False


def test_an_attempt_that_never_began_gives_back_its_windows() -> None:
    budget, group = Budget(Limits(per_instance=(1, 10 * S), per_group=(1, 20 * S))), Spends(1)
    budget.begin(A, "i", 0, group)
    assert budget.room_ns("i", 1 * S, group) == 20 * S
    budget.end(A, "i", group, done=False, begun=False)
    assert budget.within(A, "i", 1 * S, group) == {"per_instance": True, "per_group": True}
