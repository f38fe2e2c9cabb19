"""The order that annealing plans for the waiting requests of an instance (arXiv 2504.14966, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.annealing.whole_iterations import predictor_of
from otel_llm.scheduling.release_order import WaitingRequest, plan
from otel_llm.scheduling.simulator.ordering import WaitingOrder

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Sequence

    from otel_llm.scheduling.iteration_profile import EngineProfile
    from otel_llm.scheduling.simulator.expected_service import ExpectedOutput
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest

WINDOW: Final = 16
"""The most requests in a plan."""


class AnnealedOrder(WaitingOrder):
    """The first waiting requests in the order of a plan, the others behind them; those that are late are the last ones.

    A plan is made before a batch in which one can start, if requests were added since the last plan. Its jobs have what
    is left of their promises: the time until the first token is due, and the time per token. Of a request in a decode
    pool it is the time until its last expected token is due. A request that is late already keeps no promise in any
    plan.

    Args:
        profile: predicts the iterations, with the overhead of a step.
        expected: predicts the output.
        tpots_ns: the promised time per token by the `tier` of a request, None where there is none.
        window: the most requests in a plan, which bounds its cost.
        max_batch: the most requests in a batch of a plan; None: those that the engine runs at once.
        seed: of the search.
        disaggregated: whether a request is only prefilled where it is not `ready`.
    """

    def __init__(
        self,
        profile: EngineProfile,
        expected: ExpectedOutput,
        tpots_ns: Sequence[int | None],
        window: int = WINDOW,
        max_batch: int | None = None,
        seed: int = 0,
        *,
        disaggregated: bool = False,
    ) -> None:
        self._whole = predictor_of(profile)
        self._decodes = predictor_of(profile, prefills=False)
        self._expected = expected
        self._tpots_ns = tpots_ns
        self._window = window
        self._max_batch = window if max_batch is None else max_batch
        self._seed = seed
        self._disaggregated = disaggregated

    def __call__(self, request: SimulatedRequest) -> int:  # noqa: ARG002
        """Return one key for all: a new request is the last until the next plan."""
        return 0

    def finish(self, request: SimulatedRequest) -> None:
        """Learn the length of a reply that is over."""
        self._expected.finish(request)

    def arrange(self, waiting: deque[SimulatedRequest], now_ns: int) -> None:
        """Put the waiting requests behind the preempted ones into the order of a plan."""
        before = [one for one in waiting if one.preemptions]
        fresh = [one for one in waiting if not one.preemptions]
        if len(fresh) < 2:
            return
        by_number = {one.number: one for one in fresh}
        # The requests of one pool are all ready, or none is.
        predictor = self._decodes if fresh[0].ready else self._whole
        order = plan(
            [self._promised(one) for one in fresh],
            predictor,
            self._max_batch,
            now_ns,
            window=self._window,
            schedule="scaled",
            seed=self._seed,
        )
        waiting.clear()
        waiting.extend([*before, *(by_number[number] for number in order)])

    def _promised(self, request: SimulatedRequest) -> WaitingRequest:
        """Return a request with its expected output and what it is promised where it waits."""
        expected, tpot_ns = self._expected.of(request), self._tpots_ns[request.tier]
        number, arrival_ns, input_tokens = request.number, request.arrival_ns, request.input
        first_ns = request.due_ns - arrival_ns
        if request.ready:
            whole_ns = first_ns + (0 if tpot_ns is None else (expected - 1) * tpot_ns)
            return WaitingRequest(number, arrival_ns, input_tokens, expected, whole_ns=whole_ns)
        if self._disaggregated:
            return WaitingRequest(number, arrival_ns, input_tokens, 1, first_ns=first_ns)
        return WaitingRequest(number, arrival_ns, input_tokens, expected, first_ns=first_ns, token_ns=tpot_ns)
