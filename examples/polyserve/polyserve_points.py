"""The points of PolyServe's figures 6 to 9, of its section 5.6, and of its mechanisms switched off in turn.

A point is the key of a row of its table; its function returns the other columns. All but the times are a function of
the point and, if a trace is read, of its file.
"""

from __future__ import annotations

import math
import os
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rebuilding import Table
from shifted_tiers import run_shifted
from timed_placement import placements_per_s

from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resumed_points import Point

    from otel_llm.scheduling.scenario.scenario import Scenario

Values = dict[str, str | int | float | None]
HERE: Final = Path(__file__).parent
SEED: Final = 0
PROFILES: Final = ("h200-paper-era", "h200-llama-3.1-8b")
SHARES: Final = (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
"""Loads as shares of the closed form."""
INSTANCES: Final = 20
OBJECTIVE: Final = 0.9
SEARCHED_AT: Final = 0.8
"""The share at which the budget of CO-Chunk is searched."""


class Trace(NamedTuple):
    """A workload: its scenario, the file of its lengths if they are a trace's, warm-up and judged time in s."""

    scenario: str
    lengths: str | None
    warmup_s: int
    judged_s: int


TRACES: Final = {
    "uniform_4096_1024": Trace("uniform_4096_1024.yaml", None, 80, 40),
    "splitwise": Trace("splitwise.yaml", "azure_2023_conv.csv", 10, 10),
}
SHIFTED: Final = "uniform_4096_1024"
"""The trace of figures 7 to 9."""
DISAGGREGATED: Final = ("fleet.mode=disaggregated", "fleet.prefill=auto")
POLICIES: Final[dict[str, tuple[str, ...]]] = {
    "CO-PolyServe": ("policy.placement=polyserve", "policy.chunking=slack"),
    "CO-PolyServe literal": ("policy.placement=polyserve", "policy.chunking=tpot"),
    "CO-Random": ("policy.placement=random",),
    "CO-Minimal": ("policy.placement=minimal",),
    "CO-Chunk": ("policy.placement=chunk",),
    "CO-LeastLoad": ("policy.placement=least_load",),
    "CO-LMetric": ("policy.placement=lmetric",),
    "PD-PolyServe": ("policy.placement=polyserve", *DISAGGREGATED),
    "PD-Random": ("policy.placement=random", *DISAGGREGATED),
    "PD-Minimal": ("policy.placement=minimal", *DISAGGREGATED),
    "PD-LeastLoad": ("policy.placement=least_load", *DISAGGREGATED),
    "PD-LMetric": ("policy.placement=lmetric", *DISAGGREGATED),
}
"""The settings of each policy; `literal`: chunks by the TPOT, as the paper has them."""
MECHANISMS: Final[dict[str, tuple[str, ...]]] = {
    "all on": (),
    "no load gradient": ("policy.load_gradient=false",),
    "no lazy promotion": ("policy.lazy_promotion=false",),
    "no dynamic chunking": ("policy.dynamic_chunking=false",),
    "no continuous prediction": ("policy.continuous_prediction=false",),
    "no KV margin": ("policy.kv_margin=0",),
}


def traces_folder() -> Path:
    """Return the folder of the public traces: `TRACES`, or `../shared/traces` beside the repository."""
    return Path(os.environ.get("TRACES", HERE.parents[2] / "shared" / "traces"))


def scenario_of(trace: str, profile: str, settings: Sequence[str], load_req_s: float, instances: int) -> Scenario:
    """Return the run of one load: as many requests as arrive in warm-up and judged time."""
    workload = TRACES[trace]
    requests = round(load_req_s * (workload.warmup_s + workload.judged_s))
    chosen = [
        f"profile={profile}",
        f"fleet.instances={instances}",
        f"workload.arrivals={{poisson: {load_req_s}}}",
        f"workload.requests={requests}",
        f"workload.warmup={workload.warmup_s}s",
        *settings,
    ]
    if workload.lengths is not None:
        chosen.append(f"workload.lengths={{trace: {traces_folder() / workload.lengths}}}")
    return load_runs(HERE / workload.scenario, [*chosen, "policy.order=fcfs"])[0].scenario


@cache
def optimum_req_s(trace: str, profile: str) -> float:
    """Return the load that 20 instances carry by the closed form (section 3.5), with three digits."""
    scenario = scenario_of(trace, profile, (), 10.0, INSTANCES)
    return float(f"{run_scenario(scenario, SEED)['optimal_req_s']:.3g}")


@cache
def chunk_budget(trace: str, profile: str) -> int:
    """Return the best static budget at 80 % of the closed form, in tokens of a batch."""
    load = load_of({"trace": trace, "profile": profile, "share": SEARCHED_AT})
    return int(run_scenario(scenario_of(trace, profile, POLICIES["CO-Chunk"], load, INSTANCES), SEED)["budget"])


def settings_of(policy: str, trace: str, profile: str) -> tuple[str, ...]:
    """Return the settings of a policy, those of CO-Chunk with its budget."""
    if policy != "CO-Chunk":
        return POLICIES[policy]
    return (*POLICIES[policy], f"policy.budget={chunk_budget(trace, profile)}")


def load_of(point: Point, instances: int = INSTANCES) -> float:
    """Return the load of a point that has a share of the closed form, in requests/s."""
    optimum = optimum_req_s(str(point["trace"]), str(point["profile"])) * instances / INSTANCES
    return round(float(point["share"]) * optimum, 2)


def row_of(scenario: Scenario) -> Values:
    """Return the columns of a run."""
    return _columns(run_scenario(scenario, SEED))


def _columns(row: dict[str, Any]) -> Values:
    names = ("requests", "infeasible", "attainment", "goodput_req_s", "prefill_instances", "budget", "preemptions")
    columns: Values = {name: row[name] for name in names}
    return {**columns, **row["attainment_by_tier"]}


def load_point(point: Point) -> Values:
    """Return what a policy makes of one load on 20 instances (figure 6)."""
    load = load_of(point)
    trace, profile = str(point["trace"]), str(point["profile"])
    settings = settings_of(str(point["policy"]), trace, profile)
    return {"load_req_s": load, **row_of(scenario_of(trace, profile, settings, load, INSTANCES))}


def shifted_point(point: Point) -> Values:
    """Return what a policy makes of a mix of tiers that is inverted half-way (figure 7)."""
    load = load_of({**point, "trace": SHIFTED})
    settings = settings_of(str(point["policy"]), SHIFTED, str(point["profile"]))
    scenario = scenario_of(SHIFTED, str(point["profile"]), settings, load, INSTANCES)
    row, halves = run_shifted(scenario, SEED)
    return {"load_req_s": load, **_columns(row), **halves}


def cost_point(point: Point) -> Values:
    """Return the instance seconds of a request: of PolyServe with autoscaling, of others on the fewest instances.

    The fewest instances that meet the objective are found by bisection (figure 8).
    """
    trace, profile, load = SHIFTED, str(point["profile"]), float(point["load_req_s"])
    settings = settings_of(str(point["policy"]), trace, profile)
    if "PolyServe" in str(point["policy"]):
        scenario = scenario_of(trace, profile, (*settings, "policy.autoscale=unlimited"), load, 2)
        row = run_scenario(scenario, SEED)
        cost_s = row["instance_seconds"] / len_of(trace, load)
        return {"instances": None, "attainment": row["attainment"], "cost_s": cost_s}

    def attained(instances: int) -> float:
        return float(run_scenario(scenario_of(trace, profile, settings, load, instances), SEED)["attainment"])

    # The closed form is a lower bound.
    low = math.ceil(load / optimum_req_s(trace, profile) * INSTANCES)
    high = fewest(attained, low, 4 * low)
    return {"instances": high, "attainment": attained(high), "cost_s": high / load}


def fewest(attained: Callable[[int], float], low: int, high: int) -> int:
    """Return the least number from `low` that meets the objective, by bisection; `high` if none below does."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if attained(middle) >= OBJECTIVE else (middle + 1, high)
    return high


def fleet_point(point: Point) -> Values:
    """Return what a policy makes of one load on a fleet of some size (figure 9)."""
    instances = int(point["instances"])
    load = load_of({**point, "trace": SHIFTED}, instances)
    settings = POLICIES[str(point["policy"])]
    row = row_of(scenario_of(SHIFTED, str(point["profile"]), settings, load, instances))
    return {"load_req_s": load, **row}


def mechanism_point(point: Point) -> Values:
    """Return what CO-PolyServe makes of one load with a mechanism off."""
    load = load_of(point)
    settings = (*POLICIES[str(point["policy"])], *MECHANISMS[str(point["switch"])])
    return {
        "load_req_s": load,
        **row_of(scenario_of(str(point["trace"]), str(point["profile"]), settings, load, INSTANCES)),
    }


def speed_point(point: Point) -> Values:
    """Return the placements of a second of a processor (section 5.6), at 80 % of the closed form."""
    instances = int(point["instances"])
    load = load_of({**point, "trace": SHIFTED, "share": 0.8}, instances)
    settings = POLICIES[str(point["policy"])]
    scenario = scenario_of(SHIFTED, str(point["profile"]), settings, load, instances)
    return {"load_req_s": load, "placements_per_s": placements_per_s(scenario, SEED)}


def len_of(trace: str, load_req_s: float) -> int:
    """Return the number of requests of a run."""
    return round(load_req_s * (TRACES[trace].warmup_s + TRACES[trace].judged_s))


def _points(**axes: Iterable[Any]) -> list[Point]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


_ERA, _TODAY = PROFILES
_POLICIES: Final = (
    "CO-PolyServe",
    "CO-LMetric",
    "CO-Random",
    "PD-PolyServe",
    "PD-LMetric",
    "CO-PolyServe literal",
    "CO-Chunk",
    "PD-Minimal",
    "CO-Minimal",
    "PD-Random",
)

TABLES: Final = {
    "figure-6": Table(_points(profile=PROFILES, trace=TRACES, policy=_POLICIES, share=SHARES), load_point),
    "mechanisms": Table(
        _points(trace=TRACES, profile=(_ERA,), policy=("CO-PolyServe",), share=(1.0,), switch=MECHANISMS),
        mechanism_point,
    ),
    "figure-7": Table(_points(profile=PROFILES, policy=_POLICIES, share=(0.6, 0.8, 1.0)), shifted_point),
    "figure-8": Table(
        _points(profile=PROFILES, policy=("CO-PolyServe", "CO-Chunk", "PD-PolyServe"), load_req_s=(5, 10, 20)),
        cost_point,
    ),
    "figure-9": Table(
        _points(
            profile=PROFILES,
            instances=(8, 16, 32, 64),
            policy=("CO-PolyServe", "CO-LMetric", "PD-PolyServe", "PD-LMetric"),
            share=(0.6, 0.8, 1.0),
        ),
        fleet_point,
    ),
    "speed": Table(_points(policy=("CO-PolyServe",), profile=(_ERA,), instances=(8, 20, 50, 100)), speed_point),
}
"""The points in the order in which they are computed: what was not run is at the end."""
