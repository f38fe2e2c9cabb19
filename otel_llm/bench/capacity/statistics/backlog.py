"""Does the backlog grow? A test of the slope of the requests in flight, with an error budget over all its evaluations.

If a server is overloaded, the requests in flight grow like a random walk with drift: their increments over
consecutive blocks are nearly independent, and their mean is tested against the growth that is still tolerated.
(Increments of a stable queue are correlated negatively, which makes the test careful.) After a start the requests in
flight grow on any server, until the first ones end: the test begins when the longest time of those in the system is
over, and waits until it is over twice. Later ones do not count there: on an overloaded server they stay ever longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.bench.capacity.statistics.student import student_quantile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TOLERATED_GROWTH: Final = 0.05
"""Growth of the requests in flight that still counts as none, as a share of the rate."""
BLOCKS: Final = 24
_LEAST_REQUESTS: Final = 4 * BLOCKS
_FIRST_REQUESTS: Final = 50
"""Those whose longest time in the system is the start-up."""
_LEAST_WINDOW: Final = 1.0
"""The test needs so much time after the start-up, as a share of it."""


@dataclass(slots=True)
class BacklogTest:
    """Evaluations of the backlog of one probe; the alarm is false with probability at most `alpha` over all evaluations
    together.

    Look k spends 6 alpha / (pi k)^2 (alpha spending: Lan, DeMets, Discrete sequential boundaries, 1983). `slope`: the
    growth at the last evaluation, as a share of the rate; None before there is one.
    """

    alpha: float
    slope: float | None = None
    grows: bool = False
    _looks: int = field(default=0, repr=False)

    def evaluate(self, in_flight: Floats, at: Floats, residence: Floats) -> bool:
        """Return whether the backlog grows, at this evaluation or an earlier one.

        `in_flight` (N,): requests in flight at each intended time `at` (N,), in s from the start of the probe;
        `residence` (N,): the time of each request in the system so far, in s.
        """
        window = _after_start_up(in_flight, at, residence)
        if window is None:
            return self.grows
        length = len(window) // BLOCKS
        marks = (
            window[len(window) - 1 - length * BLOCKS :: length] if length * BLOCKS < len(window) else window[::length]
        )
        growth = np.diff(marks) / length
        self.slope = float(growth.mean())
        self._looks += 1
        level = self.alpha * 6 / (pi * self._looks) ** 2
        error = float(growth.std(ddof=1)) / sqrt(len(growth))
        limit = TOLERATED_GROWTH + student_quantile(1 - level, len(growth) - 1) * error
        self.grows = self.grows or self.slope > limit
        return self.grows


def _after_start_up(in_flight: Floats, at: Floats, residence: Floats) -> Floats | None:
    if len(at) < _LEAST_REQUESTS:
        return None
    longest = float(residence[:_FIRST_REQUESTS].max())
    begin = int(np.searchsorted(at, at[0] + longest))
    if at[-1] - at[0] < (1 + _LEAST_WINDOW) * longest or len(at) - begin < _LEAST_REQUESTS:
        return None
    return in_flight[begin:]
