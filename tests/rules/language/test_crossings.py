"""Flip instants are computed, and exact: true at the instant, not a nanosecond before, and never earlier."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules.scripted import COMMIT, MS, S, View

from otel_llm.rules.language.condition import Condition, condition
from otel_llm.rules.language.crossings import first_exceeding_ns, first_reaching_ns
from otel_llm.rules.language.snapshot import Snapshot
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

seconds = st.floats(-1e8, 1e8) | st.sampled_from([0.0, -0.0, 0.1, 0.2, 0.3, 0.1 + 0.2, 1e-9, 1.5e-9, 1e9, -1e9, 5e-324])


@given(seconds)
def test_the_edges_of_a_threshold(threshold: float) -> None:
    reaching, exceeding = first_reaching_ns(threshold), first_exceeding_ns(threshold)
    assert reaching / 1e9 >= threshold > (reaching - 1) / 1e9
    assert exceeding / 1e9 > threshold >= (exceeding - 1) / 1e9


@dataclass
class Case:
    view: View
    x_ns: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    stream = Stream(SloClass(pace_ns=draw(st.sampled_from([200 * MS, 33_333_333, 1]))), COMMIT)
    stream.extend([COMMIT + time for time in draw(st.lists(st.integers(0, 3 * S), max_size=12))])
    view = View(stream, watermark_ns=stream.last_ns + draw(st.integers(0, S)))
    return Case(view, view.watermark_ns + draw(st.integers(0, S)))


constants = st.floats(-2, 4).map(lambda value: repr(round(value, 3)))
moving = ["age", "gap", "idle", "idle_decode", "runway", "fact_age"]
facts = st.sampled_from([f"{name}_seconds" for name in moving])
comparisons = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


@st.composite
def affine(draw: st.DrawFn) -> str:
    """Draw a sum of facts with slopes that are far enough from cancelling each other."""
    terms = draw(
        st.lists(st.tuples(facts, st.sampled_from(["1.0", "2.0", "0.5", "-3.0", "0.1"])), min_size=1, max_size=3)
    )
    return " + ".join(f"{name} * ({factor})" for name, factor in terms)


@st.composite
def conditions(draw: st.DrawFn) -> str:
    simple = f"{draw(facts)} {draw(comparisons)} {draw(constants)}"
    mirrored = f"{draw(constants)} {draw(comparisons)} {draw(facts)}"
    slanted = f"{draw(affine())} {draw(st.sampled_from(['<', '>']))} {draw(constants)}"
    picked = draw(st.lists(st.sampled_from([simple, mirrored, slanted]), min_size=1, max_size=3))
    return f" {draw(st.sampled_from(['&&', '||']))} ".join(
        f"{draw(st.sampled_from(['', '!']))}({one})" for one in picked
    )


def flips(when: Condition, snapshot: Snapshot, x_ns: int, until_ns: int) -> list[int]:
    found = []
    truth = when.truth(snapshot, x_ns)
    while (flip := when.flip_ns(snapshot, x_ns, until_ns, truth)) is not None:
        found.append(flip)
        x_ns, truth = flip, when.truth(snapshot, flip)
    return found


@given(conditions(), cases())
def test_flips_are_exact_and_complete(text: str, case: Case) -> None:
    when, snapshot = condition(text, "stream"), Snapshot(case.view)
    until = case.x_ns + 5 * S
    found = flips(when, snapshot, case.x_ns, until)
    assert not when.motion.polled
    assert len(found) < 30
    truth = when.truth(snapshot, case.x_ns)
    bounds = [case.x_ns, *found, until + 1]
    for begin, end in pairwise(bounds):
        # Between two flips nothing changes, just before the next one neither.
        for x in {begin, *range(begin, end, 37 * MS), end - 1}:
            if begin <= x < end:
                assert when.truth(snapshot, x) is truth
        truth = not truth


def test_a_side_that_turns_round_is_followed_round_the_knee() -> None:
    # Two tokens at 500 leave 0.3 s of waiting behind and 0.4 s to read: idle stands still until 900, then goes on.
    stream = Stream(SloClass(), COMMIT)
    stream.extend([COMMIT + 500 * MS] * 2)
    snapshot = Snapshot(View(stream))
    when = condition("idle_seconds * 2.0 > gap_seconds + 0.3", "stream")
    found = [(flip - COMMIT) / MS for flip in flips(when, snapshot, COMMIT + 500 * MS, COMMIT + 9 * S)]
    assert found == [800.0, 1000.000001]


@given(conditions(), cases(), st.integers(1, 3 * S))
def test_a_gate_that_is_shut_lets_nothing_through(text: str, case: Case, length: int) -> None:
    when, snapshot = condition(text, "stream"), Snapshot(case.view)
    until = case.x_ns + length
    if when.motion.is_shut(snapshot, case.x_ns, until):
        assert when.truth(snapshot, case.x_ns) is False
        assert when.flip_ns(snapshot, case.x_ns, until, False) is None


@pytest.mark.parametrize(
    ("text", "polled", "computed"),
    [
        ("gap_seconds > 0.5", False, 1),
        ("tokens > 5 && slo_class == 'chat' && exact_resume", False, 0),
        ("gap_seconds > ttft_seconds", False, 1),
        ("gap_seconds * rate_tokens_per_second > 3.0", False, 1),
        ("gap_seconds in [0.1, 0.2]", False, 2),
        ("(gap_seconds > 0.5) == exact_resume", False, 1),
        ("gap_seconds * idle_seconds > 1.0", True, 0),
        ("1.0 / gap_seconds > 1.0", True, 0),
        ("gap_seconds / 2.0 > 1.0", False, 1),
        ("deadline_misses > 3", True, 0),
        ("fluidity_index < 0.9 && gap_seconds > 0.5", True, 1),
    ],
)
def test_what_is_computed_and_what_is_polled(text: str, polled: bool, computed: int) -> None:
    motion = condition(text, "stream").motion
    assert motion.polled is polled
    assert len(motion.comparisons) == computed


def test_what_is_polled_is_evaluated_every_100_ms_from_the_commit() -> None:
    view = View(Stream(SloClass(), COMMIT))
    when = condition("deadline_misses > 3", "stream")
    assert when.flip_ns(Snapshot(view), COMMIT + 130 * MS, COMMIT + 9 * S, False) == COMMIT + 200 * MS
    assert when.flip_ns(Snapshot(view), COMMIT + 200 * MS, COMMIT + 9 * S, False) == COMMIT + 300 * MS
    assert when.flip_ns(Snapshot(view), COMMIT + 200 * MS, COMMIT + 299 * MS, False) is None
    assert when.check_instants(Snapshot(view), COMMIT + 130 * MS, COMMIT + 400 * MS) == [
        COMMIT + at * MS for at in (200, 300, 400)
    ]


def test_constants_that_no_age_reaches_are_no_flips() -> None:
    view = View(Stream(SloClass(), COMMIT))
    for text in ("age_seconds > 1e300", "age_seconds < 1e18", "gap_seconds != -1e20"):
        when = condition(text, "stream")
        assert when.flip_ns(Snapshot(view), COMMIT, COMMIT + 10**15, when.truth(Snapshot(view), COMMIT)) is None
