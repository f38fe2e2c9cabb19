"""The placements of the simulator choose as the relay's policies of the same name, and as worked by hand."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.simulated import HandProfile, requests_of, run_of

from otel_llm.scheduling.placement import POLICIES, Demand, Load, rank
from otel_llm.scheduling.simulator.engine import Fleet
from otel_llm.scheduling.simulator.instance import Instance
from otel_llm.scheduling.simulator.placing import PLACEMENTS, Placement
from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest

pools = st.lists(st.tuples(st.lists(st.integers(1, 30), max_size=4), st.integers(0, 3)), min_size=1, max_size=5)


def pool_of(drawn: list[tuple[list[int], int]]) -> list[Instance]:
    """Return idle instances, each with waiting requests of these inputs, and a turn."""
    pool = []
    for number, (inputs, turn) in enumerate(drawn):
        instance = Instance(number, HandProfile(), lambda _: 100)
        for request in requests_of([(0, length, 5) for length in inputs]):
            instance.add(request)
        instance.turn = turn
        pool.append(instance)
    return pool


def chosen(placement: Placement, request: SimulatedRequest, pool: list[Instance]) -> int:
    """Return the number of the instance that a placement chooses; no baseline lets a request wait."""
    found = placement.place(request, pool, 0)
    assert found is not None
    return found.number


@pytest.mark.parametrize("name", [name for name in PLACEMENTS if name in POLICIES])
@given(pools, st.integers(1, 30), st.booleans(), st.integers(0, 99))
def test_the_choice_is_that_of_the_relay(
    name: str, drawn: list[tuple[list[int], int]], length: int, ready: bool, seed: int
) -> None:
    pool = pool_of(drawn)
    request = SimulatedRequest(9, 0, length, 5)
    request.ready = ready
    loads = [
        Load(str(one.number), one.requests, one.tokens, prefill_tokens=one.prefill_tokens, turn=one.turn)
        for one in pool
    ]
    best = rank(name, loads, Demand(0 if ready else length), Random(seed))[0]
    assert str(chosen(PLACEMENTS[name](Random(seed)), request, pool)) == best.name


def test_minimal_takes_the_shortest_iteration() -> None:
    # 100 + 2 x chunk: 40 and 20 tokens wait, the request brings 10, the batch has 100 at most.
    minimal = PLACEMENTS["minimal"](Random(0))
    request = SimulatedRequest(9, 0, 10, 5)
    assert chosen(minimal, request, pool_of([([30, 10], 0), ([20], 1)])) == 1
    # Both chunks are cut at 100: the one with fewer tokens.
    assert chosen(minimal, request, pool_of([([150], 0), ([140], 1)])) == 1
    # In a decode pool it is a decode, whose iteration is as long on both.
    request.ready = True
    assert chosen(minimal, request, pool_of([([], 5), ([], 4)])) == 1


def with_decodes(instance: Instance, *contexts: int) -> Instance:
    """Start decodes with these contexts."""
    for number, context in enumerate(contexts, 100):
        request = SimulatedRequest(number, 0, context, 5)
        request.ready = True
        instance.add(request)
    instance.form(0)
    return instance


def test_minimal_cuts_the_chunk_at_the_budget() -> None:
    # 100 + 2 x 100 without decodes; 100 + 10 + 50 + 2 x 99 with one, although fewer tokens wait there.
    pool = [pool_of([([400, 100], 0)])[0], with_decodes(pool_of([([], 0)])[0], 50)]
    pool[1].add(SimulatedRequest(8, 0, 110, 5))
    assert PLACEMENTS["minimal"](Random(0)).place(SimulatedRequest(9, 0, 10, 5), pool, 0) is pool[0]


def test_lmetric_without_prefill_takes_the_smallest_batch() -> None:
    first, second, third = pool_of([([], 0)] * 3)
    pool = [with_decodes(first, 5, 5), with_decodes(second, 90), with_decodes(third, 5, 5)]
    request = SimulatedRequest(9, 0, 10, 5)
    request.ready = True
    assert PLACEMENTS["lmetric"](Random(0)).place(request, pool, 0) is pool[1]


@pytest.mark.parametrize("name", list(PLACEMENTS))
@pytest.mark.parametrize("prefill", [0, 2])
def test_every_placement_serves_a_fleet(name: str, prefill: int) -> None:
    rows = [(40 * number, 5 + number % 7, 1 + number % 5) for number in range(60)]
    runs = [run_of(rows, fleet=Fleet(4, prefill), placement=PLACEMENTS[name](Random(3))) for _ in range(2)]
    first, again = ([one.runs for one in run.requests] for run in runs)
    assert first == again
    assert {run.instance for request in first for run in request} == {0, 1, 2, 3}


def test_round_robin_counts_per_pool() -> None:
    run = run_of([(0, 5, 3)] * 4, fleet=Fleet(4, 2), placement=PLACEMENTS["round_robin"](Random(0)))
    assert [[one.instance for one in request.runs] for request in run.requests] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_random_draws_every_instance_alike() -> None:
    pool = pool_of([([], 0)] * 4)
    placement = PLACEMENTS["random"](Random(1))
    counts = [0] * 4
    for _ in range(4000):
        counts[chosen(placement, SimulatedRequest(0, 0, 1, 1), pool)] += 1
    assert all(900 < count < 1100 for count in counts)
