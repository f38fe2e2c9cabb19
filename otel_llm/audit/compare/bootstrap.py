"""Bootstrap intervals of the figures: requests resampled with replacement, by a seed, in bounded memory.

The percentile interval of Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13; two recordings
are resampled independently (its chapter 8.3). If requests close in time share a fate, whole blocks of
consecutive requests are drawn (Carlstein 1986, without overlap). A share seen as 0 or 1 would resample to itself and
claim certainty: its draws are those of Beta(x + 1/2, n - x + 1/2), Jeffreys' interval (Brown, Cai and DasGupta, 2001).

Rates are per second of the original span: the requests and the time in which they were sent are given, and their
results vary. So a count, and requests per second, have no interval.

Percentiles of the gaps between tokens (ITL) are drawn from their law. A request brings all of its gaps: the share of
the gaps up to a value is a ratio of two sums over requests, which varies about normally with the variance of such a
ratio. A percentile is the value at a share drawn from that law (Woodruff, Confidence Intervals for Medians and Other
Position Measures, 1952; Sarndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992, chapter 5.11). Gaps are
counted by ranges of values, 1 % wide; where in its range a percentile is remains open in its draws.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.slo.batch.gap_counts import ZERO
from otel_llm.slo.figures import FIGURES
from otel_llm.slo.quantiles import LOG_RATIO, rank

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.audit.kernel.samples import Floats, Sample
    from otel_llm.slo.figures import Figure

    Ints = NDArray[np.int64]


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
        """Return the percentile of each resample, (B,) float64, seconds."""
        ranks = rank(len(self), share) + 1 + self.error(share) * generator.standard_normal(resamples)
        places = np.searchsorted(self._upto, np.clip(np.round(ranks), 1, len(self)))
        within = (generator.random(resamples) - 0.5) * LOG_RATIO
        return np.asarray(self._values[places] * np.exp(within), np.float64)


FEWEST: Final = 20
"""Requests (or blocks) below which no interval is given: resamples of so few repeat each other."""
RESAMPLES: Final = 1000
FEWEST_RESAMPLES: Final = 100
CELLS: Final = 1_000_000
MOST_BINS: Final = 256
"""The number of ranges of an order that are counted separately, if blocks are drawn."""
GIVEN: Final = frozenset(one.name for one in FIGURES if one.kind == "count" or one.top == "requests")
"""Figures that describe the input: no resample changes them."""
VARYING: Final = tuple(one for one in FIGURES if one.name not in GIVEN)
"""The figures that are resampled."""
LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Drawing:
    """The resampling: how often, from which seed, in blocks of how many consecutive requests, at what level."""

    resamples: int = RESAMPLES
    seed: int = 0
    block: int = 1
    level: float = LEVEL
    cells: int = CELLS
    """Weights held at once, about: it bounds memory, and changes no result but in its last bit (sums are a BLAS's)."""

    def __post_init__(self) -> None:
        if self.resamples < FEWEST_RESAMPLES:
            advice = f"ask for {FEWEST_RESAMPLES} or more (--resamples)"
            raise ValueError(f"{self.resamples} resamples are too few for an interval; {advice}")
        if self.block < 1:
            raise ValueError(f"a block of {self.block} requests is none; 1 draws each request by itself")
        if not 0.5 <= self.level < 1:
            raise ValueError(f"a confidence of {self.level} makes no sense; write a share from 0.5 to below 1, as 0.95")
        if self.seed < 0:
            raise ValueError(f"a seed is not negative, {self.seed} is")

    def generator(self, *names: str) -> np.random.Generator:
        """Return the random numbers for one group, independent of the other groups."""
        return np.random.default_rng([self.seed, *(zlib.crc32(name.encode()) for name in names)])

    def bounds(self, draws: Floats) -> tuple[float, float]:
        """Return the interval of resampled values (B,): nearest rank, without interpolation."""
        tail = (1 - self.level) / 2
        low, high = np.quantile(draws, [tail, 1 - tail], method="inverted_cdf")
        return float(low), float(high)


def resamples(sample: Sample, drawing: Drawing, generator: np.random.Generator) -> dict[str, Floats]:
    """Return the resampled values of every figure that varies, (B,) each, NaN if a resample has none.

    Memory is that of the sample and some MB, whatever the number of resamples.
    """
    found = {figure.name: np.full(drawing.resamples, np.nan) for figure in VARYING}
    if not len(sample):
        return found
    ranks = [figure for figure in VARYING if figure.kind in {"rank", "speed"}]
    orders = {figure.top: _order(sample.ranked[figure.top]) for figure in ranks}
    pooled = [figure for figure in VARYING if figure.kind == "pooled"]
    names = sorted({name for one in VARYING if one not in [*ranks, *pooled] for name in (one.top, one.under)})
    units = -(-len(sample) // drawing.block)
    columns = np.column_stack([sample.sums[name] for name in names])
    if drawing.block == 1:
        sums = resampled_sums(columns, drawing, generator)
        _order_statistics(sample, orders, ranks, generator, found)
    else:
        sums = np.zeros((drawing.resamples, len(names)))
        by_unit = _by_unit(columns, drawing.block)
        binned = {top: _binned(order, units, drawing) for top, order in orders.items()}
        for first, weights in _weights(units, drawing, generator):
            turns = slice(first, first + len(weights))
            sums[turns] = weights @ by_unit
            for figure in ranks:
                order, values = orders[figure.top], sample.ranked[figure.top]
                places = _ranks(weights, order, binned[figure.top], sample.share_of(figure), drawing.block)
                some = places >= 0
                found[figure.name][turns][some] = _shown(figure, values[order[places[some]]])
    at = {name: place for place, name in enumerate(names)}
    for figure in VARYING:
        if figure.kind == "rate":
            if not sample.span_s or not sample.sums[figure.under].any():
                continue
            found[figure.name] = sums[:, at[figure.top]] / sample.span_s
        elif figure.kind in {"share", "mean"}:
            under = sums[:, at[figure.under]]
            np.divide(sums[:, at[figure.top]], under, out=found[figure.name], where=under > 0)
            if figure.kind == "share":
                _widen(sample, figure, units, generator, found[figure.name])
    gaps = PooledGaps(sample, drawing.block)
    for figure in pooled if len(gaps) else ():
        found[figure.name] = gaps.draws(sample.share_of(figure), drawing.resamples, generator)
    return found


def resampled_sums(columns: Floats, drawing: Drawing, generator: np.random.Generator) -> Floats:
    """Return the sums (B, k) of columns (R, k) over the requests of each resample; the rows are in order of start."""
    if not len(columns):
        return np.zeros((drawing.resamples, columns.shape[1]))
    by_unit = _by_unit(columns, drawing.block)
    return np.concatenate([weights @ by_unit for _, weights in _weights(len(by_unit), drawing, generator)])


def too_few(sample: Sample, figure: Figure, drawing: Drawing) -> str | None:
    """Return why a figure has no interval, None if it has one.

    The interval of a percentile q ends at an order statistic; with fewer than log((1 - level) / 2) / log(q) requests
    the highest of them is not high enough (99 %: 368 requests). That of gaps between tokens ends at a gap.
    """
    if figure not in VARYING:
        return "not sampled: it is what was sent"
    known = sample.count(figure)
    wanted = FEWEST
    if figure.kind in {"rank", "speed"}:
        share = sample.share_of(figure)
        side = max(share, 1 - share)
        if side < 1:
            wanted = max(wanted, math.ceil(math.log((1 - drawing.level) / 2) / math.log(side)))
    if known < wanted:
        return f"too few: {known:,} of {wanted:,}"
    if -(-len(sample) // drawing.block) < FEWEST:
        return f"too few blocks: {-(-len(sample) // drawing.block):,} of {FEWEST}"
    if figure.kind == "pooled" and not PooledGaps(sample, drawing.block).ends(sample.share_of(figure), drawing.level):
        return "too few: the interval would end beyond the longest gap"
    return None


def _weights(units: int, drawing: Drawing, generator: np.random.Generator) -> Iterator[tuple[int, Floats]]:
    """Yield how often each of `units` is drawn, (some, units), with the number of the first resample among them."""
    at_once = max(1, drawing.cells // units)
    for first in range(0, drawing.resamples, at_once):
        count = min(at_once, drawing.resamples - first)
        drawn = [np.bincount(generator.integers(0, units, units), minlength=units) for _ in range(count)]
        yield first, np.stack(drawn).astype(np.float64)


def _by_unit(columns: Floats, block: int) -> Floats:
    """Return the sums of columns (R, k) over each block of consecutive requests (units, k)."""
    return np.add.reduceat(columns, np.arange(0, len(columns), block), axis=0)


def _order(values: Floats) -> Ints:
    """Return the positions of the values that are not NaN, in order of value."""
    known = np.flatnonzero(~np.isnan(values))
    return known[np.argsort(values[known], kind="stable")]


def _order_statistics(
    sample: Sample,
    orders: Mapping[str, Ints],
    figures: Sequence[Figure],
    generator: np.random.Generator,
    found: dict[str, Floats],
) -> None:
    """Write the percentiles of resamples of single requests, drawn from their law, without resampling.

    Of K draws from m values in order, the k-th smallest is value ceil(m U), U the k-th smallest of K uniform numbers:
    Beta(k, K - k + 1). K, how many of a resample have a value, is binomial.
    """
    for figure in figures:
        order = orders[figure.top]
        known = len(order)
        share = sample.share_of(figure)
        drawn = generator.binomial(len(sample), known / len(sample), len(found[figure.name]))
        some = drawn > 0
        place = np.maximum(1, -(-drawn[some] * share.numerator // share.denominator))
        uniform = generator.beta(place, drawn[some] - place + 1)
        at = np.clip(np.ceil(uniform * known).astype(np.int64) - 1, 0, known - 1)
        found[figure.name][some] = _shown(figure, sample.ranked[figure.top][order[at]])


def _binned(order: Ints, units: int, drawing: Drawing) -> Floats:
    """Return how many requests of each unit stand in each stretch of an order (units, some)."""
    bins = max(1, min(MOST_BINS, drawing.cells // units, len(order)))
    place = np.arange(len(order)) * bins // max(1, len(order))
    counts = np.bincount(order // drawing.block * bins + place, minlength=units * bins)
    return counts.reshape(units, bins).astype(np.float64)


def _ranks(weights: Floats, order: Ints, binned: Floats, share: Fraction, block: int) -> Ints:
    """Return the position in `order` of each resample's nearest-rank percentile (B,), -1 if it has no value.

    `weights` (B, units): how often each unit was drawn. The range with the rank is found by its counts, the position in
    it from its requests.
    """
    upto = np.cumsum(weights @ binned, axis=1)
    places = np.full(len(weights), -1, np.int64)
    edges = -(-np.arange(binned.shape[1] + 1) * len(order) // binned.shape[1])
    for turn, counts in enumerate(upto):
        total = int(counts[-1])
        if total:
            wanted = max(1, -(-total * share.numerator // share.denominator))
            stretch = int(np.searchsorted(counts, wanted))
            before = counts[stretch - 1] if stretch else 0
            inside = order[edges[stretch] : edges[stretch + 1]]
            drawn = np.cumsum(weights[turn][inside // block])
            places[turn] = edges[stretch] + int(np.searchsorted(drawn, wanted - before))
    return places


def _shown(figure: Figure, value: Any) -> Any:
    return value if figure.kind == "rank" else 1 / value


def _widen(sample: Sample, figure: Figure, units: int, generator: np.random.Generator, draws: Floats) -> None:
    """Replace the draws of a share that is 0 or 1."""
    known = sample.count(figure)
    hits = float(sample.sums[figure.top].sum())
    if known and hits in {0.0, float(known)}:
        # Blocks are independent, requests within one are not.
        trials = min(known, units)
        hits = trials if hits else 0
        draws[:] = generator.beta(hits + 0.5, trials - hits + 0.5, len(draws))
