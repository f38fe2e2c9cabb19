"""The orders of waiting requests: cases by hand for each, and what no order may do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.profiles import SMALL_ENGINE
from support.scheduling.simulated import HandProfile, Scripted, requests_of, times_of

from otel_llm.scheduling.annealing.whole_iterations import predictor_of
from otel_llm.scheduling.profiles.profile import LinearProfile, Terms
from otel_llm.scheduling.simulator.engine import Fleet, SimulatedRun, simulate
from otel_llm.scheduling.simulator.instance import Instance
from otel_llm.scheduling.simulator.ordering import ORDERS, ExpectedOutput, PredictedOrder
from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest

Rows = Sequence[tuple[int, int, int]]
ALONE = HandProfile(max_batch=1)
"""One request at a time: a prefill lasts 105 + 2 input, a decode 115 + its context; a request needs 7 to be visible."""


def known(error: float = 0.0, kv_tokens: int = 1000) -> ExpectedOutput:
    return ExpectedOutput(["t"], kv_tokens, Random(0), error)


def shortest_first(profile: HandProfile, expected: ExpectedOutput, *, disaggregated: bool = False) -> PredictedOrder:
    return PredictedOrder("sjf", profile, expected, [None, None], disaggregated=disaggregated)


def annealed(tpots_ns: Sequence[int], expected: ExpectedOutput | None = None, **given: Any) -> PredictedOrder:
    return PredictedOrder("anneal", ALONE, expected or known(), tpots_ns, **given)


def run_of(
    rows: Rows,
    order: Callable[[SimulatedRequest], int] | None,
    profile: HandProfile = ALONE,
    fleet: Fleet | None = None,
    due_ns: Sequence[int] = (),
) -> SimulatedRun:
    return simulate(requests_of(rows, due_ns), profile, fleet or Fleet(1), Scripted(), order=order)


def served(run: SimulatedRun) -> list[int]:
    """Return the requests by the time of their first token."""
    return sorted(range(len(run.requests)), key=lambda number: int(run.token_times(run.requests[number])[0]))


# Four at once: 10 and 3 tokens, 40 and 1, 5 and 4, 20 and 1. Their services are
#   125 + (115 + 11) + (115 + 12) = 378, 185, 115 + (115 + 6) + (115 + 7) + (115 + 8) = 481, and 145.
FOUR = [(0, 10, 3), (0, 40, 1), (0, 5, 4), (0, 20, 1)]


def test_shortest_first_by_hand() -> None:
    order = shortest_first(ALONE, known())
    assert [order(request) for request in requests_of(FOUR)] == [378, 185, 481, 145]
    run = run_of(FOUR, shortest_first(ALONE, known()))
    assert served(run) == [3, 1, 0, 2]
    assert times_of(run) == [
        [462, 588, 715],  # 337 + 125, + 126, + 127
        [337],  # 152 + 185
        [830, 951, 1073, 1196],  # 715 + 115, + 121, + 122, + 123
        [152],  # 7 + 145
    ]


def test_shortest_first_in_the_pools_of_a_disaggregated_fleet() -> None:
    # A prefill instance serves the prefill only: by the input. The decode instance decodes only: by the output.
    order = shortest_first(ALONE, known(), disaggregated=True)
    run = run_of([(0, 30, 9), (0, 10, 9), (0, 20, 9), (0, 21, 3)], order, ALONE, Fleet(2, prefill=1))
    prefilled = [int(run.token_times(request)[0]) for request in run.requests]
    assert prefilled == [589, 132, 277, 424]  # 7 + 125; + 145; + 147; + 165
    # The decode instance is busy with the second until 132 + 8 x 115 + 11 + ... + 18 = 1168.
    seconds = [int(run.token_times(request)[1]) for request in run.requests]
    assert sorted(range(4), key=seconds.__getitem__) == [1, 3, 2, 0]


def test_shortest_first_is_by_the_predicted_length_and_not_the_true_one() -> None:
    # Nothing finished: 256 tokens are expected of all, so that the shortest prompt is first, for all its long reply.
    expected = ExpectedOutput(["t"], 1000, Random(0))
    run = run_of([(0, 10, 2), (0, 5, 90), (0, 20, 1)], shortest_first(ALONE, expected))
    assert served(run) == [1, 0, 2]


def test_lengths_are_learnt_by_tier_as_requests_finish() -> None:
    expected = ExpectedOutput(["long", "short"], 1000, Random(0), unseen=50)
    requests = [SimulatedRequest(number, 0, 10, output, tier) for number, output, tier in ((0, 90, 0), (1, 4, 1))]
    assert [expected.of(one) for one in requests] == [50, 50]
    for one in requests:
        expected.finish(one)
    # Of one length the deviation is 0. A prediction is kept while the request lives.
    fresh = [SimulatedRequest(number, 0, 10, 7, tier) for number, tier in ((2, 0), (3, 1))]
    assert [expected.of(one) for one in fresh] == [90, 4]
    expected.finish(SimulatedRequest(4, 0, 10, 40, 1))
    assert [expected.of(one) for one in fresh] == [90, 4]


@pytest.mark.parametrize("prefill", [0, 1])
def test_an_instance_reports_every_request_that_is_over(prefill: int) -> None:
    class Counted(ExpectedOutput):
        over: list[int]

        def finish(self, request: SimulatedRequest) -> None:
            self.over.append(request.number)

    expected = Counted(["t"], 1000, Random(0))
    expected.over = []
    order = shortest_first(ALONE, expected, disaggregated=bool(prefill))
    run_of(FOUR, order, fleet=Fleet(1 + prefill, prefill))
    assert sorted(expected.over) == [0, 1, 2, 3]


def test_a_prediction_has_room_in_the_kv_and_is_above_the_progress() -> None:
    expected = ExpectedOutput(["t"], 300, Random(0))
    request = SimulatedRequest(0, 0, 200, 30)
    assert expected.of(request) == 100
    request.produced = 100
    assert expected.of(request) == 101


def test_a_length_known_but_for_an_error_is_near_the_true_one() -> None:
    expected = known(0.1)
    lengths = [expected.of(SimulatedRequest(number, 0, 10, 500)) for number in range(200)]
    assert 450 <= min(lengths) < 460
    assert 540 < max(lengths) <= 550
    assert known(0.0).of(SimulatedRequest(0, 0, 10, 500)) == 500


# Two at once, one after the other: 20 and 4 tokens last 145 + 136 + 137 + 138 = 556, 10 and 3 last 378 (above).
TWO = [(0, 20, 4), (0, 10, 3)]


@pytest.mark.parametrize(
    ("due_ns", "first"),
    [
        ([10_000, 10_000], 1),  # both in time either way: the least latency, shortest first
        ([160, 10_000], 0),  # 7 + 145 = 152 is in time, 7 + 378 + 145 = 530 is not
        ([529, 10_000], 0),  # both in time this way only
        ([530, 10_000], 1),  # inclusive
        ([151, 10_000], 1),  # late anyway: it gives way, although it is due first
    ],
)
def test_annealing_by_hand(due_ns: list[int], first: int) -> None:
    run = run_of(TWO, annealed([1000]), due_ns=due_ns)
    assert served(run)[0] == first


def test_annealing_keeps_a_time_per_token_that_shortest_first_would_not() -> None:
    # With a tier of 1 ns a token the second misses in any place; the first is served before it while it is in time.
    requests = requests_of(TWO, [529, 10_000])
    requests[0].tier, requests[1].tier = 0, 1
    order = annealed([1000, 1])
    assert served(simulate(requests, ALONE, Fleet(1), Scripted(), order=order))[0] == 0
    requests = requests_of(TWO, [529, 10_000])
    assert served(simulate(requests, ALONE, Fleet(1), Scripted(), order=shortest_first(ALONE, known())))[0] == 1


def test_annealing_in_the_pools_of_a_disaggregated_fleet() -> None:
    # The prefill instance: only the first token counts. Prefills last 145, 125 and 165 from 7 on; the first is due at
    # 152, which it meets if it is first alone, although it is the second shortest.
    order = annealed([1000], disaggregated=True)
    run = run_of([(0, 20, 2), (0, 10, 2), (0, 30, 2)], order, ALONE, Fleet(2, 1), due_ns=[152, 10_000, 10_000])
    assert [int(run.token_times(one)[0]) for one in run.requests] == [152, 277, 442]
    # The decode instance is busy with the first from 152 to 983 (6 x 115 + 21 + ... + 26). Then the second needs
    # 3 x 115 + 11 + 12 + 13 = 381 and the third 2 x 115 + 12 + 13 = 255. The last token of the second is due 600 after
    # its first: by 1364 it is in time if it is served first, by 1619 also as the last one.
    rows = [(0, 20, 7), (100, 10, 4), (100, 11, 3)]
    for due, first in ((763, 2), (764, 1), (1018, 1), (1019, 2)):
        order = annealed([200], disaggregated=True)
        run = run_of(rows, order, ALONE, Fleet(2, 1), due_ns=[0, due, 9000])
        seconds = [int(run.token_times(one)[1]) for one in run.requests]
        assert seconds.index(min(seconds[1:])) == first, due


class Recorded(PredictedOrder):
    """The order of annealing, with the requests that waited before and after each plan."""

    def __init__(self, window: int = 16) -> None:
        super().__init__("anneal", ALONE, known(), [1000], window=window)
        self.plans: list[tuple[list[int], list[int]]] = []
        self.made_ns: list[int] = []

    def arrange(self, waiting: deque[SimulatedRequest], now_ns: int) -> None:
        before = [one.number for one in waiting]
        super().arrange(waiting, now_ns)
        self.made_ns.append(now_ns)
        self.plans.append((before, [one.number for one in waiting]))


def test_a_plan_is_made_when_requests_were_added_and_of_the_window_only() -> None:
    rows = [(0, 50, 2), (0, 40, 2), (0, 30, 2), (0, 20, 2), (0, 10, 2), (1100, 5, 2)]
    order = Recorded(window=3)
    run_of(rows, order)
    # All have missed their first token: shortest first. The sixth arrives while the fourth is served, until 1311, and
    # has its plan when there is room for it.
    assert order.plans[0] == ([0, 1, 2, 3, 4], [2, 1, 0, 3, 4])
    assert [before for before, _ in order.plans] == [[0, 1, 2, 3, 4], [4, 5]]
    assert order.plans[1][1] == [5, 4]
    assert order.made_ns == [7, 1311]


def test_late_requests_do_not_fill_the_window() -> None:
    # The window of two has room for one of the three that are late; the longest of all is in time, and first.
    run = run_of(
        [(0, 10, 1), (0, 20, 1), (0, 30, 1), (0, 90, 1)],
        annealed([1000], window=2),
        due_ns=[0, 0, 0, 292],  # 7 + 105 + 180: first, or late
    )
    assert served(run) == [3, 0, 1, 2]


def test_the_prediction_contains_the_overhead_of_a_step() -> None:
    profile = HandProfile(step_overhead_ns=1000)
    assert predictor_of(profile).decodes_ns(2, 30, 3) == (120 + 30 + 1000) + (120 + 32 + 1000) + (120 + 34 + 1000)
    terms = Terms(Fraction(100), Fraction(10), Fraction(1), floor_ns=153)
    linear = LinearProfile(name="l", terms=terms, **SMALL_ENGINE | {"step_overhead_ns": 1000})
    for prefills in (True, False):
        predictor = predictor_of(linear, prefills=prefills)
        assert predictor.decodes_ns(2, 30, 3) == 1153 + 1153 + 1154
        assert predictor.profile.iteration_ns(0, 0, 60, 0) == (1153 if prefills else 0)


@given(
    st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=14),
    st.sampled_from(["fcfs", "edf", "sjf", "anneal"]),
    st.integers(1, 6),
    st.integers(60, 120),
    st.integers(0, 1),
    st.data(),
)
def test_no_order_loses_a_request_or_lets_one_before_the_preempted(
    drawn: list[tuple[int, int, int]], name: str, max_batch: int, kv_tokens: int, prefill: int, data: st.DataObject
) -> None:
    rows = sorted(drawn, key=lambda row: row[0])
    profile = HandProfile(max_batch=max_batch, kv_tokens=kv_tokens)
    due_ns = data.draw(st.lists(st.integers(0, 3000), min_size=len(rows), max_size=len(rows)))
    made: dict[str, PredictedOrder] = {
        "sjf": shortest_first(profile, ExpectedOutput(["t"], kv_tokens, Random(1)), disaggregated=bool(prefill)),
        "anneal": PredictedOrder(
            "anneal", profile, known(0.1, kv_tokens), [150], window=4, disaggregated=bool(prefill)
        ),
    }
    order = made.get(name) or ORDERS[name]

    class Checking(Scripted):
        def budget(self, instance: Instance) -> int:
            preempted = [bool(one.preemptions) for one in instance.waiting]
            assert preempted == sorted(preempted, reverse=True)
            return super().budget(instance)

    run = simulate(requests_of(rows, due_ns), profile, Fleet(1 + prefill, prefill), Checking(), order=order)
    for request in run.requests:
        times = run.token_times(request).tolist()
        assert len(times) == request.output
        assert all(before < after for before, after in pairwise(times))
    assert all(one.kv_free == kv_tokens and not one.requests for one in run.instances)


def test_an_annealed_run_is_a_function_of_its_seed() -> None:
    rows = [(40 * number, 5 + number * 7 % 40, 1 + number * 5 % 9) for number in range(60)]
    due_ns = [row[0] + 400 for row in rows]
    runs = [times_of(run_of(rows, annealed([150], known(0.2), seed=seed), due_ns=due_ns)) for seed in (1, 1)]
    assert runs[0] == runs[1]
