"""The same requests served and simulated: how far TTFT, ITL and E2E are apart."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from otel_llm.scheduling.simulator.engine import Fleet, simulate
from otel_llm.scheduling.simulator.placing import PLACEMENTS
from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest
from simulator_error_parts.load import Served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.profiles.profile import Profile

FIGURES = ("ttft", "itl", "e2e")
PUBLIC = {"ttft": 0.176, "itl": 0.071, "e2e": 0.067}
"""The best published, BLIS on GPUs: E2E median, ITL median and TTFT mean of runs."""
Values = dict[str, NDArray[np.float64]]


def simulated(requests: Sequence[Served], profile: Profile) -> list[Served]:
    """Serve the requests, in any order, on one simulated engine at the times at which they were sent."""
    order = sorted(range(len(requests)), key=lambda place: requests[place].sent_ns)
    begin_ns = requests[order[0]].sent_ns
    drawn = [
        SimulatedRequest(number, one.sent_ns - begin_ns, one.input, len(one.times_ns))
        for number, one in enumerate(requests[place] for place in order)
    ]
    run = simulate(drawn, profile, Fleet(1), PLACEMENTS["round_robin"](Random(0)))
    times_ns = {place: run.token_times(ours) + begin_ns for place, ours in zip(order, drawn, strict=True)}
    return [Served(one.input, one.sent_ns, times_ns[place].tolist()) for place, one in enumerate(requests)]


def saturation(profile: Profile, lengths: Sequence[tuple[int, int]]) -> float:
    """Return the requests/s of an engine that has them all at once."""
    drawn = [SimulatedRequest(number, 0, *one) for number, one in enumerate(lengths)]
    run = simulate(drawn, profile, Fleet(1), PLACEMENTS["round_robin"](Random(0)))
    return len(lengths) / (run.end_ns / 1e9)


def values_of(requests: Sequence[Served]) -> Values:
    """Return each request's time to its first token, its mean gap (NaN of one token) and its whole time, in s."""
    first = np.array([one.times_ns[0] - one.sent_ns for one in requests]) / 1e9
    whole = np.array([one.times_ns[-1] - one.sent_ns for one in requests]) / 1e9
    gaps = np.array([float(len(one.times_ns) - 1) or np.nan for one in requests])
    return {"ttft": first, "itl": (whole - first) / gaps, "e2e": whole}


def compare(real: Values, ours: Values) -> dict[str, Any]:
    """Return the errors of each figure: |simulated / real - 1| of requests, and that of their means with its sign."""
    return {name: _compared(real[name], ours[name]) for name in FIGURES}


def _compared(real: NDArray[np.float64], ours: NDArray[np.float64]) -> dict[str, float]:
    known = ~np.isnan(real)
    real, ours = real[known], ours[known]
    sizes = np.abs(ours / real - 1)
    return {
        "median": float(np.median(sizes)),
        "p90": float(np.quantile(sizes, 0.9)),
        "of_means": float(ours.mean() / real.mean() - 1),
        "real_median_s": float(np.median(real)),
        "simulated_median_s": float(np.median(ours)),
    }
