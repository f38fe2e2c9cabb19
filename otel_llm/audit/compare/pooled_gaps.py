"""Percentiles of the gaps between tokens (ITL) of resampled requests, drawn from their law.

Requests are drawn, and each brings all of its gaps: the share of the gaps up to a value is a ratio of two sums over
requests, which varies about normally with the variance of such a ratio. A percentile is the value at a share drawn from
that law (Woodruff, Confidence Intervals for Medians and Other Position Measures, 1952; Sarndal, Swensson and Wretman,
Model Assisted Survey Sampling, 1992, chapter 5.11). Gaps are counted by ranges of values, 1 % wide; where in its range
a percentile is remains open in its draws.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.batch.gap_counts import ZERO
from otel_llm.slo.quantiles import LOG_RATIO
from otel_llm.slo.ranks import rank

if TYPE_CHECKING:
    from fractions import Fraction

    from otel_llm.audit.kernel.samples import Floats, Sample


class PooledGaps:
    """The gaps of a sample's complete requests, drawn in blocks of `block` consecutive requests."""

    def __init__(self, sample: Sample, block: int) -> None:
        gaps = sample.gaps
        owners = np.repeat(np.arange(len(sample)), np.diff(gaps.offsets))
        kept = sample.sums["incomplete"][owners] == 0
        buckets, self._places = np.unique(gaps.buckets[kept], return_inverse=True)
        self._units = owners[kept] // block
        self._counts = gaps.counts[kept]
        self._upto = np.cumsum(np.bincount(self._places, self._counts, len(buckets)))
        upper = np.minimum(np.exp(buckets * LOG_RATIO), sample.longest_gap_s)
        self._values = np.where(buckets == ZERO, 0.0, upper)

    def __len__(self) -> int:
        return int(self._upto[-1]) if len(self._upto) else 0

    def error(self, share: Fraction) -> float:
        """Return the standard error of the number of gaps up to a percentile, of as many gaps in all.

        Of the two ends of its range the one that varies more: what leaves the range may do so at either.
        """
        at = int(np.searchsorted(self._upto, rank(len(self), share) + 1))
        return max(self._error(at - 1), self._error(at))

    def _error(self, place: int) -> float:
        below = np.bincount(self._units, np.where(self._places <= place, self._counts, 0))
        held = self._upto[place] / len(self) if place >= 0 else 0.0
        deviations = below - held * np.bincount(self._units, self._counts)
        return float(np.sqrt((deviations**2).sum()))

    def ends(self, share: Fraction, level: float) -> bool:
        """Tell whether an interval at this level of confidence ends at a gap, not beyond the longest one."""
        reach = NormalDist().inv_cdf((1 + level) / 2) * self.error(share)
        return rank(len(self), share) + 1 + reach <= len(self)

    def draws(self, share: Fraction, resamples: int, generator: np.random.Generator) -> Floats:
        """Return the percentile in so many resamples (B,), seconds."""
        ranks = rank(len(self), share) + 1 + self.error(share) * generator.standard_normal(resamples)
        places = np.searchsorted(self._upto, np.clip(np.round(ranks), 1, len(self)))
        within = (generator.random(resamples) - 0.5) * LOG_RATIO
        return np.asarray(self._values[places] * np.exp(within), np.float64)
