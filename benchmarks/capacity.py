"""How often the interval of a capacity search holds the truth: seeds on simulated time, beside point estimates.

    python benchmarks/capacity.py [--seeds 40] [--first-seed 0] [--case md4] [--out capacity.jsonl]
    python benchmarks/capacity.py --table capacity.jsonl

Cases: `md4` (4 slots, service 1 s, wait at most 0.5 s), `md16` (16 slots, 0.3 s), `gamma` (4 slots, arrivals with a
coefficient of variation of 2), `engine` (a batching engine by the simulator: h200-llama-3.1-8b, 20 ms a token),
`bursts` (the same engine, 40 ms a token, cv 2). The truth is the mean rate at which independent runs of 200,000
requests meet the objective (attainment >= 0.9): as many runs as bring its standard error under 0.2 %. `near`: searches
with an end within two standard errors of the truth, which may count on the wrong side. Every search has 30,000
requests. `peers N`: one run of N requests a probe, its point estimate against the objective, doubling and bisection to
5 %. Each line of the file is one search; those that are there are not run again. One process.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from capacity_parts.cases import CASES, Case
from capacity_parts.truth import GOAL, Truth, truth_of

from otel_llm.bench.capacity.capacity_search import SearchPlan, control_queues, find_capacity
from otel_llm.bench.capacity.objective import HELD, parse_objective

BUDGET = 30_000
WAYS = {
    "control variates, 0.05": (0.05, True),
    "control variates, 0.15": (0.15, True),
    "raw, 0.15": (0.15, False),
}
PEERS = (1_000, 3_000, 10_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, metavar="N")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="the rules were adjusted on 0 to 39")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--out", type=Path, default=Path("capacity.jsonl"), metavar="F")
    parser.add_argument("--table", type=Path, metavar="F", help="print the counts of a file, and run nothing")
    given = parser.parse_args()
    if given.table is None:
        measure(given.case or list(CASES), range(given.first_seed, given.first_seed + given.seeds), given.out)
    show(given.table or given.out)


def measure(names: list[str], seeds: range, out: Path) -> None:
    """Run what the file does not hold yet, seed by seed, so that all cases grow together."""
    done = {key_of(row): row for row in rows_of(out)}
    with out.open("a", encoding="utf-8") as file:

        def keep(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()

        plans, queues = {}, {}
        for name in names:
            case = CASES[name]
            if (name, "truth", 0) not in done:
                keep({"case": name, "way": "truth", "seed": 0, **truth_of(case)._asdict()})
            plans[name] = SearchPlan(parse_objective(f"attainment >= {GOAL}"), case.bottom, case.top, budget=BUDGET)
            queues[name] = control_queues(plans[name], case.source(0))
        for seed, name in product(seeds, names):
            for way, (precision, control) in WAYS.items():
                if (name, way, seed) not in done:
                    plan = replace(plans[name], precision=precision, control_variates=control)
                    found = find_capacity(plan, CASES[name].source(seed), queues=queues[name])
                    row = {"low": found.low, "high": found.high, "decided": found.decided, "why": found.why}
                    keep({"case": name, "way": way, "seed": seed, "requests": found.spent, **row})
            for requests in PEERS:
                if (name, f"peers {requests:,}", seed) not in done:
                    low, high, spent = as_peers(CASES[name], requests, seed)
                    row = {"low": low, "high": high, "decided": True, "requests": spent}
                    keep({"case": name, "way": f"peers {requests:,}", "seed": seed, **row})


def as_peers(case: Case, requests: int, seed: int) -> tuple[float, float, int]:
    """Search as the peers do: one run a probe, from the bottom by doubling, then bisection."""
    source, spent = case.source(seed), 0

    def holds(rate: float) -> bool:
        nonlocal spent
        probe = source.begin(rate, requests)
        seen = probe.observe(requests)
        assert seen is not None
        spent += requests
        fates = seen.fates[0, seen.warm_up :]
        return bool((fates == HELD).mean() >= GOAL) if len(fates) else False

    low = high = math.sqrt(case.bottom * case.top)
    if holds(low):
        while holds(high := 2 * low):
            low = high
    else:
        while not holds(low := high / 2):
            high = low
    while high / low > 1.05:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high, spent


def key_of(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["case"], row["way"], row["seed"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def show(path: Path) -> None:
    rows = rows_of(path)
    truths = {row["case"]: Truth(row["rate"], row["error"], row["runs"]) for row in rows if row["way"] == "truth"}
    for case, truth in truths.items():
        print(f"{case}: {truth.rate:.3f} requests/s, standard error {truth.error:.2%} ({truth.runs} runs)")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["way"] != "truth":
            groups[row["case"], row["way"]].append(row)
    heads = f"{'seeds':>5} {'hold':>5} {'near':>5} {'decided':>8} {'of them hold':>13} {'width':>6} {'requests':>9}"
    print(f"{'case':8} {'way':24} {heads}")
    for (case, way), found in groups.items():
        print(f"{case:8} {way:24} {counts(found, truths[case])}")


def counts(found: list[dict[str, Any]], truth: Truth) -> str:
    """Return the columns of a case's searches of one way."""
    good = [(row["low"] or 0) <= truth.rate <= (row["high"] or math.inf) for row in found]
    ends = [[row[end] for end in ("low", "high") if row[end] is not None] for row in found]
    near = sum(any(abs(end / truth.rate - 1) <= 2 * truth.error for end in both) for both in ends)
    decided = [row["decided"] for row in found]
    right = sum(one and other for one, other in zip(good, decided, strict=True))
    widths = [high / low - 1 for low, high in (both for both in ends if len(both) == 2)]
    width = f"{np.median(widths):6.3f}" if widths else "     -"
    spent = np.mean([row["requests"] for row in found])
    return f"{len(found):5} {sum(good):5} {near:5} {sum(decided):8} {right:13} {width} {spent:9,.0f}"


if __name__ == "__main__":
    main()
