"""The order of the waiting requests that a scenario names."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from otel_llm.scheduling.simulator.annealed_order import AnnealedOrder
from otel_llm.scheduling.simulator.expected_service import ExpectedOutput, ShortestFirst
from otel_llm.scheduling.simulator.ordering import ORDERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.scheduling.scenario.scenario import Scenario
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest
    from otel_llm.scheduling.workload.workload import Workload


def order_of(scenario: Scenario, workload: Workload, seed: int) -> Callable[[SimulatedRequest], int] | None:
    """Return the order for one run, with what it learns still empty; None: by their placement."""
    policy, profile, known = scenario.policy, scenario.profile, scenario.policy.output_lengths
    if policy.order in ORDERS:
        return ORDERS[policy.order]
    expected = ExpectedOutput(
        [one.tier for one in workload.classes],
        profile.kv_tokens,
        Random(f"output lengths {seed}"),  # noqa: S311 - it draws lengths
        None if known is None else known.error,
        scenario.workload.expected_output,
    )
    disaggregated = scenario.fleet.prefill > 0
    if policy.order == "sjf":
        return ShortestFirst(profile, expected, disaggregated=disaggregated)
    return AnnealedOrder(
        profile,
        expected,
        [one.slo.token_time_ns for one in workload.classes],
        policy.annealing.window,
        policy.annealing.max_batch,
        seed,
        disaggregated=disaggregated,
    )
