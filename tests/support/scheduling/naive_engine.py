"""The simulated engine once more, as plainly as it can be written: token by token, from the words of the contract.

It shares no code with the simulated engine, and works with lists that it scans at every instant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from support.scheduling.simulated import HandProfile


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

    `budget_of`: the prefill budget of a batch by its decodes; `max_batched_tokens` less the decodes where not given.
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
