"""Run a scenario, and compare the runs of a sweep by their objective."""

from __future__ import annotations

from dataclasses import asdict, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.scheduling.closed_form import Served, ServingCosts, best_split, optimal_req_s
from otel_llm.scheduling.scenario.figures import RunFigures, figures_of
from otel_llm.scheduling.scenario.sweep import LOADS
from otel_llm.scheduling.simulator.engine import simulate
from otel_llm.scheduling.simulator.ordering import ORDERS, ExpectedOutput, PredictedOrder
from otel_llm.scheduling.simulator.placing import CHUNK, PLACEMENTS
from otel_llm.scheduling.simulator.polyserve_placing import PolyServePlacement
from otel_llm.scheduling.workload.workload import draw_workload
from otel_llm.shared.clock import monotonic_ns
from otel_llm.shared.formatting import number, share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.scheduling.closed_form import Cost
    from otel_llm.scheduling.scenario.scenario import Objective, Scenario
    from otel_llm.scheduling.scenario.sweep import PlannedRun
    from otel_llm.scheduling.simulator.engine import Fleet, SimulatedRun
    from otel_llm.scheduling.simulator.placing import Placement
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest
    from otel_llm.scheduling.workload.workload import Workload


def mean_cost(scenario: Scenario, workload: Workload) -> Cost | None:
    """Return the mean cost of the requests by the closed form, warm-up included; None if none fits into the KV."""
    tpots_ns = [one.slo.token_time_ns if scenario.workload.tiers else None for one in workload.classes]
    columns = zip(workload.input.tolist(), workload.output.tolist(), workload.class_index.tolist(), strict=True)
    return ServingCosts(scenario.profile).mean(
        Served(tokens, output, tpots_ns[tier]) for tokens, output, tier in columns
    )


