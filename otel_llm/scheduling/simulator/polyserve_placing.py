"""PolyServe on simulated instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.scheduling.polyserve.policy import PolyServe
from otel_llm.scheduling.polyserve.prefill_pool import PrefillPool
from otel_llm.scheduling.simulator.ordering import first_token_due
from otel_llm.scheduling.simulator.placing import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from otel_llm.scheduling.polyserve.settings import PolyServeSettings
    from otel_llm.scheduling.simulator.instance import Instance
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


class PolyServePlacement(Placement):
    """PolyServe (`scheduling.polyserve`) as a placement of the simulator.

    Args:
        tpots_ns: the TPOT of each class; `SimulatedRequest.tier` is a position in it.
        expected_output: the mean output of a tier before anything of it was over, in tokens.
    """

    prefill_order = staticmethod(first_token_due)

    def __init__(self, settings: PolyServeSettings, tpots_ns: Sequence[int], expected_output: int) -> None:
        self._settings = settings
        self._tpots_ns = tpots_ns
        self._expected_output = expected_output
        self._prefill: PrefillPool[SimulatedRequest, Instance] | None = None
        self.observer = self
        self.frees_idle = settings.unlimited

    def begin(
        self, arrivals: Sequence[Instance], decoders: Sequence[Instance], grow: Callable[[bool], Instance]
    ) -> None:
        """Take the idle fleet."""
        settings, tpots_ns, profile = self._settings, self._tpots_ns, decoders[0].profile
        self._decode: PolyServe[SimulatedRequest, Instance] = PolyServe(
            settings, profile, tpots_ns, decoders, self._expected_output, lambda: grow(True)
        )
        if arrivals is not decoders:
            self._prefill = PrefillPool(settings, profile, tpots_ns, arrivals, lambda: grow(False))

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance | None:  # noqa: ARG002
        """Return the instance of a request, None if it waits."""
        policy = self._decode if self._prefill is None or request.ready else self._prefill
        instance = policy.place(request, now_ns)
        self.holds += instance is None
        return instance

    def retry(self, now_ns: int) -> Iterator[tuple[SimulatedRequest, Instance]]:
        """Yield the waiting requests that have an instance now."""
        for policy in (self._decode,) if self._prefill is None else (self._prefill, self._decode):
            for placed in policy.retry(now_ns):
                self.holds -= 1
                yield placed

    def completed(self, request: SimulatedRequest, instance: Instance, tokens: int) -> None:
        """Note a decode."""
        self._decode.completed(request, instance, tokens)

    def preempted(self, request: SimulatedRequest, instance: Instance) -> None:
        """Note a preemption."""
        if not instance.hands_over:
            self._decode.preempted(request, instance)

    def ended(self, request: SimulatedRequest, instance: Instance) -> None:
        """Note an end, or that a request leaves for the decode pool."""
        if self._prefill is None or not instance.hands_over:
            self._decode.ended(request, instance, request.produced)
            return
        self._prefill.ended(instance)
        if request.end_ns is not None:
            self._decode.count(request, request.produced)

    def budget(self, instance: Instance) -> int:
        """Return the prefill tokens of the batch that is formed."""
        if self._prefill is not None and instance.hands_over:
            return self._prefill.budget(instance, instance.begin_ns)
        return self._decode.budget(instance, instance.begin_ns)
