"""The interface of a placement in the simulator, and the baselines.

Where the relay has a policy of the same name (`scheduling.placement`), both choose the same instance: a test compares
them. Here nothing but the choice is made, without scores and reasons, since a run has 100,000s of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_llm.scheduling.simulator.instance import Instance, Observer
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


class Placement(ABC):
    """A policy: the instance of each request, and the prefill tokens of each batch.

    `observer` follows the requests of each instance. `prefill_order` sorts the waiting requests of
    prefill instances, where it is not None. `frees_idle`: an instance without requests costs nothing.
    `holds`: the number of requests that wait with the policy.

    Args:
        draw: the random source of the run, for policies that draw.
        batch_tokens: the most tokens of a batch with prefill; None: `max_batched_tokens`.
    """

    observer: Observer | None = None
    prefill_order: Callable[[SimulatedRequest], int] | None = None
    frees_idle = False
    holds = 0

    def __init__(self, draw: random.Random, batch_tokens: int | None = None) -> None:
        self.draw = draw
        self.batch_tokens = batch_tokens

    @abstractmethod
    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance | None:
        """Return the instance of the pool for a request that became visible; it is not added yet. None: it waits.

        The pool is the whole fleet, or of a disaggregated one the prefill or the decode instances. A request for the
        decode pool is `ready` and needs no prefill.
        """

    def begin(  # noqa: B027 - a baseline has nothing to do
        self, arrivals: Sequence[Instance], decoders: Sequence[Instance], grow: Callable[[bool], Instance]
    ) -> None:
        """Take the idle fleet: where arrivals are placed, and where requests decode; of a colocated one the same.

        `grow` adds an idle instance to the arrivals, or to those that decode.
        """

    def retry(self, now_ns: int) -> Iterable[tuple[SimulatedRequest, Instance]]:  # noqa: ARG002
        """Yield the waiting requests that have an instance now; each is added before the next is asked for.

        The engine calls it after the iterations that end at an instant, where requests wait.
        """
        return ()

    def budget(self, instance: Instance) -> int:
        """Return the prefill tokens of the next batch: its most tokens less one for each decode."""
        most = instance.profile.max_batched_tokens
        if self.batch_tokens is not None and self.batch_tokens < most:
            most = self.batch_tokens
        return most - len(instance.decoding)


class RandomPlacement(Placement):
    """Any instance, each with the same chance."""

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return a random one."""
        return pool[self.draw.randrange(len(pool))]


class RoundRobin(Placement):
    """The instance whose last placement is the longest ago, counted per pool."""

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return the one with the lowest turn."""
        return min(pool, key=_turn)


class LeastLoad(Placement):
    """The instance with the fewest tokens of context, then the fewest requests, then the lowest turn."""

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return the least loaded."""
        return min(pool, key=_load)


class PowerOfTwo(Placement):
    """The less loaded of two random instances (Mitzenmacher, The power of two choices)."""

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return the less loaded of two."""
        drawn = self.draw.sample(range(len(pool)), min(2, len(pool)))
        return min((pool[index] for index in sorted(drawn)), key=_load)


class LMetric(Placement):
    """The instance with the least (new prefill tokens) x (batch + 1), then the fewest requests (arXiv 2603.15202)."""

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return the one with the least product."""
        new = 0 if request.ready else request.context

        def score(one: Instance) -> tuple[int, int, int]:
            requests = one.requests
            return (one.prefill_tokens + new) * (requests + 1), requests, one.turn

        return min(pool, key=score)


class StaticChunk(LeastLoad):
    """The least loaded instance, for batches with a static budget of tokens (PolyServe, section 5.1: CO-Chunk).

    The paper takes the best of several budgets; `scenario.running` searches it.
    """


class Minimal(Placement):
    """The instance with the shortest predicted iteration (PolyServe, section 5.1: the lowest cycle time).

    Predicted is the iteration of its decodes with a chunk of all prefill tokens there, those of the request included,
    up to its budget; of a decode pool, one with the request as a decode. Of equal ones the least loaded is chosen.
    """

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return the one with the shortest iteration."""

        def score(one: Instance) -> tuple[int, tuple[int, int, int]]:
            decodes, context, prefill = len(one.decoding), one.decode_context, one.prefill_tokens
            if request.ready:
                decodes, context = decodes + 1, context + request.context
            else:
                prefill += request.context
            chunk = max(0, min(prefill, self.budget(one)))
            return one.profile.iteration_ns(decodes, context, chunk, 0), _load(one)

        return min(pool, key=score)


PLACEMENTS: Final[Mapping[str, type[Placement]]] = {
    "random": RandomPlacement,
    "minimal": Minimal,
    "round_robin": RoundRobin,
    "least_load": LeastLoad,
    "lmetric": LMetric,
    "power_of_two": PowerOfTwo,
    "chunk": StaticChunk,
}
"""Placements by name."""


def _turn(instance: Instance) -> int:
    return instance.turn


def _load(instance: Instance) -> tuple[int, int, int]:
    return instance.tokens, instance.requests, instance.turn
