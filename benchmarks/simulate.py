"""How fast the simulator serves requests on one core, at 20 instances and 90 % attainment or so.

    python benchmarks/simulate.py [--requests N] [--profile NAME] [--placement NAME]

Prompts of up to 8191 and replies of up to 2047 tokens, uniform, in PolyServe's four tiers, Poisson arrivals.
`requests/s`, `iterations/s` and `x real` are those of the simulation alone; `draw s` and `judge s` are the seconds of
drawing the workload and of judging its tokens; `MB`: the memory of the process at its greatest. The public figure is
770 requests/s, 240 times real time: Dynamo's mocker, in Rust, 1,000 requests in 1.3 s (ai-dynamo/dynamo#7543).
"""

from __future__ import annotations

import argparse
import resource
import time
from fractions import Fraction
from random import Random

from otel_llm.scheduling import load_profile
from otel_llm.scheduling.scenario.figures import figures_of
from otel_llm.scheduling.simulator.engine import Fleet, simulate
from otel_llm.scheduling.simulator.placing import PLACEMENTS
from otel_llm.scheduling.workload.arrivals import PoissonArrivals
from otel_llm.scheduling.workload.lengths import UniformLengths
from otel_llm.scheduling.workload.tiers import Tier
from otel_llm.scheduling.workload.workload import WorkloadSpec, draw_workload

MS = 10**6
TIERS = tuple(
    Tier(f"t{tpot}", tpot * MS, (300 * MS, 500 * MS, 1000 * MS), Fraction(share, 10))
    for tpot, share in ((20, 1), (30, 2), (50, 3), (100, 4))
)
INSTANCES = 20
LOADS = {"h200-paper-era": 26, "h200-llama-3.1-8b": 45, "h100-llama-3.1-8b": 30}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000, metavar="N")
    parser.add_argument("--profile", choices=LOADS, action="append", help="all but the H100's where not given")
    parser.add_argument("--placement", choices=PLACEMENTS, default="least_load")
    given = parser.parse_args()
    print(
        f"{'profile':20} {'fleet':14} {'requests/s':>11} {'iterations/s':>13} {'x real':>7} "
        f"{'draw s':>7} {'judge s':>8} {'attained':>9} {'MB':>5}"
    )
    for name in given.profile or ("h200-paper-era", "h200-llama-3.1-8b"):
        for prefill in (0, INSTANCES * 2 // 5):
            measure(name, given.placement, given.requests, prefill)


def measure(name: str, placement: str, requests: int, prefill: int) -> None:
    profile = load_profile(name)
    spec = WorkloadSpec(
        PoissonArrivals(Fraction(LOADS[name])), UniformLengths(1, 8191), UniformLengths(1, 2047), requests, TIERS
    )
    begun = time.perf_counter()
    workload = draw_workload(spec, profile, 0)
    fresh = workload.requests()
    drawn = time.perf_counter()
    run = simulate(fresh, profile, Fleet(INSTANCES, prefill), PLACEMENTS[placement](Random(0)))
    served = time.perf_counter()
    found = figures_of(run, workload)
    judged = time.perf_counter()
    lasted = served - drawn
    iterations = sum(len(one.ends) for one in run.instances)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
    print(
        f"{name:20} {'disaggregated' if prefill else 'colocated':14} {requests / lasted:11,.0f} "
        f"{iterations / lasted:13,.0f} {found.simulated_s / lasted:7,.0f} {drawn - begun:7.2f} {judged - served:8.2f} "
        f"{found.attainment or 0:9.1%} {memory:5,}"
    )


if __name__ == "__main__":
    main()
