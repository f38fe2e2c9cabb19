"""How long a step of the engine takes: the measured table, and the line that is fitted to it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class Sample(NamedTuple):
    """One measured step (or the mean of a few in a row): a row of `samples.csv`.

    `round`: of the measurement; `decodes`: replies that get a token in it; `prefill`: tokens of a new prompt that it
    takes in; `prompt`: of each of those replies; `context`: tokens that they have in the cache, all together.
    """

    round: int
    decodes: int
    prefill: int
    prompt: int
    context: int
    step_ms: float


class Point(NamedTuple):
    """One kind of step and what it took, in ms: a row of `steps.csv`.

    `quiet_ms` is what a fifth of the samples of all rounds stay below: what else runs on the machine only adds to a
    step. `context` is that of the sample at the fifth. Percentiles are nearest rank.
    """

    decodes: int
    prefill: int
    prompt: int
    context: int
    rounds: int
    samples: int
    quiet_ms: float
    median_ms: float
    p90_ms: float


@dataclass(frozen=True, slots=True)
class StepModel:
    """A step takes `base_ms`, and more for each reply that decodes, each token taken in, each token in the cache."""

    base_ms: float
    decode_ms: float
    prefill_ms: float
    context_ms: float

    def ns(self, decodes: int, prefill: int, context: int) -> int:
        """Return how long a step takes, in whole ns, so that the same comes out everywhere."""
        more = decodes * self.decode_ms + prefill * self.prefill_ms + context * self.context_ms
        return round((self.base_ms + more) * 1e6)


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted model and how well it fits: `r_squared` and residuals of the points, in ms and as shares."""

    model: StepModel
    points: int
    r_squared: float
    rms_ms: float
    mean_off: float
    most_off: float

    def words(self) -> dict[str, float | int | dict[str, float]]:
        """Return it as `fit.json` has it."""
        return asdict(self)


QUIET: Final = 0.2
DIGITS: Final = 6
"""Decimals of the fitted numbers, so that they are the same on every machine."""


def points(samples: Sequence[Sample]) -> list[Point]:
    """Return the table: a row for each kind of step."""

    def kind(one: Sample) -> tuple[int, int, int]:
        return one.prefill, one.prompt, one.decodes

    found = []
    for (prefill, prompt, decodes), group in groupby(sorted(samples, key=kind), kind):
        mine = sorted(group, key=lambda one: one.step_ms)
        quiet, median, slow = (mine[math.ceil(share * len(mine)) - 1] for share in (QUIET, 0.5, 0.9))
        rounds = len({one.round for one in mine})
        times_ms = (quiet.step_ms, median.step_ms, slow.step_ms)
        found.append(Point(decodes, prefill, prompt, quiet.context, rounds, len(mine), *times_ms))
    return found


def fit(table: Sequence[Point]) -> Fit:
    """Fit the model to the quiet times by least squares of the relative residuals: short steps count like long ones."""
    taken = np.array([[1, one.decodes, one.prefill, one.context] for one in table], float)
    quiet_ms = np.array([one.quiet_ms for one in table])
    found = np.linalg.lstsq(taken / quiet_ms[:, None], np.ones(len(table)), rcond=None)[0]
    model = StepModel(*(round(float(one), DIGITS) for one in found))
    fitted_ms = taken @ np.array([model.base_ms, model.decode_ms, model.prefill_ms, model.context_ms])
    left_ms = quiet_ms - fitted_ms
    spread = float(((quiet_ms - quiet_ms.mean()) ** 2).sum())
    return Fit(
        model,
        len(table),
        round(1 - float((left_ms**2).sum()) / spread, DIGITS),
        round(float(np.sqrt((left_ms**2).mean())), DIGITS),
        round(float(np.abs(left_ms / quiet_ms).mean()), DIGITS),
        round(float(np.abs(left_ms / quiet_ms).max()), DIGITS),
    )
