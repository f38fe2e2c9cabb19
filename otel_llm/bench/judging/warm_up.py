"""How much of the beginning of a finished run is warm-up: MSER-5.

Source: White, "An effective truncation heuristic for bias reduction in simulation output", Simulation 69(6), 1997.
Batches of five: White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for simulation",
Winter Simulation Conference 2000.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH: Final = 5
FEWEST_BATCHES: Final = 10
"""A shorter series is not cut: its means say too little."""


def mser5(values: Sequence[float]) -> int | None:
    """Return how many of the first values to cut: those whose loss makes the error of the mean of the rest smallest.

    With batch means Y_1 .. Y_b, d batches are cut where sum over j > d of (Y_j - mean)^2 / (b - d)^2 is least, d from 0
    to b / 2. None where the least is at b / 2: the series has not settled. A rest shorter than a batch is left out.
    """
    batches = len(values) // BATCH
    if batches < FEWEST_BATCHES:
        return 0
    means = np.asarray(values[: batches * BATCH], np.float64).reshape(batches, BATCH).mean(axis=1)
    means -= means[-1]  # equal batches are then 0, without rounding
    left = np.arange(1, batches + 1, dtype=np.float64)[::-1]
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means * means)[::-1])[::-1]
    errors = np.maximum(squares - sums * sums / left, 0.0) / (left * left)
    half = batches // 2
    cut = int(np.argmin(errors[: half + 1]))
    return None if cut == half else cut * BATCH
