"""An anytime-valid confidence sequence for a share: the beta-binomial mixture.

The mixture of the likelihood over a Beta prior, divided by the likelihood at the true share, is a martingale that
begins at 1. By Ville's inequality it reaches 1 / alpha at any time with probability at most alpha, however often one
evaluations and whenever one stops (Robbins, Statistical methods related to the law of the iterated logarithm, 1970;
Howard, Ramdas, McAuliffe, Sekhon, Time-uniform, nonparametric, nonasymptotic confidence sequences, 2021, appendix A.4).
Counts may be fractions: correlated requests count as an effective number of independent ones (`inflation`).
"""

from __future__ import annotations

from math import inf, lgamma, log
from typing import Final, NamedTuple

PRIOR_REQUESTS: Final = 60.0
"""The weight of the prior in requests. The sequence is narrowest at about 13 times as many (Howard et al., 3.5)."""
_STEPS: Final = 60


class ShareInterval(NamedTuple):
    """The bounds of a share at some instant, both within 0..1."""

    low: float
    high: float


def log_evidence(held: float, missed: float, share: float, centre: float) -> float:
    """Return the logarithm of the evidence against a true share, given that `held` and `missed` requests are known.

    `centre` is the mean of the prior, within 0..1 without its ends: the share that matters. Infinite if the counts
    are impossible at this share.
    """
    first, second = PRIOR_REQUESTS * centre, PRIOR_REQUESTS * (1 - centre)
    mixture = _log_beta(first + held, second + missed) - _log_beta(first, second)
    if (share <= 0 and held > 0) or (share >= 1 and missed > 0):
        return inf
    return mixture - (held * log(share) if held else 0.0) - (missed * log(1 - share) if missed else 0.0)


def share_interval(held: float, missed: float, centre: float, below: float, above: float) -> ShareInterval:
    """Return bounds that hold at all times together: the share is below `low` with probability at most `below`.

    It is above `high` with probability at most `above`; both within 0..1 without its ends.
    """
    total = held + missed
    if total <= 0:
        return ShareInterval(0.0, 1.0)
    mean = held / total
    low = _bound(held, missed, centre, -log(below), mean, 0.0)
    high = _bound(held, missed, centre, -log(above), mean, 1.0)
    return ShareInterval(low, high)


def _bound(held: float, missed: float, centre: float, limit: float, inside: float, outside: float) -> float:
    """Return the share between `inside` and `outside` at which the evidence reaches the limit, by bisection."""
    if log_evidence(held, missed, outside, centre) < limit:
        return outside
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if log_evidence(held, missed, middle, centre) < limit:
            inside = middle
        else:
            outside = middle
    return outside


def _log_beta(first: float, second: float) -> float:
    return lgamma(first) + lgamma(second) - lgamma(first + second)
