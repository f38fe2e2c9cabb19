"""The expected service of waiting requests: predicted output lengths, and the iterations of one request alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.scheduling.annealing.output_lengths import OutputLengths, vary
from otel_llm.scheduling.annealing.whole_iterations import predictor_of
from otel_llm.scheduling.polyserve.settings import EXPECTED_OUTPUT
from otel_llm.scheduling.simulator.ordering import WaitingOrder

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from otel_llm.scheduling.iteration_profile import EngineProfile
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


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
        self._unseen = unseen
        self._seen = OutputLengths()
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
        predicted = self._seen.predict(self._kinds[request.tier], self._draw)
        return self._unseen if predicted is None else predicted


class ShortestFirst(WaitingOrder):
    """The request with the shortest expected service first: alone, by the profile, with its expected output.

    Args:
        profile: predicts the iterations.
        expected: predicts the output.
        disaggregated: whether a request is only prefilled where it is not `ready`.
    """

    def __init__(self, profile: EngineProfile, expected: ExpectedOutput, *, disaggregated: bool = False) -> None:
        self._predictor = predictor_of(profile)
        self._expected = expected
        self._disaggregated = disaggregated
        self._service: dict[tuple[int, bool], int] = {}

    def __call__(self, request: SimulatedRequest) -> int:
        """Return the expected service in ns."""
        key = (request.number, request.ready)
        service_ns = self._service.get(key)
        if service_ns is None:
            service_ns = self._service[key] = self._service_ns(request)
        return service_ns

    def finish(self, request: SimulatedRequest) -> None:
        """Learn the length of a reply that is over."""
        self._expected.finish(request)
        for ready in (False, True):
            self._service.pop((request.number, ready), None)

    def _service_ns(self, request: SimulatedRequest) -> int:
        predictor, context = self._predictor, request.context
        if request.ready:
            return predictor.decodes_ns(1, context, self._expected.of(request) - request.produced)
        prefill_ns = predictor.profile.iteration_ns(0, 0, context, 0)
        if self._disaggregated:
            return prefill_ns
        return prefill_ns + predictor.decodes_ns(1, context + 1, self._expected.of(request) - request.produced - 1)
