"""Control variates: a mean made sharper by a series that is correlated with it, and whose mean is known.

The adjusted mean is mean(Y) - beta mean(Z - E Z), with beta the regression of block means; what remains is the variance
of its residuals (Lavenberg, Welch, A perspective on the use of control variables, Management Science 27, 1981; by
batch means: Nelson, Control variate remedies, Operations Research 38, 1990). Of several series the one with the
strongest correlation counts: more at once would need more blocks.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.bench.capacity.statistics.inflation import block_means

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
    for place, one in enumerate(series):
        means = _centred(block_means(one, blocks))
        spread = float((means * means).sum())
        if spread > 0 and total > 0:
            found[place] = float((means * wanted).sum()) ** 2 / (spread * total)
    return found


def as_strong(found: Floats) -> NDArray[np.intp]:
    """Return the positions of the series that are about as strong as the strongest; empty where none correlates."""
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
    fitted to a calm stretch is uncertain (Lavenberg, Welch, 1981). Infinite where the blocks of the series are equal.
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
