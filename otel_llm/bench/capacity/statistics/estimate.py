"""The estimate of a share from correlated requests: its value, and how many independent requests it is worth."""

from __future__ import annotations

from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_llm.bench.capacity.statistics.inflation import block_means, exceedances, inflation, long_run_variance
from otel_llm.bench.capacity.statistics.student import student_factor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_llm.bench.capacity.statistics.virtual_queue import VirtualQueue

    Floats = NDArray[np.float64]


CHOICE_BLOCKS: Final = 128
"""Series are compared and fitted by shorter blocks than the variance is estimated by, as there are more of them."""
_ALIKE: Final = 0.8
"""Series whose correlation is at least so strong, relative to the strongest, explain the values as well."""


def strengths(values: Floats, series: Floats) -> Floats:
    """Return the squared correlation (Q,) of the block means of `values` (N,) with those of each series (Q, N)."""
    blocks = min(CHOICE_BLOCKS, len(values))
    wanted = _centred(block_means(values, blocks))
    total = float((wanted * wanted).sum())
    found = np.zeros(len(series))
    for index, one in enumerate(series):
        means = _centred(block_means(one, blocks))
        spread = float((means * means).sum())
        if spread > 0 and total > 0:
            found[index] = float((means * wanted).sum()) ** 2 / (spread * total)
    return found


def as_strong(found: Floats) -> NDArray[np.intp]:
    """Return the positions of the series that are about as strong as the strongest; empty if none correlates."""
    best = float(found.max(initial=0.0))
    return np.flatnonzero(found >= _ALIKE * best) if best > 0 else np.empty(0, np.intp)


def slope(values: Floats, series: Floats) -> float:
    """Return the regression of the block means of `values` (N,) on those of a series (N,), which varies."""
    blocks = min(CHOICE_BLOCKS, len(values))
    means = _centred(block_means(series, blocks))
    return float((means * block_means(values, blocks)).sum()) / float((means * means).sum())


def residual_variance(residual: Floats, series: Floats, blocks: int) -> float:
    """Return the variance of the adjusted mean, given the residuals (N,) of the regression on a series (N,).

    With J blocks it is s^2 (1 / J + m^2 / S): s^2 is the variance of the residual block means, m the mean of the
    series, whose true mean is 0, and S the sum of squares of its block means. The second term says that a slope that is
    fitted to a calm stretch is uncertain (Lavenberg, Welch, 1981). Infinite if the blocks of the series are equal.
    """
    means = _centred(block_means(series, blocks))
    spread = float((means * means).sum())
    if spread <= 0:
        return inf
    error = float(block_means(residual, blocks).var(ddof=2))
    return error * (1 / blocks + float(series.mean()) ** 2 / spread)


def _centred(values: Floats) -> Floats:
    centred: Floats = values - values.mean()
    return centred


LEAST_REQUESTS: Final = 100
LEAST_ADJUSTED_REQUESTS: Final = 25
"""No verdict before so many requests for each one that counts as independent; the second with control variates."""
_BLOCK_INFLATIONS: Final = 2.0
"""A block whose mean is nearly independent of the next one's is so many times as long as the inflation."""
LEAST_ESTIMATED: Final = 12
"""The least number of blocks, and so of requests."""
_MOST_BLOCKS: Final = 128
_LEAST_ADJUSTED_BLOCKS: Final = 20
"""A slope that is fitted to fewer blocks explains them too well: what is left is less than the error of the mean."""
_LEAST_STRENGTH: Final = 0.1
"""The squared correlation from which a virtual queue explains the waits or the requests in flight."""
_UNKNOWN_UTILISATION: Final = 0.6
"""If none does, the server may be idle, or the stretch too calm: the load must have been usual for these queues."""


class ShareEstimate(NamedTuple):
    """A share of requests: `value` is adjusted by control variates, `raw` is not.

    `independent`: the number of independent requests that would be as accurate (the effective sample size of Korn,
    Graubard, Confidence intervals for proportions, 1998); `inflation`: how many requests say as much as one of them
    if exactly the objective holds; `enough`: there are enough for a verdict.
    """

    value: float
    raw: float
    independent: float
    inflation: float
    enough: bool


def estimate_share(
    held: Floats,
    waits: Floats,
    in_flight: Floats,
    target: float,
    queues: Sequence[VirtualQueue],
    deviations: Floats,
    level: float,
    *,
    adjust: bool = True,
    least_inflation: float = 1.0,
) -> ShareEstimate:
    """Estimate the share of 1 in `held` (N,), N at least LEAST_ESTIMATED.

    `waits` (N,) and `in_flight` (N,) grow with the load if no request misses yet; `deviations` (Q, N): the series of
    the virtual queues less their means; `level`: the probability at which the estimate is to be judged. Without
    `adjust` the queues say only what correlation to expect. `least_inflation`: what is known of it from elsewhere.
    """
    count = len(held)
    raw = float(held.mean())
    # A calm stretch shows too few misses and too little correlation: if the objective seems to hold, the correlation
    # that is to be expected counts. A bad stretch shows both.
    near = [exceedances(waits, target), exceedances(in_flight, target)] if raw >= target else [held]
    shown = max(inflation(held), inflation(near[0]))
    explaining = [_explaining(strengths(one, deviations), queues) for one in near]
    of_queues = (queues[position].inflation for position in explaining[0])
    expected = max([shown, least_inflation, *map(inflation, near), *of_queues])
    blocks = int(min(_MOST_BLOCKS, max(LEAST_ESTIMATED, count / (_BLOCK_INFLATIONS * expected))))
    variance = max(long_run_variance(held, blocks), _spread(raw, count)) * student_factor(blocks - 1, level) / count
    value, least = raw, LEAST_REQUESTS
    found = strengths(held, deviations)
    if adjust and blocks >= _LEAST_ADJUSTED_BLOCKS and found.max(initial=0.0) > 0:
        position = int(found.argmax())
        by = slope(held, deviations[position])
        residual = held - by * deviations[position]
        adjusted = residual_variance(residual, deviations[position], blocks) * student_factor(blocks - 2, level)
        adjusted += by * by * queues[position].variance
        corrected = min(1.0, max(0.0, float(residual.mean())))
        if 0 < adjusted < variance:
            value, variance, least = corrected, adjusted, LEAST_ADJUSTED_REQUESTS
    # A correction that turns the verdict around says that this probe cannot be trusted yet, whatever its error.
    enough = count >= least * shown and (raw >= target) == (value >= target)
    if max(raw, value) >= target:
        enough &= count >= (LEAST_ADJUSTED_REQUESTS if adjust else LEAST_REQUESTS) * expected
        enough &= not any(deviations[position].mean() < -queues[position].mean / 2 for position in chain(*explaining))
    return ShareEstimate(value, raw, _spread(value, count) / variance, expected, bool(enough))


def _explaining(found: Floats, queues: Sequence[VirtualQueue]) -> list[int]:
    """Return the positions of the queues that correlate with a series; if none does, the less loaded ones."""
    if found.max(initial=0.0) >= _LEAST_STRENGTH:
        return [int(position) for position in as_strong(found)]
    return [position for position, queue in enumerate(queues) if queue.utilisation <= _UNKNOWN_UTILISATION]


def _spread(share: float, count: int) -> float:
    """Return the variance of one request's fate, at least that of one miss among `count`."""
    inside = min(max(share, 1 / count), 1 - 1 / count)
    return inside * (1 - inside) if count > 1 else 0.25
