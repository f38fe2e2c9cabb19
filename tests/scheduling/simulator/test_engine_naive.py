"""The simulator against the naive engine, token by token, and properties of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.simulated import HandProfile, Scripted, run_of, times_of

from otel_llm.scheduling.simulator.engine import Fleet, SimulatedRun, Transfer
from otel_llm.scheduling.simulator.instance import Instance


@dataclass
class NaiveRequest:
    number: int
    input: int
    output: int
    visible_ns: int
    due_ns: int = 0
    tokens: list[int] = field(default_factory=list)
    to_prefill: int = 0
    done: int = 0
    chunk: int = 0
    decodes: bool = False
    transferred: bool = False
    held: int = 0
    start: int = -1
    preempted: bool = False
    dropped: bool = False
    over: bool = False

    def context(self) -> int:
        return self.input + len(self.tokens)


@dataclass
class NaiveInstance:
    prefill_only: bool
    waiting: list[NaiveRequest] = field(default_factory=list)
    running: list[NaiveRequest] = field(default_factory=list)
    starts: int = 0
    end_ns: int | None = None


@dataclass
class NaiveRun:
    requests: list[NaiveRequest]
    most_kv: int = 0
    preempted: int = 0
    idle_with_work: int = 0
    batches: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    """Of each batch: instance, begin, end, decodes, chunk, KV held."""


def run_naively(
    rows: Sequence[tuple[int, int, int]],
    profile: HandProfile,
    instances: int,
    prefill: int = 0,
    transfer: tuple[int, Fraction] = (0, Fraction(0)),
    budget_of: Callable[[int], int] | None = None,
    due_ns: Sequence[int] = (),
) -> NaiveRun:
    """Serve rows (arrival ns, input, output) placed by number, modulo the size of the pool.

    `budget_of`: the prefill budget of a batch by its decodes; `max_batched_tokens` less the decodes if not given.
    With `due_ns`, the waiting requests that were not preempted are sorted by it.
    """
    fleet = [NaiveInstance(number < prefill) for number in range(instances)]
    requests = [
        NaiveRequest(number, row[1], row[2], row[0] + profile.request_overhead_ns, due_ns[number] if due_ns else 0)
        for number, row in enumerate(rows)
    ]
    run = NaiveRun(requests)
    invisible = list(requests)
    while invisible or any(one.end_ns is not None for one in fleet):
        now = min([one.visible_ns for one in invisible] + [one.end_ns for one in fleet if one.end_ns is not None])
        for instance in fleet:
            if instance.end_ns == now:
                for request in _end(instance, now):
                    latency, per_token = transfer
                    request.visible_ns = now + latency + floor(per_token * request.input + Fraction(1, 2))
                    request.transferred = True
                    invisible.append(request)
        for request in sorted((one for one in invisible if one.visible_ns == now), key=lambda one: one.number):
            invisible.remove(request)
            if request.input + request.output > profile.kv_tokens:
                request.dropped = True
                continue
            pool = fleet[:prefill] if prefill and not request.transferred else fleet[prefill:]
            waiting = pool[request.number % len(pool)].waiting
            waiting.append(request)
            waiting.sort(key=lambda one: (not one.preempted, 0 if one.preempted else one.due_ns))
        for number, instance in enumerate(fleet):
            if instance.end_ns is None and (instance.waiting or instance.running):
                _form(run, number, instance, now, profile, budget_of)
                run.idle_with_work += instance.end_ns is None
    return run


def _end(instance: NaiveInstance, now: int) -> list[NaiveRequest]:
    instance.end_ns = None
    leaving = []
    for request in list(instance.running):
        if request.decodes:
            request.tokens.append(now)
        else:
            request.done += request.chunk
            if request.done < request.to_prefill:
                continue
            request.tokens.append(now)
            request.decodes = True
        if len(request.tokens) == request.output:
            request.over = True
        elif instance.prefill_only:
            leaving.append(request)
        else:
            continue
        instance.running.remove(request)
        request.held = 0
    return leaving


def _form(
    run: NaiveRun,
    number: int,
    instance: NaiveInstance,
    now: int,
    profile: HandProfile,
    budget_of: Callable[[int], int] | None,
) -> None:
    running, waiting = instance.running, instance.waiting

    def decodes() -> list[NaiveRequest]:
        return [one for one in running if one.decodes]

    def free() -> int:
        return profile.kv_tokens - sum(one.held for one in running)

    while free() < len(decodes()):
        last = max(running, key=lambda one: one.start)
        running.remove(last)
        last.held = last.done = 0
        last.decodes = last.transferred = False
        last.preempted = True
        waiting.insert(0, last)
        run.preempted += 1
    for one in decodes():
        one.held += 1
    budget = profile.max_batched_tokens - len(decodes()) if budget_of is None else budget_of(len(decodes()))
    for one in running:
        one.chunk = 0
    for one in sorted((one for one in running if not one.decodes), key=lambda one: one.start):
        one.chunk = max(0, min(budget, one.to_prefill - one.done))
        budget -= one.chunk
    while waiting and len(running) < profile.max_batch and waiting[0].context() + 1 <= free():
        first = waiting[0]
        if not first.transferred and budget <= 0:
            break
        waiting.pop(0)
        first.held = first.context() + 1
        instance.starts += 1
        first.start = instance.starts
        running.append(first)
        if first.transferred:
            first.decodes = True
        else:
            first.to_prefill = first.context()
            first.chunk = min(budget, first.to_prefill)
            budget -= first.chunk
    chunks = [(one.chunk, one.done) for one in running if not one.decodes and one.chunk]
    chunk = sum(size for size, _ in chunks)
    prior = floor(Fraction(sum(size * done for size, done in chunks), chunk)) if chunk else 0
    contexts = sum(one.context() for one in decodes())
    held = sum(one.held for one in running)
    run.most_kv = max(run.most_kv, held)
    if chunk or decodes():
        length = profile.iteration_ns(len(decodes()), contexts, chunk, prior)
        instance.end_ns = now + length + profile.step_overhead_ns
        run.batches.append((number, now, instance.end_ns, len(decodes()), chunk, held))


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
