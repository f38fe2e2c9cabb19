"""A run whose mix of tiers is inverted half-way, as in section 5.3: first 10 20 30 40 %, then 40 30 20 10 %."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_llm.scheduling.scenario.running import drawn_workload, run_scenario

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    """Return which requests are in the later half of the judged ones, (R,) bool."""
    judged = np.flatnonzero(workload.arrivals_ns >= workload.warmup_ns)
    return np.arange(len(workload.arrivals_ns)) >= judged[len(judged) // 2]


def run_shifted(scenario: Scenario, seed: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the row of the run, and the attainment before and after the mix is inverted."""
    halves: dict[str, float] = {}

    def judge(run: SimulatedRun, workload: Workload) -> None:
        met, later = met_of(run, workload), second_half(workload)
        judged = workload.arrivals_ns >= workload.warmup_ns
        halves["before"] = float(met[judged & ~later].mean())
        halves["after"] = float(met[judged & later].mean())

    row = run_scenario(scenario, seed, observe=judge, workload=shifted_workload(scenario, seed))
    return row, halves


def met_of(run: SimulatedRun, workload: Workload) -> NDArray[np.bool_]:
    """Return which requests met every deadline, (R,) bool: token i by arrival + TTFT + i TPOT."""
    deadlines = [one.slo.deadline for one in workload.classes]
    met = np.zeros(len(run.requests), bool)
    for request in run.requests:
        if not request.dropped:
            deadline = deadlines[request.tier]
            tokens = np.arange(request.output)
            due_ns = request.arrival_ns + deadline.first_ns + tokens * (deadline.next_ns or 0)
            met[request.number] = bool((run.token_times(request) <= due_ns).all())
    return met
