"""The fluid token rate of recorded requests (Etalon, section 5.1), one request at a time."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.slo.quantiles import rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.slo.classes import Objective

DEFAULT_FLUIDITY: Final = Fraction(9, 10)
DEFAULT_SHARE: Final = Fraction(99, 100)
"""The paper's objective, if a class has none: 99 % of the requests miss at most 10 % of their deadlines."""


class FluidRate(NamedTuple):
    """The smallest TBT target that the share of requests keeps, in ns, and its inverse in tokens/s."""

    tbt_ns: int
    tokens_per_s: float


def targets(objective: Objective) -> tuple[Fraction, Fraction]:
    """Return the fluidity-index and the share of requests for a fluid token rate."""
    fluidity = DEFAULT_FLUIDITY if objective.fluidity_index is None else objective.fluidity_index
    return fluidity, DEFAULT_SHARE if objective.share is None else objective.share


def fluid_tbt_ns(read_ns: Sequence[int], fluidity: Fraction = DEFAULT_FLUIDITY) -> int | None:
    """Return the smallest TBT target, in whole ns from 1, at which the request keeps this fluidity-index.

    `read_ns`: sorted arrivals on any axis. The first token is not judged and has no slack. None for fewer than two
    tokens. The share of misses never grows with the target, so that bisection up to the largest gap finds it.
    """
    if len(read_ns) < 2:
        return None
    low, high = 1, max(1, *(after - before for before, after in pairwise(read_ns)))
    while low < high:
        middle = (low + high) // 2
        met, missed = _deadlines(read_ns, middle)
        if met * fluidity.denominator >= fluidity.numerator * (met + missed):
            high = middle
        else:
            low = middle + 1
    return low


def fluid_token_rate(tbts_ns: Iterable[int], share: Fraction = DEFAULT_SHARE) -> FluidRate | None:
    """Return the fluid token rate of requests from their smallest targets (ns); None if there is none.

    The target is the nearest-rank percentile at `share`: that share of the requests keeps its fluidity-index with it.
    """
    ordered = sorted(tbts_ns)
    if not ordered:
        return None
    tbt_ns = ordered[rank(len(ordered), share)]
    return FluidRate(tbt_ns, 1 / (tbt_ns / 1e9))


def _deadlines(read_ns: Sequence[int], tbt_ns: int) -> tuple[int, int]:
    met = missed = 0
    due = read_ns[0]
    for time in read_ns[1:]:
        due += tbt_ns
        if time <= due:
            met += 1
        else:
            missed += 1 + (time - due) // tbt_ns
            due = time
    return met, missed