def common_optimum(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the load of the closed form if it is one for all runs, in requests/s; None if they differ."""
    found = {row["optimal_req_s"] for row in rows}
    return found.pop() if len(found) == 1 else None


def optimum_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the loads of the closed form in a sentence."""
    loads = sorted({row["optimal_req_s"] for row in rows if row["optimal_req_s"] is not None})
    if not loads:
        return "The closed form has no load: no request fits into the KV of an instance."
    span = number(loads[0]) if len(loads) == 1 else f"{number(loads[0])} to {number(loads[-1])}, by the settings"
    return f"The optimum by the closed form, in requests/s: {span}."


LEAST_BUDGET: Final = 256
"""The smallest static budget that is searched, in tokens of a batch; each further one is twice as large."""


class _Done(NamedTuple):
    run: SimulatedRun
    figures: RunFigures
    budget: int | None
    simulated_ns: int


def run_scenario(
    scenario: Scenario,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
    observe: Callable[[SimulatedRun, Workload], None] | None = None,
    workload: Workload | None = None,
) -> dict[str, Any]:
    """Simulate a scenario; return its row, a function of scenario and seed but for `wall_s` and `decisions_per_s`.

    `progress` is called with the requests that arrived, and all; `observe` with the finished run.
    `workload` is served in place of the one that the scenario and the seed draw.

    Raises:
        ConfigError: the arrivals would last more than 31 years.
    """
    begin_ns = monotonic_ns()
    if workload is None:
        workload = drawn_workload(scenario, seed)
    cost = mean_cost(scenario, workload)
    fleet = split_fleet(scenario, cost)
    done = _best_budget(scenario, workload, fleet, seed, progress)
    row = asdict(done.figures)
    simulated_s = row.pop("simulated_s")
    wall_s = (monotonic_ns() - begin_ns) / 1e9
    if observe is not None:
        observe(done.run, workload)
    return row | {
        "prefill_instances": fleet.prefill,
        "budget": done.budget,
        "optimal_req_s": None if cost is None else optimal_req_s(fleet.instances, cost),
        "decisions_per_s": done.run.decisions / (done.simulated_ns / 1e9) if done.simulated_ns else None,
        "simulated_s": simulated_s,
        "wall_s": wall_s,
    }


def drawn_workload(scenario: Scenario, seed: int) -> Workload:
    """Return the workload that the scenario and the seed draw.

    Raises:
        ConfigError: the arrivals would last more than 31 years.
    """
    try:
        return draw_workload(scenario.workload, scenario.profile, seed)
    except ValueError as error:
        advice = "raise the rate, or lower the number of requests"
        raise scenario.file.refuse(("workload", "arrivals"), str(error), advice) from None


def split_fleet(scenario: Scenario, cost: Cost | None) -> Fleet:
    """Return the fleet of a scenario, split by the mean cost of a request if `prefill: auto` says so."""
    fleet = scenario.fleet
    if not scenario.is_split or cost is None:
        return fleet
    return replace(fleet, prefill=best_split(fleet.instances, cost))


def static_budgets(most: int) -> list[int]:
    """Return the budgets that are searched, largest first: `most`, and the powers of two from 256 below it."""
    budgets, budget = [most], LEAST_BUDGET
    while budget < most:
        budgets.insert(1, budget)
        budget *= 2
    return budgets


def _best_budget(
    scenario: Scenario, workload: Workload, fleet: Fleet, seed: int, progress: Callable[[int, int], None] | None
) -> _Done:
    """Simulate the scenario's budget, or each one to search, and return the best: that with the highest attainment.

    Of equal ones the largest is returned.
    """
    budgets: list[int | None] = [scenario.policy.budget]
    if scenario.policy.placement == CHUNK and scenario.policy.budget is None:
        budgets = [*static_budgets(scenario.profile.max_batched_tokens)]
    count = len(workload.arrivals_ns)
    best: _Done | None = None
    for index, budget in enumerate(budgets):
        advance = None
        if progress is not None:
            advance = lambda arrived, before=index * count: progress(before + arrived, len(budgets) * count)  # noqa: E731
        begin_ns = monotonic_ns()
        placement = placement_of(scenario, workload, seed, budget)
        order = order_of(scenario, workload, seed)
        run = simulate(workload.requests(), scenario.profile, fleet, placement, advance, order=order)
        simulated_ns = monotonic_ns() - begin_ns
        done = _Done(run, figures_of(run, workload), budget, simulated_ns)
        if best is None or (done.figures.attainment or 0.0) > (best.figures.attainment or 0.0):
            best = done
    assert best is not None  # noqa: S101 - there is one budget at least
    return best


def placement_of(scenario: Scenario, workload: Workload, seed: int, budget: int | None) -> Placement:
    """Return the placement of a scenario for one run, with what it learns still empty; `budget` is that of a batch."""
    settings = scenario.policy.polyserve()
    if settings is None:
        return PLACEMENTS[scenario.policy.placement](Random(seed), budget)  # noqa: S311 - it draws instances
    tpots_ns = [one.slo.deadline.next_ns or 0 for one in workload.classes]
    return PolyServePlacement(settings, tpots_ns, scenario.workload.expected_output)


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
    return PredictedOrder(
        policy.order,
        profile,
        expected,
        [one.slo.token_time_ns for one in workload.classes],
        window=policy.annealing.window,
        max_batch=policy.annealing.max_batch,
        seed=seed,
        disaggregated=scenario.fleet.prefill > 0,
    )


def load_of(settings: Mapping[str, Any]) -> float | None:
    """Return the load in requests/s that a run's settings name, None if none does."""
    return next((float(settings[key]) for key in LOADS if key in settings), None)


def others_of(settings: Mapping[str, Any]) -> str:
    """Return the settings that are no load, as `KEY=VALUE, ...`."""
    return ", ".join(f"{key}={value}" for key, value in settings.items() if key not in LOADS)


def at_objective(runs: Sequence[PlannedRun], rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the highest load in requests/s that meets the objective, for each combination of the other settings.

    Between two levels the attainment is taken as linear; None if the lowest load misses. Empty without an
    objective and without a load in the sweep.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    for run, row in zip(runs, rows, strict=True):
        objective = run.scenario.objective
        load = load_of(run.settings)
        if objective is None or load is None:
            continue
        found.setdefault(others_of(run.settings), []).append(
            (load, _attained(row, objective), float(objective.attainment))
        )
    return {rest: _crossing(sorted(levels)) for rest, levels in found.items()}


def load_cells(
    runs: Sequence[PlannedRun], rows: Sequence[Mapping[str, Any]], loads: Mapping[str, float | None]
) -> list[tuple[str, str, str]]:
    """Return the loads at the objective as text: settings, requests/s, and the share of the optimum."""
    optima = {others_of(run.settings): row["optimal_req_s"] for run, row in zip(runs, rows, strict=True)}
    return [
        (
            name or "all runs",
            "below the lowest" if load is None else number(load),
            share(None if load is None or optima[name] is None else load / optima[name]),
        )
        for name, load in loads.items()
    ]


def _attained(row: dict[str, Any], objective: Objective) -> float:
    shares = [row["attainment"], *(row["attainment_by_tier"].values() if objective.every_tier else ())]
    return min((share for share in shares if share is not None), default=0.0)


def _crossing(levels: Sequence[tuple[float, float, float]]) -> float | None:
    if levels[0][1] < levels[0][2]:
        return None
    last = max(index for index, (_, share, wanted) in enumerate(levels) if share >= wanted)
    load, share, wanted = levels[last]
    if last + 1 == len(levels):
        return load
    next_load, next_share, _ = levels[last + 1]
    return load + (share - wanted) / (share - next_share) * (next_load - load)
