"""A run whose mix of tiers is inverted half-way, as in section 5.3: first 10 20 30 40 %, then 40 30 20 10 %."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_llm.scheduling.scenario.figures import figures_of
from otel_llm.scheduling.scenario.running import drawn_workload, run_scenario

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_llm.scheduling.scenario.figures import RunFigures
    from otel_llm.scheduling.scenario.scenario import Scenario
    from otel_llm.scheduling.simulator.engine import SimulatedRun
    from otel_llm.scheduling.workload.workload import Workload


def inverted(scenario: Scenario) -> Scenario:
    """Return the scenario with the shares of its tiers in reverse order."""
    tiers = scenario.workload.tiers
    shares = [tier.share for tier in reversed(tiers)]
    turned = tuple(replace(tier, share=share) for tier, share in zip(tiers, shares, strict=True))
    return replace(scenario, workload=replace(scenario.workload, tiers=turned))


def shifted_workload(scenario: Scenario, seed: int) -> Workload:
    """Return the workload of a scenario with the classes of its later half drawn by the inverted mix.

    Arrivals and lengths are the same for both mixes, as each has a random stream of its own.
    """
    first, second = drawn_workload(scenario, seed), drawn_workload(inverted(scenario), seed)
    later = second_half(first)
    return replace(
        first,
        class_index=np.where(later, second.class_index, first.class_index),
        infeasible=np.where(later, second.infeasible, first.infeasible),
    )


def second_half(workload: Workload) -> NDArray[np.bool_]:
    """Return which requests arrive in the later half of the judged time, (R,) bool."""
    return workload.arrivals_ns >= half_ns(workload)


def half_ns(workload: Workload) -> int:
    """Return the middle of the judged time."""
    return (workload.warmup_ns + int(workload.arrivals_ns[-1])) // 2


def run_shifted(scenario: Scenario, seed: int) -> tuple[dict[str, Any], dict[str, float | None]]:
    """Return the row of the run, and the attainment before and after the mix is inverted."""
    later: list[RunFigures] = []

    def judge(run: SimulatedRun, workload: Workload) -> None:
        later.append(figures_of(run, replace(workload, warmup_ns=half_ns(workload))))

    row = run_scenario(scenario, seed, observe=judge, workload=shifted_workload(scenario, seed))
    after = later[0]
    met = row["attainment"] * row["requests"] - (after.attainment or 0.0) * after.requests
    return row, {"before": met / (row["requests"] - after.requests), "after": after.attainment}
