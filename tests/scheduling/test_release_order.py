"""The order of waiting requests: by hand on a profile of 10 ms an iteration, and what a plan keeps."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.profiles import SMALL_ENGINE

from otel_llm.scheduling.annealing import Predictor
from otel_llm.scheduling.profiles.profile import LinearProfile, Terms
from otel_llm.scheduling.release_order import BY_PROFILE, ORDERS, WINDOW, WaitingRequest, plan, rank

MS = 1_000_000
TEN_MS = LinearProfile(name="ten", terms=Terms(base=Fraction(10 * MS), per_chunk_token=Fraction(MS)), **SMALL_ENGINE)
"""10 ms an iteration, and 1 ms for each token of a prompt."""
PREDICTOR = Predictor(TEN_MS)


def order(name: str, *waiting: WaitingRequest) -> list[int]:
    return [one.number for one in sorted(waiting, key=lambda one: rank(name, one, PREDICTOR))]


def test_by_arrival() -> None:
    late = WaitingRequest(1, 50, 1, 1, first_ns=900)
    urgent = WaitingRequest(2, 60, 1, 1, first_ns=1)
    assert order("fcfs", urgent, late) == order("anneal", urgent, late) == [1, 2]


def test_by_the_deadline_of_the_first_token_or_of_the_whole() -> None:
    first = WaitingRequest(1, 100, 1, 1, first_ns=900)  # due at 1000
    whole = WaitingRequest(2, 500, 1, 1, whole_ns=499)  # at 999
    both = WaitingRequest(3, 0, 1, 1, first_ns=1001, whole_ns=1)  # at 1001: the first token decides
    nothing = WaitingRequest(4, 0, 1, 1, token_ns=1)
    assert order("edf", nothing, both, whole, first) == [2, 1, 3, 4]


def test_equal_deadlines_go_by_arrival() -> None:
    assert order("edf", WaitingRequest(2, 0, 1, 1, first_ns=5), WaitingRequest(1, 4, 1, 1, first_ns=1)) == [1, 2]


def test_by_the_predicted_time_alone() -> None:
    """A prompt of 30 tokens and one token: 10 + 30 ms; 5 tokens and 3: 15 + 2 x 10 ms."""
    long_prompt, long_reply = WaitingRequest(1, 0, 30, 1), WaitingRequest(2, 0, 5, 3)
    assert order("sjf", long_prompt, long_reply) == [2, 1]
    assert order("sjf", WaitingRequest(1, 0, 24, 1), long_reply) == [1, 2]


@pytest.mark.parametrize("name", sorted(BY_PROFILE))
def test_an_order_by_profile_needs_one(name: str) -> None:
    assert name in ORDERS
    with pytest.raises(ValueError, match="give a predictor"):
        rank(name, WaitingRequest(1, 0, 1, 1), None)


def test_a_plan_serves_the_one_that_can_still_be_met() -> None:
    """Each takes 20 ms alone. At 100 ms the first is 1 ms late; the second is met only at once."""
    late = WaitingRequest(1, 0, 10, 1, first_ns=119 * MS)
    near = WaitingRequest(2, 90 * MS, 10, 1, first_ns=30 * MS)
    spare = WaitingRequest(3, 95 * MS, 10, 1, first_ns=900 * MS)
    assert plan([late, near, spare], PREDICTOR, 1, 100 * MS) == [2, 3, 1]
    assert plan([late, near, spare], PREDICTOR, 1, 99 * MS)[0] == 1, "a millisecond before, the first could be met"


def test_a_plan_for_more_places_runs_requests_together() -> None:
    """Two prompts of one token together: 12 ms; one after the other the second would be at 22 ms."""
    pair = [WaitingRequest(number, 0, 1, 1, first_ns=15 * MS) for number in (1, 2)]
    slow = WaitingRequest(3, 0, 200, 1, first_ns=10_000 * MS)
    assert sorted(plan([slow, *pair], PREDICTOR, 2, 0)[:2]) == [1, 2]


def test_a_plan_is_of_the_first_that_are_not_late() -> None:
    """Shortest first is the order of those in the window; the promise of the first three is due just now."""
    late = [WaitingRequest(number, 0, 9 - number, 1, first_ns=10 * MS) for number in (1, 2, 3)]
    rest = [WaitingRequest(number, 0, 9 - number, 1, first_ns=10**12) for number in (4, 5, 6)]
    assert plan([*late, *rest], PREDICTOR, 1, 10 * MS, window=2) == [5, 4, 6, 1, 2, 3]
    assert plan([*late, *rest], PREDICTOR, 1, 10 * MS, window=4) == [6, 5, 4, 1, 2, 3]
    many = [WaitingRequest(number, 0, 1000 - number, 1, first_ns=10**12) for number in range(1, WINDOW + 3)]
    assert plan(many, PREDICTOR, 1, 0) == [*range(WINDOW, 0, -1), WINDOW + 1, WINDOW + 2]


def test_what_does_not_fit_is_last_by_arrival() -> None:
    big = [WaitingRequest(number, 0, TEN_MS.kv_tokens, 1) for number in (1, 3)]
    assert plan([big[0], WaitingRequest(2, 0, 1, 1), big[1]], PREDICTOR, 4, 0) == [2, 1, 3]


waiting = st.lists(
    st.builds(
        WaitingRequest,
        number=st.just(0),
        arrival_ns=st.integers(0, 10**9),
        input=st.integers(1, 12_000),
        output=st.integers(1, 50),
        first_ns=st.none() | st.integers(1, 10**9),
        token_ns=st.none() | st.integers(0, 10**8),
        whole_ns=st.none() | st.integers(1, 10**10),
    ),
    max_size=8,
)


@given(waiting, st.integers(1, 200), st.integers(10**9, 2 * 10**9))
def test_a_plan_has_each_request_once(requests: list[WaitingRequest], places: int, now_ns: int) -> None:
    numbered = [
        WaitingRequest(number, one.arrival_ns, one.input, one.output, one.first_ns, one.token_ns, one.whole_ns)
        for number, one in enumerate(requests, start=1)
    ]
    found = plan(numbered, PREDICTOR, places, now_ns)
    assert sorted(found) == [one.number for one in numbered]
    assert found == plan(numbered, PREDICTOR, places, now_ns)
