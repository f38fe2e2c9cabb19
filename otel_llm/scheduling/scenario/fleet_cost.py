"""The closed form of a drawn workload: the mean cost of its requests, and the load that the closed form says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.scheduling.closed_form import Served, ServingCosts
from otel_llm.shared.formatting import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.scheduling.closed_form import Cost
    from otel_llm.scheduling.scenario.scenario import Scenario
    from otel_llm.scheduling.workload.workload import Workload


def mean_cost(scenario: Scenario, workload: Workload) -> Cost | None:
    """Return the mean cost of the requests by the closed form, warm-up included; None if none fits into the KV."""
    tpots_ns = [one.slo.token_time_ns if scenario.workload.tiers else None for one in workload.classes]
    columns = zip(workload.input.tolist(), workload.output.tolist(), workload.class_index.tolist(), strict=True)
    return ServingCosts(scenario.profile).mean(
        Served(tokens, output, tpots_ns[tier]) for tokens, output, tier in columns
    )


def common_optimum(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the load of the closed form if it is one for all runs, in requests/s; None where they differ."""
    found = {row["optimal_req_s"] for row in rows}
    return found.pop() if len(found) == 1 else None


def optimum_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the loads of the closed form in a sentence."""
    loads = sorted({row["optimal_req_s"] for row in rows if row["optimal_req_s"] is not None})
    if not loads:
        return "The closed form has no load: no request fits into the KV of an instance."
    span = number(loads[0]) if len(loads) == 1 else f"{number(loads[0])} to {number(loads[-1])}, by the settings"
    return f"The optimum by the closed form, in requests/s: {span}."
