"""Run a scenario, and compare the runs of a sweep by their objective."""

from __future__ import annotations

from dataclasses import asdict
from random import Random
from typing import TYPE_CHECKING, Any

from otel_llm.rules.files.yamlfile import ConfigError
from otel_llm.scheduling.scenario.figures import figures_of
from otel_llm.scheduling.scenario.sweep import LOADS
from otel_llm.scheduling.simulator.engine import simulate
from otel_llm.scheduling.simulator.ordering import ORDERS
from otel_llm.scheduling.simulator.placing import PLACEMENTS
from otel_llm.scheduling.simulator.polyserve_placing import PolyServePlacement
from otel_llm.scheduling.workload.workload import draw_workload
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.scheduling.scenario.scenario import Objective, Scenario
    from otel_llm.scheduling.scenario.sweep import PlannedRun
    from otel_llm.scheduling.simulator.engine import SimulatedRun
    from otel_llm.scheduling.simulator.placing import Placement
    from otel_llm.scheduling.workload.workload import Workload


def run_scenario(
    scenario: Scenario,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
    observe: Callable[[SimulatedRun, Workload], None] | None = None,
) -> dict[str, Any]:
    """Simulate a scenario; return its row, a function of scenario and seed but for `wall_s` and `decisions_per_s`.

    `progress` is called with the requests that arrived, and all; `observe` with the finished run.

    Raises:
        ConfigError: the arrivals would last more than 31 years.
    """
    begin_ns = monotonic_ns()
    try:
        workload = draw_workload(scenario.workload, scenario.profile, seed)
    except ValueError as error:
        advice = "raise the rate, or lower the number of requests"
        raise ConfigError(scenario.source, None, None, "workload.arrivals", str(error), advice) from None
    requests = workload.requests()
    advance = None if progress is None else (lambda arrived: progress(arrived, len(requests)))
    placement = _placement(scenario, workload, seed)
    run = simulate(requests, scenario.profile, scenario.fleet, placement, advance, order=ORDERS[scenario.order])
    simulated_ns = monotonic_ns() - begin_ns
    row = asdict(figures_of(run, workload))
    simulated_s = row.pop("simulated_s")
    wall_s = (monotonic_ns() - begin_ns) / 1e9
    if observe is not None:
        observe(run, workload)
    return row | {
        "decisions_per_s": run.decisions / (simulated_ns / 1e9) if simulated_ns else None,
        "simulated_s": simulated_s,
        "wall_s": wall_s,
    }


def _placement(scenario: Scenario, workload: Workload, seed: int) -> Placement:
    if scenario.polyserve is None:
        return PLACEMENTS[scenario.placement](Random(seed))  # noqa: S311 - it draws instances
    tpots_ns = [one.slo.deadline.next_ns or 0 for one in workload.classes]
    return PolyServePlacement(scenario.polyserve, tpots_ns, scenario.workload.expected_output)


def load_of(settings: Mapping[str, Any]) -> float | None:
    """Return the load in requests/s that a run's settings name, None where none does."""
    return next((float(settings[key]) for key in LOADS if key in settings), None)


def others_of(settings: Mapping[str, Any]) -> str:
    """Return the settings that are no load, as `KEY=VALUE, ...`."""
    return ", ".join(f"{key}={value}" for key, value in settings.items() if key not in LOADS)


def at_objective(runs: Sequence[PlannedRun], rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return the highest load in requests/s that meets the objective, for each combination of the other settings.

    Between two levels the attainment is taken as linear; None where the lowest load misses. Empty without an
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


def _attained(row: dict[str, Any], objective: Objective) -> float:
    shares = [row["attainment"], *(row["attainment_by_tier"].values() if objective.every_tier else ())]
    return min((share for share in shares if share is not None), default=0.0)


def _crossing(levels: Sequence[tuple[float, float, float]]) -> float | None:
    if levels[0][1] < levels[0][2]:
        return None
    last = max(place for place, (_, share, wanted) in enumerate(levels) if share >= wanted)
    load, share, wanted = levels[last]
    if last + 1 == len(levels):
        return load
    next_load, next_share, _ = levels[last + 1]
    return load + (share - wanted) / (share - next_share) * (next_load - load)
