"""How close annealing comes to the optimum, and how long it takes: drawn jobs, beside simple orders.

    python benchmarks/annealing.py [--instances 3] [--jobs 6,8,10,12] [--max-batch 1,2,4] [--seed 0]

Prints, for each number of jobs and largest batch, the share of the optimal objective (mean and least over the
instances) and the time of one search (mean, ms): with the temperatures of the paper (`paper`) and with those in units
of the objective (`scaled`), beside arrival order, shortest first and earliest deadline first, and the time of the
exact optimum. An instance is the paper's mix (section 5.1): half of the jobs are code with 30 s to the end, half are
chat with 10 s to the first token and 50 ms a token; iterations last as its Table 2 says, lengths are lognormal and
below 2,000. `stops at once` counts the instances in which the paper's search ends at its start, as shortest first
meets every target. The sums over decode steps are known before the clock starts; the time of the optimum includes that
of the `scaled` search it begins with.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from functools import partial
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING

from otel_llm.scheduling import Job, Plan, anneal, exact
from otel_llm.scheduling.annealing import Predictor, in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MS = 1_000_000
SEARCHES: dict[str, Callable[..., Plan]] = {
    "paper": partial(anneal, schedule="paper"),
    "scaled": partial(anneal, schedule="scaled"),
    "exact": exact,
}


class Table2:
    """Qwen2.5-7B on two V100, by the coefficients of the paper's Table 2 (ms): eq. 14 for one prompt, and eq. 15."""

    kv_tokens = 200_000
    max_batch = 32

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:  # noqa: ARG002
        length_ms = 0.0
        if decodes:
            length_ms += 0.0002 * kv_tokens + 0.275 * decodes + 0.00088 * kv_tokens / decodes + 15.85
        if chunk:
            length_ms += 0.1 * chunk + 5.7 + 0.01 * chunk + 43.67
        return round(length_ms * MS)


def drawn(count: int, draw: Random) -> list[Job]:
    """Return jobs of the paper's mix, in random order."""
    jobs = []
    for index in range(count):
        prompt, reply = (
            min(1999, 1 + int(draw.lognormvariate(mean, sigma))) for mean, sigma in ((5.0, 1.0), (5.2, 0.8))
        )
        jobs.append(Job(prompt, reply, e2e=30.0) if index % 2 else Job(prompt, reply, ttft=10.0, tpot=0.05))
    draw.shuffle(jobs)
    return jobs


def simple_orders(jobs: Sequence[Job], predictor: Predictor) -> dict[str, list[int]]:
    """Return the orders to compare with: as given, by the predicted time, by the deadline."""
    arrival = range(len(jobs))
    alone_ns = [predictor.times([job]).ends_ns[0] for job in jobs]
    return {
        "fcfs": list(arrival),
        "sjf": sorted(arrival, key=lambda index: alone_ns[index]),
        "edf": sorted(arrival, key=lambda index: jobs[index].e2e or jobs[index].ttft or float("inf")),
    }


def timed(search: Callable[[], Plan]) -> tuple[Plan, float]:
    """Return a plan and the time of its search (ms)."""
    begun = time.perf_counter()
    plan = search()
    return plan, (time.perf_counter() - begun) * 1e3


def compare(count: int, max_batch: int, instances: int, draw: Random) -> str:
    """Return the row of one number of jobs and one largest batch."""
    shares: dict[str, list[float]] = defaultdict(list)
    times_ms: dict[str, list[float]] = defaultdict(list)
    at_once = 0
    for _ in range(instances):
        jobs, predictor = drawn(count, draw), Predictor(Table2())
        optimum = exact(jobs, predictor, max_batch)
        plans = {
            name: in_order(order, jobs, predictor, max_batch) for name, order in simple_orders(jobs, predictor).items()
        }
        at_once += plans["sjf"].met == count
        for name, search in SEARCHES.items():
            plans[name], taken_ms = timed(partial(search, jobs, predictor, max_batch))
            times_ms[name].append(taken_ms)
        for name, plan in plans.items():
            shares[name].append(plan.g / optimum.g)
    columns = [
        f"{fmean(shares[name]):>7.3f} {min(shares[name]):5.3f}" for name in ("fcfs", "sjf", "edf", "paper", "scaled")
    ]
    speeds = [f"{fmean(times_ms[name]):>8.1f}" for name in ("paper", "scaled", "exact")]
    return f"{max_batch:>5}{count:>6}{''.join(columns)}{''.join(speeds)}{at_once:>9}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=3, help="drawn instances of each row")
    parser.add_argument("--jobs", default="6,8,10,12", help="numbers of jobs, at most 16, in batches 12")
    parser.add_argument("--max-batch", default="1,2,4", help="largest batches")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{options.instances} instances a row; share of the optimum: mean and least; time: mean, ms")
    heads = "".join(f"{name:>13}" for name in ("fcfs", "sjf", "edf", "paper", "scaled"))
    print(f"{'batch':>5}{'jobs':>6}{heads}{'paper':>8}{'scaled':>8}{'exact':>8}  stops at once")
    for max_batch in map(int, options.max_batch.split(",")):
        for count in map(int, options.jobs.split(",")):
            print(
                compare(count, max_batch, options.instances, Random(f"{options.seed} {max_batch} {count}")), flush=True
            )


if __name__ == "__main__":
    main()
