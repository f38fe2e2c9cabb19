"""The points of the paper's figures 7 to 11 and tables 1 and 2, and those of the shares of the optimum.

A point is the key of a row of its table; its function returns the other columns. The times (`..._ms`) are
those of a processor; all else is a function of the point.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from drawn_jobs import draw_jobs, predicted
from latency_model import DECODE, PREFILL, PROFILE, LatencyModel, fit, samples
from rebuilding import Table
from served_jobs import serve

from otel_llm.scheduling import Plan, anneal, exact, load_profile
from otel_llm.scheduling.annealing import SCHEDULES, Predictor, evaluate, in_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resumed_points import Point
    from served_jobs import Served

    from otel_llm.scheduling import Job
    from otel_llm.scheduling.profiles.profile import Profile

Values = dict[str, str | int | float | None]

PROFILES: Final = {"v100x2": str(PROFILE), "h100": "h100-llama-3.1-8b"}
"""The engine of the paper by its Table 2, and today's."""
BATCHES: Final = (1, 2, 4)
SEARCHES: Final = ("arrival", "shortest", "deadline", "paper", "scaled")
DRAWS: Final = 20
INSTANCES: Final = 200
"""Drawn instances of a share of the optimum."""
MOST_EXACT: Final = 10
MOST_BRUTE: Final = 8
"""Orders of more jobs are not tried one by one: 3.6 million of ten take more than a minute."""
BRUTE_DRAWS: Final = 3
KNOWN: Final = "0"
"""Output lengths with an error of 0."""


@cache
def engine(name: str) -> tuple[Profile, Predictor]:
    """Return a profile, and a predictor that keeps its sums."""
    profile = load_profile(PROFILES[name])
    return profile, Predictor(profile)


def planned(search: str, jobs: Sequence[Job], predictor: Predictor, max_batch: int, seed: int = 0) -> Plan:
    """Return the plan of one search: `arrival`, `shortest`, `deadline`, `exact`, or a cooling schedule by name."""
    order = list(range(len(jobs)))
    if search == "shortest":
        alone_ns = [predictor.times([job]).ends_ns[0] for job in jobs]
        order.sort(key=lambda index: alone_ns[index])
    elif search == "deadline":
        order.sort(key=lambda index: jobs[index].e2e or jobs[index].ttft or 0.0)
    elif search == "exact":
        return exact(jobs, predictor, max_batch)
    elif search != "arrival":
        return anneal(jobs, predictor, max_batch, seed, search)
    return in_order(order, jobs, predictor, max_batch)


def served(point: Point, draw: int) -> Served:
    """Return what the engine makes of the search's plan for one draw."""
    profile, predictor = engine(str(point["profile"]))
    jobs, max_batch = draw_jobs(int(point["jobs"]), f"jobs {draw}"), int(point["max_batch"])
    if point["search"] == "arrival":
        return serve([range(len(jobs))], jobs, profile, max_batch)
    believed = predicted(jobs, str(point["lengths"]), f"lengths {draw}")
    plan = planned(str(point["search"]), believed, predictor, max_batch, draw)
    return serve(plan.batches, jobs, profile, max_batch)


def served_point(point: Point) -> Values:
    """Return G, attainment and latency of a search over all draws, beside those of arrival order."""
    mine = [served(point, draw) for draw in range(DRAWS)]
    arrival = [served({**point, "search": "arrival"}, draw) for draw in range(DRAWS)]
    ratios = [one.g / other.g for one, other in zip(mine, arrival, strict=True) if other.met]
    return {
        "g": fmean(one.g for one in mine),
        "attainment": fmean(one.attainment for one in mine),
        "latency_s": fmean(one.mean_latency_s for one in mine),
        "gain": fmean(one.g for one in mine) / fmean(one.g for one in arrival) - 1,
        "gain_least": min(ratios) - 1,
        "gain_most": max(ratios) - 1,
        "attainment_change": fmean(one.attainment for one in mine) - fmean(one.attainment for one in arrival),
        "latency_change": fmean(one.latency_s for one in mine) / fmean(one.latency_s for one in arrival) - 1,
    }


