"""The interface of a placement in the simulator, and the baselines.

Those without state are the policies of `scheduling.placement` that need no prediction: the relay has them too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.placement import DEFAULT, POLICIES, Demand, best

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_llm.scheduling.placement import Policy
    from otel_llm.scheduling.simulator.instance import Instance, Observer
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


class Placement(ABC):
    """A policy: the instance of each request, and the prefill tokens of each batch.

    `observer` follows the requests of each instance. `prefill_order` sorts the waiting requests of
    prefill instances, if it is not None. `frees_idle`: an instance without requests costs nothing.
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

        The engine calls it after the iterations that end at an instant, if requests wait.
        """
        return ()

    def budget(self, instance: Instance) -> int:
        """Return the prefill tokens of the next batch: its most tokens less one for each decode."""
        most = instance.profile.max_batched_tokens
        if self.batch_tokens is not None and self.batch_tokens < most:
            most = self.batch_tokens
        return most - len(instance.decoding)


class Stateless(Placement):
    """A policy that compares the instances as they are (`scheduling.placement`)."""

    def __init__(self, policy: Policy, draw: random.Random, batch_tokens: int | None = None) -> None:
        super().__init__(draw, batch_tokens)
        self._policy = policy

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return the instance with the lowest score."""
        return best(self._policy, pool, Demand(0 if request.ready else request.context), self.draw)


class Minimal(Placement):
    """The instance with the shortest predicted iteration (PolyServe, section 5.1: the lowest cycle time).

    Predicted is the iteration of its decodes with a chunk of all prefill tokens there, those of the request included,
    up to its budget; of a decode pool, one with the request as a decode. Of equal ones the least loaded is chosen.
    """

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance:  # noqa: ARG002
        """Return the one with the shortest iteration."""

        def score(one: Instance) -> tuple[int, int, int, int]:
            decodes, context, prefill = len(one.decoding), one.decode_context, one.prefill_tokens
            if request.ready:
                decodes, context = decodes + 1, context + request.context
            else:
                prefill += request.context
            chunk = max(0, min(prefill, self.budget(one)))
            return one.profile.iteration_ns(decodes, context, chunk, 0), one.tokens, one.requests, one.turn

        return min(pool, key=score)


CHUNK: Final = "chunk"
"""The default placement with a static budget of tokens (PolyServe, section 5.1: CO-Chunk).

The paper takes the best of several budgets; `scenario.running` searches it.
"""
PLACEMENTS: Final[Mapping[str, Callable[..., Placement]]] = {
    **{name: partial(Stateless, policy) for name, policy in POLICIES.items() if not policy.predicts},
    CHUNK: partial(Stateless, POLICIES[DEFAULT]),
    "minimal": Minimal,
}
"""What makes a placement for a run, by name; the arguments are those of `Placement`."""
