"""The expected output of a tier: the mean of what was over, with a prior."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.scheduling.polyserve.settings import PRIOR_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Sequence


class OutputLengths:
    """The mean output of each tier in tokens; `expected` counts as the output of `PRIOR_REQUESTS` requests."""

    __slots__ = ("_means", "_requests", "_sums")

    def __init__(self, tiers: int, expected: int) -> None:
        self._sums = [expected * PRIOR_REQUESTS] * tiers
        self._requests = [PRIOR_REQUESTS] * tiers
        self._means = [expected] * tiers

    @property
    def means(self) -> Sequence[int]:
        """Return the mean of each tier, rounded half up, at least 1."""
        return self._means

    def add(self, tier: int, output: int) -> None:
        """Count a request of a tier that is over."""
        total = self._sums[tier] = self._sums[tier] + output
        requests = self._requests[tier] = self._requests[tier] + 1
        self._means[tier] = max(1, (2 * total + requests) // (2 * requests))