def cooling_point(point: Point) -> Values:
    """Return how much better than arrival order the predicted objective is, and its share of the optimum."""
    _, predictor = engine(str(point["profile"]))
    max_batch = int(point["max_batch"])
    if point["start"] == "scaled":
        cooling = SCHEDULES["scaled"]
    else:
        cooling = replace(SCHEDULES["paper"], start=float(point["start"]), moves=int(point["moves"]))
    found, before = [], []
    for draw in range(DRAWS):
        jobs = draw_jobs(int(point["jobs"]), f"jobs {draw}")
        found.append(anneal(jobs, predictor, max_batch, draw, cooling).g)
        before.append(planned("arrival", jobs, predictor, max_batch).g)
    levels = sum(1 for _ in cooling.temperatures())
    return {"all_moves": levels * cooling.moves, "g": fmean(found), "gain": fmean(found) / fmean(before) - 1}


def deviation_point(point: Point) -> Values:
    """Return what a wrong coefficient costs: true G of plans made with it, against plans made without."""
    coefficients = {"prefill": PREFILL, "decode": DECODE}
    phase, name = str(point["phase"]), str(point["coefficient"])
    wrong = getattr(coefficients[phase], name) * (1 + float(point["deviation"]))
    coefficients[phase] = replace(coefficients[phase], **{name: wrong})
    true = Predictor(LatencyModel())
    deviating = Predictor(LatencyModel(coefficients["prefill"], coefficients["decode"]))
    found, best = [], []
    for draw in range(DRAWS):
        jobs = draw_jobs(10, f"jobs {draw}")
        search = str(point["search"])
        found.append(evaluate(planned(search, jobs, deviating, 4, draw).batches, jobs, true).g)
        best.append(planned(search, jobs, true, 4, draw).g)
    ratios = [one / other - 1 for one, other in zip(found, best, strict=True)]
    return {"change": fmean(found) / fmean(best) - 1, "change_least": min(ratios), "change_most": max(ratios)}


def instances_point(point: Point) -> Values:
    """Return what scheduling ten jobs on each of several instances one after another takes, and what it gains."""
    profile, predictor = engine(str(point["profile"]))
    max_batch, search = int(point["max_batch"]), str(point["search"])
    mine, arrival, times_ms = [], [], []
    for draw in range(DRAWS):
        jobs = draw_jobs(10, f"jobs {draw}")
        believed = predicted(jobs, KNOWN, f"lengths {draw}")
        begin = time.process_time()
        plans = [planned(search, believed, predictor, max_batch, seed) for seed in range(int(point["instances"]))]
        times_ms.append((time.process_time() - begin) * 1e3)
        mine += [serve(plan.batches, jobs, profile, max_batch).g for plan in plans]
        arrival.append(serve([range(len(jobs))], jobs, profile, max_batch).g)
    return {"gain": fmean(mine) / fmean(arrival) - 1, "search_ms": fmean(times_ms)}


def time_point(point: Point) -> Values:
    """Return the time of one search with single jobs, and its share of the optimum."""
    _, predictor = engine(str(point["profile"]))
    search = str(point["search"])
    shares, times_ms = [], []
    for draw in range(BRUTE_DRAWS if search == "brute force" else DRAWS):
        jobs = draw_jobs(int(point["jobs"]), f"jobs {draw}")
        best = exact(jobs, predictor).g  # the sums over decodes are kept before the clock starts
        begin = time.process_time()
        plan = _every_order(jobs, predictor) if search == "brute force" else planned(search, jobs, predictor, 1, draw)
        times_ms.append((time.process_time() - begin) * 1e3)
        shares.append(plan.g / best)
    return {"share": fmean(shares), "search_ms": fmean(times_ms)}


def fit_point(point: Point) -> Values:
    """Return the coefficients of equation 14 or 15 by least squares on the iterations of a profile."""
    found, r_squared = fit(samples(engine(str(point["profile"]))[0], str(point["phase"])))
    # Of a model that is linear the small terms are what rounding leaves.
    values = {name: round(getattr(found, name), 9) + 0.0 for name in ("alpha", "beta", "gamma", "delta")}
    return {**values, "r_squared": r_squared}


