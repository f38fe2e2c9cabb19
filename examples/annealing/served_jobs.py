"""What an engine makes of a plan: the jobs on a simulated instance with continuous batching, judged by their targets.

As in the paper (section 5.1), the engine serves in order of arrival and decides about its batches itself. Without the
scheduler all jobs are sent at once; with it they are sent in the plan's order, 0.1 ms between two batches.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.scheduling.simulator.engine import Fleet, simulate
from otel_llm.scheduling.simulator.placing import PLACEMENTS
from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling import Job
    from otel_llm.scheduling.profiles.profile import Profile

BETWEEN_BATCHES_NS: Final = 100_000
NS: Final = 1_000_000_000


class Served(NamedTuple):
    """Jobs that met their targets, all jobs, and the sum of their end-to-end latencies (s)."""

    met: int
    jobs: int
    latency_s: float

    @property
    def g(self) -> float:
        """Return the objective, 1/s (equation 2)."""
        return self.met / self.latency_s

    @property
    def attainment(self) -> float:
        """Return the share that met."""
        return self.met / self.jobs

    @property
    def mean_latency_s(self) -> float:
        """Return the mean end-to-end latency."""
        return self.latency_s / self.jobs


def serve(batches: Sequence[Sequence[int]], jobs: Sequence[Job], profile: Profile, max_batch: int) -> Served:
    """Return what becomes of the jobs, in batches of indexes into them, with `max_batch` at once."""
    order = [(index, place) for place, batch in enumerate(batches) for index in batch]
    requests = [
        SimulatedRequest(number, place * BETWEEN_BATCHES_NS, jobs[index].input, jobs[index].output)
        for number, (index, place) in enumerate(order)
    ]
    run = simulate(requests, replace(profile, max_batch=max_batch), Fleet(1), PLACEMENTS["round_robin"](Random(0)))
    met, latency_ns = 0, 0
    for request, (index, _) in zip(requests, order, strict=True):
        times_ns = run.token_times(request)
        met += _meets(jobs[index], int(times_ns[0]), int(times_ns[-1]))
        latency_ns += int(times_ns[-1])
    return Served(met, len(jobs), latency_ns / NS)


def _meets(job: Job, first_ns: int, last_ns: int) -> bool:
    """Tell whether the token times meet the job's targets (equations 6 to 9), which count from when all were there."""
    tpot_s = (last_ns - first_ns) / NS / max(1, job.output - 1)
    return all(
        target is None or value <= target
        for value, target in ((last_ns / NS, job.e2e), (first_ns / NS, job.ttft), (tpot_s, job.tpot))
    )
