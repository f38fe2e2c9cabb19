"""Fit alpha and the shape of its penalty to recorded readers: how strongly waiting drives them away.

The papers say that it can be calibrated (Wang et al., section 4.3) and not how; the models are ours.

**Leaving** (cancellations). A reader may leave at any moment: at a rate b for reasons of their own, and while they wait
at b + beta f'(l), l the idle time so far and f a shape of equation 10. That is a model of cause-specific hazards
(Prentice et al., Biometrics 34, 1978): with f linear the exponential law, quadratic Rayleigh's, exponential Gompertz's.
For a reply that ended otherwise, its reader had not left by then. The log likelihood, with T the time from commit to
end,

    sum over those who left while waiting  log(b + beta f'(l))
    + sum over those who left while reading  log b
    - sum over all  (b T + beta f(l))

**Complaining.** After a reply with idle time l a reader complains with probability 1 - exp(-(b + beta f(l))).

Both are concave in (b, beta), so that there is one maximum. `alpha` = beta times the worth of a lost reader in tokens:
the waiting of l seconds loses 1 - exp(-beta f(l)) of the readers, at most beta f(l), and equation 10 takes alpha f(l)
off the benefit for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, get_args

import numpy as np

from otel_llm.slo.batch.many import penalty_shape
from otel_llm.slo.classes import EXPONENTIAL_CAP_S, Penalty

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.audit.kernel.samples import Bools, Floats

SHAPES: Final[tuple[Penalty, ...]] = get_args(Penalty)
FEWEST_EVENTS: Final = 20
"""Ten for each of two parameters (Peduzzi et al., J. Clinical Epidemiology 49, 1996)."""
CHI2_95: Final = 3.841458820694124
"""The 95 % quantile of chi-squared with one degree of freedom: twice the fall of the log likelihood at the bounds."""
TELLING: Final = 2.0
"""Models whose AIC is within this of the best have substantial support too (Burnham and Anderson, 2002, 2.6)."""


class TooLittleError(ValueError):
    """A recording is too small for a fit; the text says what would suffice."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A log likelihood: sum of weight g(b x0 + beta x1) over the events, less b c0 + beta c1.

    `x0`, `x1`, `weight`: (E,); g is the logarithm, or log(1 - exp(-.)) if `bernoulli`.
    """

    x0: Floats
    x1: Floats
    weight: Floats
    c0: float
    c1: float
    bernoulli: bool = False

    def value(self, base: float, beta: float) -> float:
        """Return the log likelihood, -inf if it has none."""
        eta = base * self.x0 + beta * self.x1
        with np.errstate(divide="ignore"):
            logs = np.log(-np.expm1(-eta)) if self.bernoulli else np.log(eta)
        return float(self.weight @ logs) - base * self.c0 - beta * self.c1

    def slopes(self, base: float, beta: float) -> tuple[float, float]:
        """Return its derivatives by b and by beta."""
        eta = base * self.x0 + beta * self.x1
        with np.errstate(divide="ignore", over="ignore"):
            slope = self.weight / (np.expm1(eta) if self.bernoulli else eta)
        return _dot(slope, self.x0) - self.c0, _dot(slope, self.x1) - self.c1

    def best_base(self, beta: float) -> float:
        """Return the likeliest b >= 0 for this beta."""
        return falling_zero(lambda base: self.slopes(base, beta)[0], float(self.weight.sum()) / self.c0)

    def profile(self, beta: float) -> float:
        """Return the log likelihood at this beta, at the likeliest b."""
        return self.value(self.best_base(beta), beta)


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of one shape.

    `base`: b, a second (a request for complaints); `beta` with its 95 % profile likelihood interval, per unit of f;
    `weight`: Akaike's, the share of the evidence for this shape among those fitted.
    """

    penalty: Penalty
    base: float
    beta: float
    beta_low: float
    beta_high: float
    log_likelihood: float
    aic: float
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Fits:
    """The fits of all shapes, the likeliest first.

    `none_aic`: the AIC of a model in which waiting has no effect. `shown`: whether it has one, that is whether the best
    shape is better than that by more than TELLING.
    """

    fits: tuple[Fit, ...]
    none_aic: float
    events: int
    requests: int

    @property
    def best(self) -> Fit:
        """Return the shape of the lowest AIC."""
        return self.fits[0]

    @property
    def shown(self) -> bool:
        """Tell whether the data show that waiting has an effect at all."""
        return self.none_aic - self.best.aic > TELLING

    @property
    def indistinguishable(self) -> tuple[Penalty, ...]:
        """Return the shapes that the data cannot distinguish from the best one, itself included."""
        return tuple(one.penalty for one in self.fits if one.aic - self.best.aic <= TELLING)


def slope_of(shape: Penalty, idle_s: Floats) -> Floats:
    """Return f'(l) for idle times (R,) in seconds: 1, 2 l, e^l (0 beyond the cap)."""
    if shape == "linear":
        return np.ones_like(idle_s)
    if shape == "quadratic":
        return 2 * idle_s
    return np.asarray(np.where(idle_s < EXPONENTIAL_CAP_S, np.exp(np.minimum(idle_s, EXPONENTIAL_CAP_S)), 0.0))


