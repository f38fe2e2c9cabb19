"""The text of an objective, its errors with a caret, and the fate of each request under its clauses."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from otel_llm.bench.capacity.objective import (
    HELD,
    MISSED,
    UNREPORTED,
    Clause,
    ObjectiveError,
    fluid_goal,
    parse_objective,
)
from otel_llm.slo.batch.judged import Judged
from otel_llm.slo.batch.many import judge_many
from otel_llm.slo.batch.recorded import Recorded
from otel_llm.slo.classes import Objective, SloClass

MS = 10**6


def test_clauses_are_shares_and_percentiles_shares_of_99_per_cent() -> None:
    found = parse_objective(" attainment>=0.9&&ttft_p99 <= 500ms && idle_p99 <= 1.5 && fluidity_ok_share >= 0.995 ")
    assert [(one.metric, one.target, one.limit_ns) for one in found.clauses] == [
        ("attainment", Fraction(9, 10), None),
        ("ttft_p99", Fraction(99, 100), 500 * MS),
        ("idle_p99", Fraction(99, 100), 1500 * MS),
        ("fluidity_ok_share", Fraction(199, 200), None),
    ]
    assert found.clauses[0].text == "attainment >= 0.9"


@pytest.mark.parametrize(
    ("text", "below", "says"),
    [
        ("atainment >= 0.9", "atainment", "attainment"),
        ("attainment <= 0.9", "<=", ">="),
        ("attainment >= 1", "1", "no share"),
        ("attainment >= 7a", "7a", "no share"),
        ("ttft_p99 <= 3q", "3q", "500us"),
        ("ttft_p99 <= 0s", "0s", "longer than zero"),
        ("attainment >= 0.9 ttft_p99 <= 1s", "ttft_p99", "&&"),
        ("attainment & 0.9", "&", "cannot stand here"),
        (">= 0.9", ">=", "begins with one of"),
        ("attainment >= 0.9 &&", "", "begins with one of"),
        ("attainment >=", "", "a share"),
        ("ttft_p99 <=", "", "a duration"),
        ("", "", "begins with one of"),
    ],
)
def test_an_error_has_a_caret_below_its_part(text: str, below: str, says: str) -> None:
    with pytest.raises(ObjectiveError) as caught:
        parse_objective(text)
    message, shown, caret = str(caught.value).splitlines()
    assert says in message
    assert shown == f"  {text}"
    begin = caret.index("^")
    assert caret.count("^") == max(1, len(below))
    assert shown[begin : begin + len(below)] == below
    assert below or begin == 2 + len(text)


def judged(*requests: tuple[list[int], int, str]) -> Judged:
    """Judge requests, committed at 0: token times in ms, the end, the outcome."""
    recorded = Recorded.of(
        [[time * MS for time in times] for times, _, _ in requests],
        [0] * len(requests),
        [end * MS for _, end, _ in requests],
        [outcome for _, _, outcome in requests],
    )
    return judge_many(recorded, [SloClass()])


def fates_of(text: str, *requests: tuple[list[int], int, str]) -> list[int]:
    (clause,) = parse_objective(text).clauses
    return [int(fate) for fate in clause.fates(judged(*requests), np.full(len(requests), 0.9))]


FAST = ([100, 150, 200], 200, "completed")
SLOW = ([1500, 1550, 1600], 1600, "completed")
EMPTY: tuple[list[int], int, str] = ([], 100, "completed")
REFUSED: tuple[list[int], int, str] = ([], 5, "error")
LATE_ERROR = ([100, 150], 160, "error")


@pytest.mark.parametrize("text", ["attainment >= 0.9", "ttft_p99 <= 1s", "idle_p99 <= 1s", "fluidity_ok_share >= 0.9"])
def test_a_failed_request_holds_under_no_clause(text: str) -> None:
    assert fates_of(text, FAST, SLOW, REFUSED, LATE_ERROR) == [HELD, MISSED, MISSED, MISSED]


def test_a_reply_without_tokens_has_no_verdict() -> None:
    assert fates_of("ttft_p99 <= 1s", EMPTY, FAST) == [UNREPORTED, HELD]
    assert fates_of("attainment >= 0.9", EMPTY, FAST) == [UNREPORTED, HELD]


def test_the_limit_itself_holds() -> None:
    assert fates_of("ttft_p99 <= 100ms", FAST, ([101], 101, "completed")) == [HELD, MISSED]


def test_the_class_says_what_is_fluid() -> None:
    assert fluid_goal(SloClass()) == 0.9
    assert fluid_goal(SloClass(objective=Objective(fluidity_index=Fraction(3, 4)))) == 0.75
    clause = Clause("", "fluidity_ok_share", Fraction(9, 10))
    # Its first token is 0.5 s late, which misses 1 + 10 deadlines of 50 ms; the other 19 tokens are in time.
    late = ([1500 + 50 * place for place in range(20)], 2450, "completed")
    assert clause.fates(judged(late), np.array([0.6])).tolist() == [HELD]
    assert clause.fates(judged(late), np.array([0.7])).tolist() == [MISSED]
