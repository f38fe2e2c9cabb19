"""Quantiles of Student's t, for variances that are estimated by few blocks."""

from __future__ import annotations

from statistics import NormalDist


def student_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t, from that of the normal (Abramowitz, Stegun, 26.7.5); good from 10 degrees."""
    x = NormalDist().inv_cdf(probability)
    square = x * x
    terms = (
        (square + 1) / 4,
        ((5 * square + 16) * square + 3) / 96,
        (((3 * square + 19) * square + 17) * square - 15) / 384,
        ((((79 * square + 776) * square + 1482) * square - 1920) * square - 945) / 92160,
    )
    factor: float = 1 + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
    return x * factor


def student_factor(freedom: int, level: float) -> float:
    """Return by how much a variance estimated with so many degrees of freedom counts as greater: (t / z) squared.

    With it, a bound of the normal distribution at the probability `level` is that of Student's t.
    """
    return (student_quantile(1 - level, freedom) / NormalDist().inv_cdf(1 - level)) ** 2