def fit_leaving(idle_s: Floats, time_s: Floats, left_waiting: Bools, left_reading: Bools) -> Fits:
    """Fit how readers leave; (R,) each: idle time and time from commit to end in seconds, who left waiting or reading.

    Raises:
        TooLittleError: there are too few readers who left while waiting, or none who waited.
    """
    waited = int(left_waiting.sum())
    _enough(waited, "readers who left while they waited")
    if not float(idle_s.sum()) > 0 or not float(time_s.sum()) > 0:
        raise TooLittleError("no reader waited: leaving cannot be compared with waiting")
    others = int(left_reading.sum())
    problems: dict[Penalty, Problem] = {}
    for shape in SHAPES:
        at = slope_of(shape, idle_s[left_waiting])
        problems[shape] = Problem(
            # Those who left while reading have equal terms: one term with their number, none if there are none.
            x0=np.ones(waited + (others > 0)),
            x1=np.append(at, 0.0) if others else at,
            weight=np.append(np.ones(waited), float(others)) if others else np.ones(waited),
            c0=float(time_s.sum()),
            c1=float(penalty_shape(idle_s, shape).sum()),
        )
    return _fits(problems, waited + others, len(idle_s))


def fit_complaints(idle_s: Floats, complained: Bools) -> Fits:
    """Fit how readers complain; (R,) each: idle time in seconds, and who complained.

    Raises:
        TooLittleError: there are too few complaints, or no reader who waited without one.
    """
    count = int(complained.sum())
    _enough(count, "complaints")
    calm = ~complained
    if not float(idle_s[calm].sum()) > 0:
        raise TooLittleError("every reader who waited complained: the data set no upper bound to the effect of waiting")
    problems: dict[Penalty, Problem] = {}
    for shape in SHAPES:
        cost = penalty_shape(idle_s, shape)
        problems[shape] = Problem(
            np.ones(count), cost[complained], np.ones(count), float(calm.sum()), float(cost[calm].sum()), bernoulli=True
        )
    return _fits(problems, count, len(idle_s))


def falling_zero(slope: Callable[[float], float], high: float) -> float:
    """Return the zero of a falling function on [0, high], 0 if it is below already; `high` may be too low.

    Regula falsi as in the Illinois algorithm (Dowell and Jarratt, 1971), with a bisection every third turn, until
    twelve digits agree.
    """
    low, above = 0.0, slope(0.0)
    if not above > 0:
        return 0.0
    below = slope(high)
    while below > 0:
        low, above, high = high, below, 2 * high
        below = slope(high)
    side = 0
    for turn in range(300):
        middle = (low + high) / 2
        if high - low <= 1e-12 * high or middle in (low, high):
            break
        if turn % 3 and math.isfinite(above) and math.isfinite(below):
            middle = min(max(low + (high - low) * above / (above - below), low), high)
        found = slope(middle)
        if found > 0:
            low, above, below = middle, found, below / 2 if side > 0 else below
            side = 1
        else:
            high, below, above = middle, found, above / 2 if side < 0 else above
            side = -1
            if found == 0:
                return middle
    return (low + high) / 2


def _fits(problems: dict[Penalty, Problem], events: int, requests: int) -> Fits:
    found = [_fit(shape, problem, events) for shape, problem in problems.items()]
    some = next(iter(problems.values()))
    none = some.profile(0.0)
    least = min(one.aic for one in found)
    weights = [math.exp((least - one.aic) / 2) for one in found]
    ranked = [replace(one, weight=weight / sum(weights)) for one, weight in zip(found, weights, strict=True)]
    return Fits(tuple(sorted(ranked, key=lambda one: one.aic)), 2 - 2 * none, events, requests)


def _fit(shape: Penalty, problem: Problem, events: int) -> Fit:
    """Return the maximum and the interval in which twice the log likelihood falls by at most CHI2_95."""

    def slope(beta: float) -> float:
        # At the likeliest b the profile's slope is the partial one.
        return problem.slopes(problem.best_base(beta), beta)[1]

    # At the maximum b c0 + beta c1 is the number of events (of complaints: at most).
    beta = falling_zero(slope, events / problem.c1)
    top = problem.profile(beta)

    def above(at: float) -> float:
        return problem.profile(at) - top + CHI2_95 / 2

    low = beta - falling_zero(lambda down: above(beta - down), beta) if above(0.0) < 0 else 0.0
    high = beta + falling_zero(lambda up: above(beta + up), max(beta, 1 / problem.c1))
    return Fit(shape, problem.best_base(beta), beta, low, high, top, 4 - 2 * top)


def _enough(events: int, what: str) -> None:
    if events < FEWEST_EVENTS:
        raise TooLittleError(
            f"{events} {what} are too few to fit a rate and its base: {FEWEST_EVENTS} are wanted; record for longer, "
            "or pass more recordings"
        )


def _dot(slope: Floats, x: Floats) -> float:
    """Return the sum of slope x, with infinity times 0 as 0: a term that does not depend on the parameter."""
    some = x != 0
    return float(slope[some] @ x[some])
