"""Budgets: what may be done how often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rules.scripted import MS, S

from otel_llm.rules.budget import Budget
from otel_llm.rules.ruleset import Limits

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


def test_without_limits_nothing_is_said() -> None:
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
