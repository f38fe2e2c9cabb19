"""The texts of a load's options: arrivals and lengths."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final

from otel_llm.bench.plan.load_plan import PlanError
from otel_llm.config.durations import exact
from otel_llm.scheduling.workload.arrivals import ConstantArrivals, GammaArrivals, PoissonArrivals
from otel_llm.scheduling.workload.lengths import FixedLength, UniformLengths

if TYPE_CHECKING:
    from otel_llm.scheduling.workload.lengths import LengthDistribution

MOST_LENGTH: Final = 10_000_000
MOST_RATE: Final = Fraction(1_000_000)
MOST_CV: Final = 100.0
_LENGTH_ADVICE: Final = "write a number of tokens as 128, or a range as 64..512"
_ARRIVALS_ADVICE: Final = "write poisson, constant or gamma:2.5"


def rate_of(text: str) -> Fraction:
    """Return a rate in requests/s, exactly. Raises PlanError."""
    try:
        rate = exact(float(text))
    except ValueError:
        rate = Fraction(0)
    if not 0 < rate <= MOST_RATE:
        raise PlanError(f"--rate {text!r}: write requests a second, above 0 and up to {int(MOST_RATE):,}")
    return rate


def arrivals_of(text: str, rate: Fraction) -> ConstantArrivals | PoissonArrivals | GammaArrivals:
    """Return the arrivals at a rate: `poisson`, `constant` or `gamma:CV`. Raises PlanError."""
    if text == "poisson":
        return PoissonArrivals(rate)
    if text == "constant":
        return ConstantArrivals(rate)
    kind, _, number = text.partition(":")
    try:
        cv = float(number) if kind == "gamma" else 0.0
    except ValueError:
        cv = 0.0
    if not 0 < cv <= MOST_CV:
        raise PlanError(f"--arrivals {text!r}: {_ARRIVALS_ADVICE}, its coefficient of variation up to {MOST_CV:g}")
    return GammaArrivals(rate, cv)


def lengths_of(option: str, text: str) -> LengthDistribution:
    """Return the lengths of an option: a number of tokens, or a range with both ends included. Raises PlanError."""
    first, dots, last = text.partition("..")
    try:
        low, high = int(first), int(last if dots else first)
    except ValueError:
        raise PlanError(f"{option} {text!r}: {_LENGTH_ADVICE}") from None
    if not 1 <= low <= high <= MOST_LENGTH:
        raise PlanError(f"{option} {text!r}: lengths rise and are from 1 to {MOST_LENGTH:,} tokens; {_LENGTH_ADVICE}")
    return UniformLengths(low, high) if dots else FixedLength(low)
