"""The best order of single jobs under a price of latency: Held and Karp's dynamic programme over subsets.

The time at which a set of jobs is over does not depend on their order, so that the best order of a set is that of one
job less, with the last job behind it. Time O(2^n n), in layers of subsets of one size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_llm.scheduling.annealing.batches import Batch
    from otel_llm.scheduling.annealing.schedule import Score


def best_order(alone: Sequence[Batch], over: Score) -> list[Batch]:
    """Return the order of the batches of one job with the largest (met x `over.latency_ns` - latency x `over.met`).

    Arithmetic is exact: in 64 bits where they suffice, else in Python's integers.
    """
    count = len(alone)
    span_ns = sum(batch.duration_ns for batch in alone)
    largest = count * (over.latency_ns + 1) + count * span_ns * (over.met + 1)
    exactly = np.int64 if largest < 1 << 62 else object
    starts = np.zeros(1 << count, dtype=exactly)
    for index, batch in enumerate(alone):
        starts[1 << index : 2 << index] = starts[: 1 << index] + batch.duration_ns
    best = np.full(1 << count, -largest - 1, dtype=exactly)
    best[0] = 0
    sets = np.arange(1 << count)
    sizes = np.bitwise_count(sets)
    for size in range(count):
        layer = sets[sizes == size]
        for index, batch in enumerate(alone):
            before = layer[layer >> index & 1 == 0]
            after = before | 1 << index
            best[after] = np.maximum(best[after], best[before] + _gain(batch, starts[before], over))
    order = []
    left = (1 << count) - 1
    while left:
        for index, batch in enumerate(alone):
            before_last = left & ~(1 << index)
            if before_last != left and best[left] == best[before_last] + _gain(batch, starts[[before_last]], over)[0]:
                order.append(batch)
                left = before_last
                break
    return order[::-1]


def _gain(batch: Batch, starts_ns: NDArray[Any], over: Score) -> NDArray[Any]:
    """Return what a batch of one job adds when it starts at these times."""
    met: NDArray[Any] = (starts_ns <= batch.latest_ns[0]).astype(starts_ns.dtype)
    latency_ns: NDArray[Any] = starts_ns + batch.duration_ns
    gain: NDArray[Any] = met * over.latency_ns - latency_ns * over.met
    return gain