def share_point(point: Point, searches: Sequence[str] = (*SEARCHES, "exact")) -> Values:
    """Return the share of the exact optimum (mean, least) and the time of each search over all drawn instances."""
    _, predictor = engine(str(point["profile"]))
    max_batch, count = int(point["max_batch"]), int(point["jobs"])
    shares: dict[str, list[float]] = {search: [] for search in searches}
    times_ms: dict[str, list[float]] = {search: [] for search in searches}
    for draw in range(INSTANCES):
        jobs = draw_jobs(count, f"instance {draw}")
        best = exact(jobs, predictor, max_batch).g  # the sums over decodes are kept before the clock starts
        for search in searches:
            begin = time.process_time()
            found = planned(search, jobs, predictor, max_batch, draw)
            times_ms[search].append((time.process_time() - begin) * 1e3)
            shares[search].append(found.g / best)
    values: Values = {}
    for search in searches:
        if search != "exact":
            values |= {f"{search}_share": fmean(shares[search]), f"{search}_least": min(shares[search])}
    timed = ("paper", "scaled", "exact")
    return values | {f"{search}_ms": fmean(times_ms[search]) for search in timed if search in searches}


def _every_order(jobs: Sequence[Job], predictor: Predictor) -> Plan:
    return max((in_order(order, jobs, predictor) for order in permutations(range(len(jobs)))), key=lambda plan: plan.g)


def _points(**axes: Iterable[Any]) -> list[Point]:
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def _figure_7() -> list[Point]:
    searches = ("arrival", "shortest", "paper", "scaled", "exact")
    every = _points(
        profile=PROFILES, max_batch=BATCHES, jobs=(4, 6, 8, 10, 20, 40), lengths=("gaussian", KNOWN), search=searches
    )
    return [
        one
        for one in every
        if (one["search"] != "exact" or int(one["jobs"]) <= MOST_EXACT)
        and (one["search"] != "arrival" or one["lengths"] == KNOWN)
    ]


def _figure_8() -> list[Point]:
    cases = ((10, 1), (20, 2), (40, 4))
    coolings: list[tuple[str | int, int]] = [*product((100, 200, 500), (50, 100, 200)), ("scaled", 100)]
    return [
        {"profile": profile, "jobs": jobs, "max_batch": max_batch, "start": start, "moves": moves}
        for profile, (jobs, max_batch), (start, moves) in product(PROFILES, cases, coolings)
    ]


def _figure_9() -> list[Point]:
    searches = ("paper", "scaled")
    errors, fewer = ("gaussian", "0.1", "0.05", "0.025", KNOWN), ("gaussian", "0.1", "0.025")
    return [
        *_points(profile=("v100x2",), max_batch=BATCHES, jobs=(10, 40), lengths=errors, search=searches),
        *_points(profile=("h100",), max_batch=(4,), jobs=(40,), lengths=fewer, search=searches),
    ]


def _table_1() -> list[Point]:
    every = _points(profile=PROFILES, jobs=(4, 6, 8, 10), search=("paper", "scaled", "exact", "brute force"))
    return [one for one in every if one["search"] != "brute force" or int(one["jobs"]) <= MOST_BRUTE]


TABLES: Final = {
    "figure-7": Table(_figure_7(), served_point),
    "figure-8": Table(_figure_8(), cooling_point),
    "figure-9": Table(_figure_9(), served_point),
    "figure-10": Table(
        _points(
            phase=("prefill", "decode"),
            coefficient=("alpha", "beta", "gamma", "delta"),
            deviation=(-0.2, -0.1, 0.1, 0.2),
            search=("paper", "scaled"),
        ),
        deviation_point,
    ),
    "figure-11": Table(
        _points(profile=PROFILES, max_batch=BATCHES, instances=(1, 2, 4), search=("paper", "scaled")), instances_point
    ),
    "table-1": Table(_table_1(), time_point),
    "table-2": Table(_points(profile=PROFILES, phase=("prefill", "decode")), fit_point),
    "optimum": Table(_points(profile=("v100x2",), max_batch=BATCHES, jobs=(6, 8, 10, 12)), share_point),
}
