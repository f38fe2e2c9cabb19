"""Arrival times: the first request arrives at 0, integer ns, sorted.

Every kind of arrivals has `times`, which raises ValueError if the last request would arrive after 31 years.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from otel_llm.scheduling.workload.trace_file import Trace

    Ints = NDArray[np.int64]

NS_PER_S: Final = 1_000_000_000
LATEST_NS: Final = 10**18
"""31 years, so that sums fit 64 bits."""


@dataclass(frozen=True, slots=True)
class ConstantArrivals:
    """Arrivals at `rate` requests/s, one as long after the other, each rounded to the ns, half up."""

    rate: Fraction

    def times(self, requests: int, draw: np.random.Generator) -> Ints:  # noqa: ARG002
        """Return the arrivals (R,), ns."""
        _check(float(requests * NS_PER_S / self.rate))
        return _divided([number * NS_PER_S for number in range(requests)], self.rate)


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """A Poisson process: gaps are exponential with mean 1 / `rate` seconds."""

    rate: Fraction

    def times(self, requests: int, draw: np.random.Generator) -> Ints:
        """Return the arrivals (R,), ns."""
        return _after(draw.exponential(NS_PER_S / float(self.rate), requests))


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Gamma-distributed gaps with mean 1 / `rate` seconds and a coefficient of variation.

    With a coefficient of 1 it is a Poisson process; above it the arrivals come in bursts.
    """

    rate: Fraction
    cv: float

    def times(self, requests: int, draw: np.random.Generator) -> Ints:
        """Return the arrivals (R,), ns."""
        shape = 1.0 / (self.cv * self.cv)
        return _after(draw.gamma(shape, NS_PER_S / (float(self.rate) * shape), requests))


@dataclass(frozen=True, slots=True)
class TraceArrivals:
    """The first arrivals of a trace: its first row is at 0, times are divided by `speed`, half up."""

    trace: Trace
    speed: Fraction

    def times(self, requests: int, draw: np.random.Generator) -> Ints:  # noqa: ARG002
        """Return the arrivals (R,), ns; raises ValueError if the trace has fewer rows."""
        if requests > len(self.trace):
            raise ValueError(f"{requests} requests, but the trace has {len(self.trace)} rows")
        since = self.trace.times_ns[:requests] - self.trace.times_ns[0]
        _check(float(since[-1] / self.speed) if requests else 0.0)
        return since if self.speed == 1 else _divided(since.tolist(), self.speed)


ArrivalProcess = ConstantArrivals | PoissonArrivals | GammaArrivals | TraceArrivals


def _after(gaps: NDArray[np.float64]) -> Ints:
    gaps[:1] = 0.0
    _check(float(gaps.sum()))
    arrivals: Ints = np.cumsum(np.rint(gaps).astype(np.int64))
    return arrivals


def _divided(times_ns: list[int], by: Fraction) -> Ints:
    """Divide times, exactly, each rounded half up."""
    numerator, denominator = by.as_integer_ratio()
    return np.array([(2 * time * denominator + numerator) // (2 * numerator) for time in times_ns], np.int64)


def _check(last_ns: float) -> None:
    if not last_ns <= LATEST_NS:
        raise ValueError("the last request would arrive after more than 31 years")
