"""How many requests a second the policy places: the time of its decisions in a run, without that of the simulator."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from otel_llm.scheduling.scenario.running import drawn_workload
from otel_llm.scheduling.simulator.engine import simulate
from otel_llm.scheduling.simulator.polyserve_placing import PolyServePlacement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.scheduling.scenario.scenario import Scenario
    from otel_llm.scheduling.simulator.instance import Instance
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest


class TimedPlacement(PolyServePlacement):
    """PolyServe that adds up the time of a processor in which it chooses instances (`spent_s`)."""

    spent_s = 0.0

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance | None:
        """Return the instance of a request, None if it waits."""
        begin = time.process_time()
        instance = super().place(request, pool, now_ns)
        self.spent_s += time.process_time() - begin
        return instance

    def retry(self, now_ns: int) -> Iterator[tuple[SimulatedRequest, Instance]]:
        """Yield the waiting requests that have an instance now."""
        waiting = iter(super().retry(now_ns))
        while True:
            begin = time.process_time()
            found = next(waiting, None)
            self.spent_s += time.process_time() - begin
            if found is None:
                return
            yield found


def placements_per_s(scenario: Scenario, seed: int) -> float:
    """Return the requests placed in a second of a processor.

    Raises: ValueError for a scenario of another policy.
    """
    settings = scenario.policy.polyserve()
    if settings is None:
        raise ValueError(f"{scenario.policy.placement} is not timed; write `placement: polyserve`")
    workload = drawn_workload(scenario, seed)
    tpots_ns = [one.slo.deadline.next_ns or 0 for one in workload.classes]
    placement = TimedPlacement(settings, tpots_ns, scenario.workload.expected_output)
    run = simulate(workload.requests(), scenario.profile, scenario.fleet, placement)
    return run.decisions / placement.spent_s
