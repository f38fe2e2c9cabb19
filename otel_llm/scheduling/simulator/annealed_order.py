"""The order that annealing plans for the waiting requests of an instance (arXiv 2504.14966, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.annealing.jobs import NS_PER_S, SHORTEST_S, Job
from otel_llm.scheduling.annealing.search import anneal
from otel_llm.scheduling.simulator.expected_service import predictor_of
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
        self._max_batch = min(profile.max_batch, window if max_batch is None else max_batch)
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
        # Without it, those that are late would fill the window of an overloaded instance for good.
        fresh.sort(key=lambda one: self._left_ns(one, now_ns) <= 0)
        planned = fresh[: self._window]
        # The requests of one pool are all ready, or none is.
        predictor = self._decodes if planned[0].ready else self._whole
        plan = anneal([self._job(one, now_ns) for one in planned], predictor, self._max_batch, self._seed)
        ordered = [planned[job] for batch in plan.batches for job in batch]
        waiting.clear()
        waiting.extend([*before, *ordered, *fresh[self._window :]])

    def _left_ns(self, request: SimulatedRequest, now_ns: int) -> int:
        """Return the time until the promise of a request is due: its first token's, or its last one's if it decodes."""
        tpot_ns = self._tpots_ns[request.tier] if request.ready else None
        due_ns = request.due_ns
        if tpot_ns is not None:
            due_ns += (self._expected.of(request) - 1) * tpot_ns
        return due_ns - now_ns

    def _job(self, request: SimulatedRequest, now_ns: int) -> Job:
        left_s = max(SHORTEST_S, self._left_ns(request, now_ns) / NS_PER_S)
        if request.ready:
            return Job(request.input, self._expected.of(request), e2e=left_s)
        if self._disaggregated:
            return Job(request.input, 1, ttft=left_s)
        tpot_ns = self._tpots_ns[request.tier]
        tpot_s = None if tpot_ns is None else tpot_ns / NS_PER_S
        return Job(request.input, self._expected.of(request), ttft=left_s, tpot=tpot_s)
