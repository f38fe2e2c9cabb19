"""The output-length predictor (section 5.1): a Gaussian of the lengths seen, by kind of request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


@dataclass(slots=True)
class _Moments:
    """Count, mean and sum of squared deviations, one value at a time: Welford's algorithm."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0


class OutputLengths:
    """Predict the output length of a request from those of its kind that finished (tokens).

    Memory is constant for each kind. What bounds the kinds is up to the caller: SLO classes, not prompts.
    """

    def __init__(self) -> None:
        self._seen: dict[str, _Moments] = {}

    def observe(self, kind: str, output: int) -> None:
        """Add the output length of a finished request.

        Raises: ValueError for a length below 1.
        """
        _check(output)
        seen = self._seen.setdefault(kind, _Moments())
        seen.count += 1
        deviation = output - seen.mean
        seen.mean += deviation / seen.count
        seen.squares += deviation * (output - seen.mean)

    def distribution(self, kind: str) -> tuple[float, float] | None:
        """Return mean and sample standard deviation (tokens; 0.0 for a single length), None if nothing was seen."""
        seen = self._seen.get(kind)
        if seen is None:
            return None
        return seen.mean, math.sqrt(seen.squares / (seen.count - 1)) if seen.count > 1 else 0.0

    def predict(self, kind: str, draw: Random) -> int | None:
        """Draw a length from the distribution of the kind (tokens, at least 1), None if nothing was seen."""
        distribution = self.distribution(kind)
        return None if distribution is None else max(1, round(draw.gauss(*distribution)))


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
