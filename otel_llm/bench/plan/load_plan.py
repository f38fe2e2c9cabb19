"""The plan of a load: when each request should be sent, and how long its prompt and its reply should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from otel_llm.scheduling.workload.arrivals import ConstantArrivals, GammaArrivals, PoissonArrivals, TraceArrivals
from otel_llm.scheduling.workload.workload import WorkloadSpec, draw_workload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_llm.scheduling.workload.arrivals import ArrivalProcess
    from otel_llm.scheduling.workload.lengths import LengthDistribution
    from otel_llm.scheduling.workload.workload import Workload

    Ints = NDArray[np.int64]

NS_PER_S: Final = 1_000_000_000
MOST_REQUESTS: Final = 10_000_000
CLOSED_ROWS: Final = 4096
"""Lengths that a closed loop without a number of requests repeats."""
_SPARE: Final = 6.0
"""Standard deviations of the number of arrivals that are drawn beyond the mean, so that one draw nearly always does."""


class PlanError(ValueError):
    """A load cannot be planned; the message names the option and the remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadPlan:
    """The planned requests, (R,) int64 each.

    `at_ns`: intended times from the start of the run, sorted; None for a closed loop: row `n % R` is request n's.
    Lengths are in tokens. `first_number`: the number of the first request; a prompt depends on its request's number,
    so that two plans with numbers of their own share no prompt.
    """

    at_ns: Ints | None
    input_tokens: Ints
    output_tokens: Ints
    first_number: int = 0

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def length_ns(self) -> int:
        """Return the last intended time, 0 for a closed loop."""
        return 0 if self.at_ns is None or not len(self.at_ns) else int(self.at_ns[-1])


@dataclass(frozen=True, slots=True)
class LoadShape:
    """What a plan is drawn from.

    `arrivals`: None for a closed loop. The first of `requests` and `duration_ns` that is reached ends the load; with
    neither, a trace ends it.
    """

    arrivals: ArrivalProcess | None
    input: LengthDistribution
    output: LengthDistribution
    requests: int | None = None
    duration_ns: int | None = None


def draw_plan(shape: LoadShape, seed: int, first_number: int = 0) -> LoadPlan:
    """Draw a plan: a function of its arguments. A longer load begins with the arrivals of a shorter one.

    Raises:
        PlanError: no requests, or more than MOST_REQUESTS.
    """
    arrivals = shape.arrivals
    count = shape.requests
    if arrivals is None:
        rows = min(count or CLOSED_ROWS, MOST_REQUESTS)
        drawn = _draw(ConstantArrivals(Fraction(1)), shape, rows, seed)
        return LoadPlan(None, drawn.input, drawn.output, first_number)
    if isinstance(arrivals, TraceArrivals):
        count = min(count or len(arrivals.trace), len(arrivals.trace))
    elif count is None:
        count = _enough(arrivals, shape.duration_ns)
    while True:
        if count > MOST_REQUESTS:
            raise PlanError(f"{count:,} requests are more than {MOST_REQUESTS:,}: shorten the load")
        drawn = _draw(arrivals, shape, count, seed)
        kept = count
        if shape.duration_ns is not None:
            kept = int((drawn.arrivals_ns < shape.duration_ns).sum())
        if kept < count or shape.requests is not None or isinstance(arrivals, TraceArrivals):
            break
        count *= 2
    return LoadPlan(drawn.arrivals_ns[:kept], drawn.input[:kept], drawn.output[:kept], first_number)


def _draw(arrivals: ArrivalProcess, shape: LoadShape, count: int, seed: int) -> Workload:
    try:
        return draw_workload(WorkloadSpec(arrivals, shape.input, shape.output, count), None, seed)
    except ValueError as error:
        raise PlanError(str(error)) from error


def _enough(arrivals: ConstantArrivals | PoissonArrivals | GammaArrivals, duration_ns: int | None) -> int:
    """Return a number of requests whose last one is nearly always beyond the duration."""
    if duration_ns is None:
        raise PlanError("neither --requests nor --duration says when the load ends")
    mean = float(arrivals.rate) * duration_ns / NS_PER_S
    spread = arrivals.cv if isinstance(arrivals, GammaArrivals) else 1.0
    return math.ceil(mean + _SPARE * spread * math.sqrt(mean + 1)) + 2
