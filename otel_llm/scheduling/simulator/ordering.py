"""Orders of the waiting requests of an instance; preempted ones are before all others in any of them.

The rules are those of `scheduling.release_order`, with what the simulator knows of a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.annealing.whole_iterations import predictor_of
from otel_llm.scheduling.output_lengths import EXPECTED_OUTPUT, OutputLengths, vary
from otel_llm.scheduling.release_order import WaitingRequest, plan, rank

if TYPE_CHECKING:
    import random
    from collections import deque
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.scheduling.iteration_profile import EngineProfile
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest

WINDOW: Final = 16
"""The most requests in a plan."""


def first_token_due(request: SimulatedRequest) -> int:
    """Return the instant at which the first token of a request is due, in ns: the key of earliest deadline first."""
    return request.due_ns


ORDERS: Final[Mapping[str, Callable[[SimulatedRequest], int] | None]] = {"fcfs": None, "edf": first_token_due}
"""Orders that predict nothing: the key by which waiting requests are sorted, by name. None: no sorting."""


class ExpectedOutput:
    """The expected output of each request: drawn once, and kept until it is over.

    Args:
        kinds: the kind of a request by its `tier`.
        kv_tokens: no request has more tokens than these.
        draw: the random source of the predictions.
        error: the true length within this share of it; None: from a Gaussian of the lengths that finished, by kind.
        unseen: the expected output of a kind without a finished request.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        kv_tokens: int,
        draw: random.Random,
        error: float | None = None,
        unseen: int = EXPECTED_OUTPUT,
    ) -> None:
        self._kinds = kinds
        self._kv_tokens = kv_tokens
        self._draw = draw
        self._error = error
        self._seen = OutputLengths(unseen)
        self._expected: dict[int, int] = {}

    def of(self, request: SimulatedRequest) -> int:
        """Return the expected tokens of the reply, at least 1 more than were produced."""
        expected = self._expected.get(request.number)
        if expected is None:
            expected = self._expected[request.number] = min(self._predict(request), self._kv_tokens - request.input)
        return max(expected, request.produced + 1)

    def finish(self, request: SimulatedRequest) -> None:
        """Learn the length of a reply that is over."""
        self._expected.pop(request.number, None)
        if self._error is None:
            self._seen.observe(self._kinds[request.tier], request.output)

    def _predict(self, request: SimulatedRequest) -> int:
        if self._error is not None:
            return vary(request.output, self._error, self._draw)
        return self._seen.draw(self._kinds[request.tier], self._draw)


class PredictedOrder:
    """An order by the expected service of requests, by the profile and the expected output.

    `sjf`: the request with the shortest service first. `anneal`: the first waiting requests in the order of a plan, the
    others behind them. A plan is made before a batch in which a request can start, if requests were added since the
    last plan. Its jobs have what is left of their promises: the time until the first token is due, and the time per
    token. Of a request in a decode pool it is the time until its last expected token is due.

    Args:
        order: `sjf` or `anneal`.
        profile: predicts the iterations, with the overhead of a step.
        expected: predicts the output.
        tpots_ns: the promised time per token by the `tier` of a request, None if there is none.
        window: the most requests in a plan, which bounds its cost.
        max_batch: the most requests in a batch of a plan; None: those that the engine runs at once.
        seed: of the search.
        disaggregated: whether a request that is not `ready` is only prefilled.
    """

    def __init__(
        self,
        order: str,
        profile: EngineProfile,
        expected: ExpectedOutput,
        tpots_ns: Sequence[int | None],
        *,
        window: int = WINDOW,
        max_batch: int | None = None,
        seed: int = 0,
        disaggregated: bool = False,
    ) -> None:
        self._plans = order == "anneal"
        self._whole = predictor_of(profile)
        self._decodes = predictor_of(profile, prefills=False)
        self._expected = expected
        self._tpots_ns = tpots_ns
        self._window = window
        self._max_batch = window if max_batch is None else max_batch
        self._seed = seed
        self._disaggregated = disaggregated
        self._service: dict[tuple[int, bool], int] = {}

    def __call__(self, request: SimulatedRequest) -> int:
        """Return the key of a waiting request, of equal ones the first placed is first: its expected service in ns.

        With plans it is the same for all: a new request is the last until the next plan.
        """
        if self._plans:
            return 0
        key = (request.number, request.ready)
        service_ns = self._service.get(key)
        if service_ns is None:
            predictor = self._decodes if request.ready else self._whole
            service_ns = self._service[key] = rank("sjf", self._promised(request), predictor)[1]
        return service_ns

    def arrange(self, waiting: deque[SimulatedRequest], now_ns: int) -> None:
        """Reorder the waiting requests before a batch forms in which one could start.

        It is called if requests were added since the last call. Those that were preempted are the first, and stay so.
        """
        if not self._plans:
            return
        fresh = [one for one in waiting if not one.preemptions]
        if len(fresh) < 2:
            return
        for one in fresh:  # the lengths of all are drawn here, also of those that are only prefilled
            self._expected.of(one)
        by_number = {one.number: one for one in fresh}
        # The requests of one pool are all ready, or none is.
        order = plan(
            [self._promised(one) for one in fresh],
            self._decodes if fresh[0].ready else self._whole,
            self._max_batch,
            now_ns,
            window=self._window,
            schedule="scaled",
            seed=self._seed,
        )
        before = [one for one in waiting if one.preemptions]
        waiting.clear()
        waiting.extend([*before, *(by_number[number] for number in order)])

    def finish(self, request: SimulatedRequest) -> None:
        """Learn the length of a reply that is over."""
        self._expected.finish(request)
        for ready in (False, True):
            self._service.pop((request.number, ready), None)

    def _promised(self, request: SimulatedRequest) -> WaitingRequest:
        """Return a request with its expected output and what it is promised where it waits."""
        number, arrival_ns, tpot_ns = request.number, request.arrival_ns, self._tpots_ns[request.tier]
        first_ns = request.due_ns - arrival_ns
        if self._disaggregated and not request.ready:
            return WaitingRequest(number, arrival_ns, request.input, 1, first_ns=first_ns)
        expected = self._expected.of(request)
        if request.ready:
            whole_ns = first_ns + (0 if tpot_ns is None else (expected - 1) * tpot_ns)
            return WaitingRequest(number, arrival_ns, request.input, expected, whole_ns=whole_ns)
        return WaitingRequest(number, arrival_ns, request.input, expected, first_ns=first_ns, token_ns=tpot_ns)
