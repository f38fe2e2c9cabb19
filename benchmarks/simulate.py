"""How fast the simulator serves requests on one core, at 20 instances and 90 % attainment or so.

    python benchmarks/simulate.py [--requests N] [--profile NAME] [--placement NAME] [--decisions]

Prompts of up to 8191 and replies of up to 2047 tokens, uniform, in PolyServe's four tiers, Poisson arrivals.
`requests/s`, `iterations/s` and `x real` are those of the simulation alone; `draw s` and `judge s` are the seconds of
drawing the workload and of judging its tokens; `MB`: the memory of the process at its greatest. The public figure is
770 requests/s, 240 times real time: Dynamo's mocker, in Rust, 1,000 requests in 1.3 s (ai-dynamo/dynamo#7543).
Times are those of the processor, so that other work on the machine does not count.

With `--decisions` the calls of PolyServe alone are timed, at 8 to 64 instances and a load that grows with them:
`requests/s` are those that it would place on one core (PolyServe, section 5.6: 4,825), batches' budgets left out.
"""

from __future__ import annotations

import argparse
import resource
import time
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING

from otel_llm.scheduling import load_profile
from otel_llm.scheduling.output_lengths import EXPECTED_OUTPUT
from otel_llm.scheduling.placement import POLYSERVE
from otel_llm.scheduling.polyserve.settings import PolyServeSettings
from otel_llm.scheduling.scenario.figures import figures_of
from otel_llm.scheduling.simulator.engine import Fleet, simulate
from otel_llm.scheduling.simulator.placing import PLACEMENTS, Placement
from otel_llm.scheduling.simulator.polyserve_placing import PolyServePlacement
from otel_llm.scheduling.workload.arrivals import PoissonArrivals
from otel_llm.scheduling.workload.lengths import UniformLengths
from otel_llm.scheduling.workload.tiers import Tier
from otel_llm.scheduling.workload.workload import Workload, WorkloadSpec, draw_workload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.scheduling.simulator.instance import Instance
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest

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
    parser.add_argument("--placement", choices=[*PLACEMENTS, POLYSERVE], default="least_load")
    parser.add_argument("--decisions", action="store_true")
    given = parser.parse_args()
    if given.decisions:
        decisions(given.requests)
        return
    print(
        f"{'profile':20} {'fleet':14} {'requests/s':>11} {'iterations/s':>13} {'x real':>7} "
        f"{'draw s':>7} {'judge s':>8} {'attained':>9} {'MB':>5}"
    )
    for name in given.profile or ("h200-paper-era", "h200-llama-3.1-8b"):
        for prefill in (0, INSTANCES * 2 // 5):
            measure(name, given.placement, given.requests, prefill)


def placement_of(name: str, workload: Workload) -> Placement:
    if name == POLYSERVE:
        tpots_ns = [one.slo.deadline.next_ns or 0 for one in workload.classes]
        return TimedPolyServe(PolyServeSettings(), tpots_ns, EXPECTED_OUTPUT)
    return PLACEMENTS[name](Random(0))


class TimedPolyServe(PolyServePlacement):
    """PolyServe, with the time of its placements, if `is_timed`."""

    is_timed = False
    spent_s = 0.0

    def place(self, request: SimulatedRequest, pool: Sequence[Instance], now_ns: int) -> Instance | None:
        if not self.is_timed:
            return super().place(request, pool, now_ns)
        begun = time.process_time()
        try:
            return super().place(request, pool, now_ns)
        finally:
            self.spent_s += time.process_time() - begun

    def retry(self, now_ns: int) -> Iterator[tuple[SimulatedRequest, Instance]]:
        if not self.is_timed:
            yield from super().retry(now_ns)
            return
        placed = super().retry(now_ns)
        while True:
            begun = time.process_time()
            found = next(placed, None)
            self.spent_s += time.process_time() - begun
            if found is None:
                return
            yield found


def decisions(requests: int) -> None:
    """Print how many requests PolyServe would place in a second at several sizes of a fleet."""
    profile = load_profile("h200-paper-era")
    print(f"{'instances':>9} {'load':>5} {'requests/s':>11} {'us/request':>11} {'attained':>9}")
    for instances in (8, 16, 32, 64):
        load = Fraction(LOADS["h200-paper-era"] * instances, INSTANCES) * Fraction(5, 4)
        spec = WorkloadSpec(PoissonArrivals(load), UniformLengths(1, 8191), UniformLengths(1, 2047), requests, TIERS)
        workload = draw_workload(spec, profile, 0)
        placement = placement_of(POLYSERVE, workload)
        assert isinstance(placement, TimedPolyServe)
        placement.is_timed = True
        run = simulate(workload.requests(), profile, Fleet(instances), placement)
        found = figures_of(run, workload)
        print(
            f"{instances:9} {float(load):5.1f} {requests / placement.spent_s:11,.0f} "
            f"{1e6 * placement.spent_s / requests:11,.0f} {found.attainment or 0:9.1%}"
        )


def measure(name: str, placement: str, requests: int, prefill: int) -> None:
    profile = load_profile(name)
    spec = WorkloadSpec(
        PoissonArrivals(Fraction(LOADS[name])), UniformLengths(1, 8191), UniformLengths(1, 2047), requests, TIERS
    )
    begun = time.process_time()
    workload = draw_workload(spec, profile, 0)
    fresh = workload.requests()
    drawn = time.process_time()
    run = simulate(fresh, profile, Fleet(INSTANCES, prefill), placement_of(placement, workload))
    served = time.process_time()
    found = figures_of(run, workload)
    judged = time.process_time()
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
