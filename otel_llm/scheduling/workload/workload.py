"""A workload: its specification, and the requests drawn from it by a seed."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.scheduling.output_lengths import EXPECTED_OUTPUT
from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest
from otel_llm.scheduling.workload.arrivals import TraceArrivals
from otel_llm.scheduling.workload.lengths import TraceLengths
from otel_llm.scheduling.workload.tiers import Tier, TierClass, draw_tiers, tier_classes
from otel_llm.slo.classes import SloClass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_llm.scheduling.iteration_profile import EngineProfile
    from otel_llm.scheduling.workload.arrivals import ArrivalProcess
    from otel_llm.scheduling.workload.lengths import LengthDistribution

    Ints = NDArray[np.int64]

DEFAULT_CLASS: Final = "chat"
"""The class of a workload without tiers, with the defaults of an SLO file."""
_ARRIVALS, _INPUT, _OUTPUT, _ROWS, _TIERS = range(5)
"""The random streams of a seed, so that other arrivals leave lengths and tiers as they are."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """The distributions to draw `requests` from; None: as many as the trace of the arrivals has rows.

    `feasible`: a request is promised what an idle instance could keep; those that arrive before `warmup_ns` are served
    and not judged. `expected_output` tokens are what a policy expects of a tier before a request of it is over.
    """

    arrivals: ArrivalProcess
    input: LengthDistribution
    output: LengthDistribution
    requests: int | None = None
    tiers: tuple[Tier, ...] = ()
    feasible: bool = True
    warmup_ns: int = 0
    expected_output: int = EXPECTED_OUTPUT


@dataclass(frozen=True, slots=True)
class Workload:
    """Drawn requests, (R,) int64 each: arrivals in ns, sorted, from 0; tokens; the position of the class.

    `infeasible` (R,) bool: requests that could meet no class.
    """

    arrivals_ns: Ints
    input: Ints
    output: Ints
    class_index: Ints
    classes: tuple[TierClass, ...]
    infeasible: NDArray[np.bool_]
    warmup_ns: int = 0

    def requests(self) -> list[SimulatedRequest]:
        """Return fresh requests for one run."""
        first_ns = np.array([one.slo.deadline.first_ns for one in self.classes], np.int64)
        due_ns = self.arrivals_ns + first_ns[self.class_index]
        columns = (self.arrivals_ns, self.input, self.output, self.class_index, due_ns)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [SimulatedRequest(number, *row) for number, row in enumerate(rows)]


def draw_workload(spec: WorkloadSpec, profile: EngineProfile | None, seed: int) -> Workload:
    """Draw a workload: a function of its arguments.

    Lengths of a trace are in its order if the arrivals are those of a trace and it has enough rows; else rows are
    drawn, for input and output the same. `profile`: only tiers need it.

    Raises:
        ValueError: no number of requests, more of them than a trace of arrivals has rows, or arrivals beyond 31 years.
    """
    count = spec.requests
    if count is None:
        if not isinstance(spec.arrivals, TraceArrivals):
            raise ValueError("the number of requests is missing")
        count = len(spec.arrivals.trace)
    arrivals_ns = spec.arrivals.times(count, _stream(seed, _ARRIVALS))
    in_order = isinstance(spec.arrivals, TraceArrivals)
    inputs, outputs = (
        lengths.in_order(count)
        if isinstance(lengths, TraceLengths) and in_order and len(lengths.column) >= count
        else lengths.draw(count, _stream(seed, _ROWS if isinstance(lengths, TraceLengths) else stream))
        for lengths, stream in ((spec.input, _INPUT), (spec.output, _OUTPUT))
    )
    classes = tier_classes(spec.tiers) or [TierClass(DEFAULT_CLASS, SloClass(DEFAULT_CLASS), Fraction(1))]
    numbers = _stream(seed, _TIERS).integers(0, 1 << 62, count, dtype=np.int64)
    judged = profile if spec.feasible and spec.tiers else None
    chosen, infeasible = draw_tiers(classes, inputs, outputs, judged, numbers)
    return Workload(arrivals_ns, inputs, outputs, chosen, tuple(classes), infeasible, spec.warmup_ns)


def _stream(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng([seed, number])
