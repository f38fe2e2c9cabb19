"""A profile that can be worked by hand, placements by script, and runs of small cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from otel_llm.scheduling.simulator.engine import Fleet, SimulatedRun, simulate
from otel_llm.scheduling.simulator.instance import Instance
from otel_llm.scheduling.simulator.ordering import ORDERS
from otel_llm.scheduling.simulator.placing import Placement
from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


@dataclass(frozen=True)
class HandProfile:
    """An iteration of B decodes lasts 100 + 10 B + KV + 2 chunk + prior, and 5 of overhead; a request needs 7."""

    kv_tokens: int = 1000
    max_batch: int = 8
    max_batched_tokens: int = 100
    step_overhead_ns: int = 5
    request_overhead_ns: int = 7

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        return 100 + 10 * decodes + kv_tokens + 2 * chunk + prior


class Scripted(Placement):
    """Place by the number of the request; a batch has `tokens` of prefill if that is given."""

    def __init__(self, tokens: int | None = None) -> None:
        super().__init__(Random(0))
        self.tokens = tokens

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:
        return pool[request.number % len(pool)]

    def budget(self, instance: Instance) -> int:
        return super().budget(instance) if self.tokens is None else self.tokens


def requests_of(rows: Sequence[tuple[int, int, int]], due_ns: Sequence[int] = ()) -> list[SimulatedRequest]:
    """Return fresh requests of rows (arrival ns, input, output), their first tokens due at `due_ns` if given."""
    return [
        SimulatedRequest(number, *row, due_ns=due_ns[number] if due_ns else None) for number, row in enumerate(rows)
    ]


def run_of(
    rows: Sequence[tuple[int, int, int]],
    profile: HandProfile | None = None,
    fleet: Fleet | None = None,
    placement: Placement | None = None,
    due_ns: Sequence[int] = (),
) -> SimulatedRun:
    """Serve the rows, with `due_ns` by earliest deadline first."""
    return simulate(
        requests_of(rows, due_ns),
        profile or HandProfile(),
        fleet or Fleet(1),
        placement or Scripted(),
        order=ORDERS["edf" if due_ns else "fcfs"],
    )


def times_of(run: SimulatedRun) -> list[list[int]]:
    """Return the token times of every request."""
    return [run.token_times(request).tolist() for request in run.requests]
