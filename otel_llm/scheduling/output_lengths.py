"""The output lengths of requests, predicted from those that finished (tokens). No I/O, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable
    from random import Random

EXPECTED_OUTPUT: Final = 256
"""The expected output of a kind before any request of it finished."""
PRIOR_REQUESTS: Final = 200
"""The expected output counts as that of this number of finished requests (`OutputLengths.mean`)."""


@dataclass(slots=True)
class _Seen:
    """Count, sum, mean and sum of squared deviations, one value at a time: Welford's algorithm."""

    count: int = 0
    total: int = 0
    mean: float = 0.0
    squares: float = 0.0


class OutputLengths:
    """Predict the output length of a request from those of its kind that finished.

    `expected`: of a kind before one finished. Memory is constant for each kind; the caller bounds their number: kinds
    are tiers or SLO classes, not prompts.
    """

    def __init__(self, expected: int = EXPECTED_OUTPUT) -> None:
        self._expected = expected
        self._seen: dict[Hashable, _Seen] = {}

    def observe(self, kind: Hashable, output: int) -> None:
        """Add the output length of a finished request.

        Raises: ValueError for a length below 1.
        """
        _check(output)
        seen = self._seen.setdefault(kind, _Seen())
        seen.count += 1
        seen.total += output
        deviation = output - seen.mean
        seen.mean += deviation / seen.count
        seen.squares += deviation * (output - seen.mean)

    def mean(self, kind: Hashable) -> int:
        """Return the mean, with the prior of `PRIOR_REQUESTS` requests, rounded half up: PolyServe, section 4.5."""
        seen = self._seen.get(kind)
        if seen is None:
            return self._expected
        total, count = seen.total + self._expected * PRIOR_REQUESTS, seen.count + PRIOR_REQUESTS
        return (2 * total + count) // (2 * count)

    def distribution(self, kind: Hashable) -> tuple[float, float] | None:
        """Return mean and sample standard deviation (0.0 for a single length), None if nothing was seen."""
        seen = self._seen.get(kind)
        if seen is None:
            return None
        return seen.mean, math.sqrt(seen.squares / (seen.count - 1)) if seen.count > 1 else 0.0

    def draw(self, kind: Hashable, draw: Random) -> int:
        """Draw a length from the Gaussian of the kind, at least 1: arXiv 2504.14966, section 5.1."""
        distribution = self.distribution(kind)
        return self._expected if distribution is None else max(1, round(draw.gauss(*distribution)))


def vary(output: int, error: float, draw: Random) -> int:
    """Return a length that is known but for an error: within `error` (a share of it), evenly, at least 1 (section 5.3).

    Raises: ValueError for a length below 1, or an error that is negative or not finite.
    """
    _check(output)
    if not (math.isfinite(error) and error >= 0.0):
        raise ValueError(f"error is {error!r}; give a share of the length, such as 0.05")
    return max(1, round(output * draw.uniform(1.0 - error, 1.0 + error)))


def _check(output: int) -> None:
    if output < 1:
        raise ValueError(f"output is {output!r}; give a number of tokens, at least 1")
