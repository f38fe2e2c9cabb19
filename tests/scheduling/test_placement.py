"""Which backend a policy prefers, and what it says of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_llm.scheduling.placement import DEFAULT, POLICIES, Load, rank

LOADS = st.lists(st.builds(Load, st.text("abc", min_size=1), st.integers(0, 3), st.integers(0, 5)), max_size=6)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("least_load", ["c", "b", "a"]), ("spread", ["b", "c", "a"]), ("safest", ["c", "b", "a"])],
)
def test_the_least_loaded_is_first(policy: str, expected: list[str]) -> None:
    loads = [Load("a", 5, 10), Load("b", 1, 10), Load("c", 2, 9)]
    assert [one.name for one in rank(policy, loads)] == expected


def test_a_candidate_says_its_score_and_why() -> None:
    (one,) = rank("least_load", [Load("a", 2, 30)])
    assert one.record() == {
        "instance": "a",
        "score": {"tokens": 30.0, "streams": 2.0},
        "reason": "30 tokens of 2 streams in flight",
    }


@settings(max_examples=50, deadline=None)
@given(policy=st.sampled_from([*POLICIES, "unknown"]), loads=LOADS)
def test_ranking_keeps_every_candidate_and_the_order_of_equals(policy: str, loads: list[Load]) -> None:
    ranked = rank(policy, loads)
    assert sorted(one.name for one in ranked) == sorted(load.name for load in loads)
    scores = [tuple(one.score.values()) for one in ranked]
    assert scores == sorted(scores)
    for score in set(scores):
        given_order = [load.name for load in loads if tuple(rank(policy, [load])[0].score.values()) == score]
        assert [one.name for one in ranked if tuple(one.score.values()) == score] == given_order


def test_the_default_is_a_policy() -> None:
    assert DEFAULT in POLICIES
