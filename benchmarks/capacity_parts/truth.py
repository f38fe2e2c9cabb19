"""The true capacity of a case: the rate at which long simulated runs meet the objective, with its standard error."""

from __future__ import annotations

import math
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from capacity_parts.cases import Case

GOAL: Final = 0.9
MOST_ERROR: Final = 0.002
"""The standard error, as a share of the rate, with which a truth is known well enough."""
RUN_REQUESTS: Final = 200_000
FEWEST_RUNS: Final = 8
"""Of fewer runs the standard error itself is not known."""
STEP: Final = 1.001
"""How close bisection comes to the capacity of one run."""
NEAR: Final = 1.04
FIRST_SEED: Final = 10**6
"""No search has the random numbers of these runs."""


class Truth(NamedTuple):
    """A rate in requests/s, its standard error as a share of it, and the runs (of RUN_REQUESTS) that it is from."""

    rate: float
    error: float
    runs: int


def truth_of(case: Case) -> Truth:
    """Return the mean capacity of independent long runs: as many as its standard error asks for.

    The capacity of a run is found by bisection, with the same random numbers at each rate.
    """
    near = _capacity_of_run(case, FIRST_SEED, case.bottom, case.top)
    found: list[float] = []
    while True:
        seed = FIRST_SEED + 1 + len(found)  # the run that has found `near` is not counted
        found.append(_capacity_of_run(case, seed, *_bracket(case, seed, near)))
        if len(found) >= FEWEST_RUNS:
            rate = fmean(found)
            error = stdev(found) / math.sqrt(len(found)) / rate
            if error <= MOST_ERROR:
                return Truth(rate, error, len(found))


def _bracket(case: Case, seed: int, near: float) -> tuple[float, float]:
    """Return two rates around a run's capacity."""
    low, high = near / NEAR, near * NEAR
    while not _holds(case, low, seed):
        low, high = low / NEAR, low
    while _holds(case, high, seed):
        low, high = high, high * NEAR
    return low, high


def _capacity_of_run(case: Case, seed: int, low: float, high: float) -> float:
    while high / low > STEP:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _holds(case, middle, seed) else (low, middle)
    return math.sqrt(low * high)


def _holds(case: Case, rate: float, seed: int) -> bool:
    return case.attainment(rate, RUN_REQUESTS, seed) >= GOAL
