"""The variance inflation of correlated requests: how many of them say as much as one independent request.

The variance of a mean of n correlated values is `long-run variance` / n. It is estimated by batch means: the variance
between the means of long blocks, times their length (Law, Simulation modeling and analysis, section 9.5.3). Over the
variance of independent values it is the inflation (Kish's design effect, Survey sampling, 1965).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SCALES: Final = (16, 32, 64)
"""Numbers of blocks: too short ones are still correlated, and few long ones are a noisy estimate."""


def block_means(values: Floats, blocks: int) -> Floats:
    """Return the means (blocks,) of consecutive blocks of equal length; the first values are left over."""
    length = len(values) // blocks
    means: Floats = values[len(values) - length * blocks :].reshape(blocks, length).mean(axis=1)
    return means


def long_run_variance(values: Floats, blocks: int) -> float:
    """Estimate the long-run variance of a series, (N,) float64, by the means of `blocks`; 0 if it is too short."""
    length = len(values) // blocks
    return length * float(block_means(values, blocks).var(ddof=1)) if length else 0.0


def inflation(values: Floats) -> float:
    """Return the variance inflation of a series (N,), at least 1: the greatest estimate of several numbers of blocks.

    It is 1 if the series is constant.
    """
    spread = float(values.var()) if len(values) else 0.0
    return max(1.0, *(long_run_variance(values, blocks) / spread for blocks in SCALES)) if spread > 0 else 1.0


def exceedances(values: Floats, share: float) -> Floats:
    """Return 1 if a value (N,) is among the highest 1 - `share` of all, else 0.

    This is how misses would be correlated if the deadline were such that exactly the objective held: if misses are
    rare, it is known long before theirs.
    """
    return (values > np.quantile(values, share, method="inverted_cdf")).astype(np.float64)
