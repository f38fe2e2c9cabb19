"""Virtual queues: what the client knows of its own load, turned into series whose means are known.

A single server is fed with the arrivals that were sent, each with the work of its lengths, and works at a fixed pace.
The work that an arrival finds follows Lindley's recursion (The theory of queues with a single server, 1952). Whether
it exceeds a threshold is strongly correlated with the misses of a real server at the same load; and its mean follows
from the law of the load alone, by a long draw of it. Time is in units of the mean gap, so that one draw is good for
every rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.bench.capacity.statistics.inflation import block_means

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

UTILISATIONS: Final = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
"""The shares of its pace at which a virtual server is loaded."""
OUTPUT_WEIGHTS: Final = (0.0, 4.0)
"""The work of an output token, in input tokens: engines are bound by prefill or by decode."""
REFERENCE_REQUESTS: Final = 1_000_000
_REFERENCE_BLOCKS: Final = 64


@dataclass(frozen=True, slots=True)
class Load:
    """Requests by intended time: `at` (N,) in any unit of time, `input` and `output` (N,) tokens."""

    at: Floats
    input: Floats
    output: Floats


@dataclass(frozen=True, slots=True)
class VirtualQueue:
    """A virtual server; `mean` is the share of arrivals that find more work than `threshold`, `variance` its error's.

    `work_mean`: the mean work of a request; the unit of work of the threshold. `inflation`: the variance inflation of
    the arrivals that do.
    """

    utilisation: float
    output_weight: float
    work_mean: float
    threshold: float
    mean: float
    variance: float
    inflation: float

    def series(self, load: Load, rate: float) -> Floats:
        """Return 1 for each request (N,) that finds more work than the threshold, else 0; `rate` in requests/s."""
        found = waiting_work(load.at * rate, _work(load, self.output_weight) / self.work_mean, self.utilisation)
        return (found > self.threshold).astype(np.float64)


def waiting_work(at: Floats, work: Floats, utilisation: float) -> Floats:
    """Return the work (N,) that each arrival finds, of a server that does 1 / `utilisation` a unit of time."""
    steps = work[:-1] - np.diff(at) / utilisation
    path = np.concatenate([[0.0], np.cumsum(steps)])
    found: Floats = path - np.minimum.accumulate(path)
    return found


def virtual_queues(reference: Load, target: float) -> list[VirtualQueue]:
    """Return the queues for an objective's share: each threshold is exceeded by 1 - `target` of the reference draw.

    Empty if nothing varies: then nothing can be learned from the load.
    """
    rate = (len(reference.at) - 1) / (reference.at[-1] - reference.at[0])
    queues = []
    seen: list[Floats] = []
    for weight in OUTPUT_WEIGHTS:
        work = _work(reference, weight)
        mean_work = float(work.mean())
        relative = work / mean_work
        if any(np.allclose(relative, one) for one in seen):
            continue
        seen.append(relative)
        for utilisation in UTILISATIONS:
            found = waiting_work(reference.at * rate, relative, utilisation)
            threshold = float(np.quantile(found, target))
            exceeds = (found > threshold).astype(np.float64)
            means = block_means(exceeds, _REFERENCE_BLOCKS)
            variance = float(means.var(ddof=1)) / _REFERENCE_BLOCKS
            if exceeds.any():
                inflation = max(1.0, variance * len(exceeds) / float(exceeds.var()))
                mean = float(exceeds.mean())
                queues.append(VirtualQueue(utilisation, weight, mean_work, threshold, mean, variance, inflation))
    return queues


def _work(load: Load, output_weight: float) -> Floats:
    return load.input + output_weight * load.output


def series_of(queues: Sequence[VirtualQueue], load: Load, rate: float) -> Floats:
    """Return the deviations (Q, N) of each queue's series from its known mean."""
    return np.array([queue.series(load, rate) - queue.mean for queue in queues])
