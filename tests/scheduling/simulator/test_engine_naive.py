"""The simulator against the naive engine, token by token, and properties of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.naive_engine import NaiveRun, run_naively
from support.scheduling.simulated import HandProfile, Scripted, run_of, times_of

from otel_llm.scheduling.simulator.engine import Fleet, SimulatedRun, Transfer
from otel_llm.scheduling.simulator.instance import Instance

Rows = list[tuple[int, int, int]]

rows = st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=14).map(
    lambda drawn: sorted(drawn, key=lambda row: row[0])
)
profiles = st.builds(
    HandProfile,
    kv_tokens=st.integers(20, 120),
    max_batch=st.integers(1, 6),
    max_batched_tokens=st.integers(1, 60),
    step_overhead_ns=st.integers(0, 5),
    request_overhead_ns=st.integers(0, 7),
)
transfers = st.tuples(st.integers(0, 60), st.fractions(0, 3, max_denominator=4))


def both(
    drawn: Rows,
    profile: HandProfile,
    instances: int,
    prefill: int,
    transfer: tuple[int, Fraction],
    budget: int | None,
    due_ns: Sequence[int] = (),
) -> tuple[SimulatedRun, NaiveRun]:
    placement = Scripted(budget)
    run = run_of(drawn, profile, Fleet(instances, prefill, Transfer(*transfer)), placement, due_ns)
    fixed = None if budget is None else (lambda _: budget)
    return run, run_naively(drawn, profile, instances, prefill, transfer, fixed, due_ns)


@given(rows, profiles, st.integers(1, 3), transfers, st.none() | st.integers(1, 30), st.data())
def test_every_token_stands_where_the_naive_engine_has_it(
    drawn: Rows,
    profile: HandProfile,
    instances: int,
    transfer: tuple[int, Fraction],
    budget: int | None,
    data: st.DataObject,
) -> None:
    prefill = data.draw(st.integers(0, instances - 1))
    is_sorted = data.draw(st.booleans())
    due_ns = data.draw(st.lists(st.integers(0, 5), min_size=len(drawn), max_size=len(drawn))) if is_sorted else ()
    run, naive = both(drawn, profile, instances, prefill, transfer, budget, due_ns)
    assert times_of(run) == [one.tokens for one in naive.requests]
    assert [one.dropped for one in run.requests] == [one.dropped for one in naive.requests]
    assert sum(one.preemptions for one in run.instances) == naive.preempted
    assert naive.most_kv <= profile.kv_tokens
    assert naive.idle_with_work == 0, "an instance with work runs"


@given(rows, profiles, st.integers(1, 3), transfers, st.data())
def test_nothing_is_lost_early_or_left_over(
    drawn: Rows, profile: HandProfile, instances: int, transfer: tuple[int, Fraction], data: st.DataObject
) -> None:
    run = run_of(drawn, profile, Fleet(instances, data.draw(st.integers(0, instances - 1)), Transfer(*transfer)))
    for request in run.requests:
        times = run.token_times(request).tolist()
        visible = request.arrival_ns + profile.request_overhead_ns
        if request.dropped:
            assert request.input + request.output > profile.kv_tokens
            assert not times
            assert request.end_ns == visible
            continue
        assert len(times) == request.output
        assert times[-1] == request.end_ns
        assert times[0] > visible + profile.step_overhead_ns, "no token before the end of an iteration"
        assert all(before < after for before, after in pairwise(times))
        assert request.preemptions + 1 + (len(request.runs) > 1) >= len(request.runs)
    for instance in run.instances:
        assert instance.kv_free == profile.kv_tokens
        assert (instance.requests, instance.tokens, instance.prefill_tokens) == (0, 0, 0)
        assert list(instance.ends) == sorted(set(instance.ends))


class Checking(Scripted):
    """A placement that compares the sums of an instance with those of its requests, whenever a batch has prefills."""

    checked = 0

    def budget(self, instance: Instance) -> int:
        iteration = len(instance.ends)
        contexts = [one.input + one.produced + iteration - one.first for one in instance.decoding.values()]
        assert instance.decode_context == sum(contexts)
        pending = [*instance.partial, *instance.waiting]
        assert instance.pending_context == sum(one.context for one in pending)
        assert instance.prefill_tokens == sum(one.context - one.prefilled for one in pending if not one.ready)
        # Every decode holds its context and the place of its next token, a started prefill the same.
        held = sum(contexts) + len(contexts) + sum(one.context + 1 for one in instance.partial)
        assert 0 <= held == instance.profile.kv_tokens - instance.kv_free <= instance.profile.kv_tokens
        self.checked += 1
        return super().budget(instance)


@given(rows, profiles, st.integers(1, 3), st.data())
def test_the_sums_of_an_instance_are_those_of_its_requests(
    drawn: Rows, profile: HandProfile, instances: int, data: st.DataObject
) -> None:
    placement = Checking()
    run_of(drawn, profile, Fleet(instances, data.draw(st.integers(0, instances - 1))), placement)
    assert placement.checked or all(row[1] + row[2] > profile.kv_tokens for row in drawn)


def test_the_naive_engine_preempts_in_the_drawn_range() -> None:
    """The comparison would show nothing of preemptions if the drawn cases had none."""
    drawn = [(0, 10, 20), (0, 10, 20), (5, 10, 20)]
    run, naive = both(drawn, HandProfile(kv_tokens=50), 1, 0, (0, Fraction(0)), None)
    assert naive.preempted == run.instances[0].preemptions > 1


def test_requests_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="sort by arrival"):
        run_of([(5, 1, 1), (4, 1, 1)])


@pytest.mark.parametrize(("instances", "prefill"), [(0, 0), (2, 2), (1, 1), (2, -1)])
def test_a_pool_needs_an_instance(instances: int, prefill: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Fleet(instances, prefill)


def test_a_budget_that_would_never_go_on_is_refused() -> None:
    with pytest.raises(ValueError, match="it needs 1 or more"):
        run_of([(0, 5, 5)], placement=Scripted(0))
