"""Judge the run of a load: its warm-up, its fluid rate, and whether the client decided the result.

An open loop promises to send at intended times; a client that is late, or that has no processor time left to read at
once what arrives, measures itself. The bounds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.audit.calibrate.alpha_fit import TooLittleError
from otel_llm.audit.calibrate.prefill import fit_prefill, prompts_of
from otel_llm.audit.input.resampled import resampled
from otel_llm.audit.kernel.judge_batch import recorded
from otel_llm.slo.classes import Objective, SloClass
from otel_llm.slo.fluid.fluid_rate import DEFAULT_SHARE, FluidRate, fluid_token_rate
from otel_llm.slo.fluid.fluid_search import fluid_tbt_many
from otel_llm.slo.quantiles import P50, P99, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from otel_llm.audit.calibrate.prefill import Prefill
    from otel_llm.slo.classes import SloClasses


BATCH: Final = 5
FEWEST_BATCHES: Final = 10
"""A shorter series is not cut: its means say too little."""


def mser5(values: Sequence[float]) -> int | None:
    """Return how many of the first values to cut: those whose loss makes the error of the mean of the rest smallest.

    With batch means Y_1 .. Y_b, d batches are cut where sum over j > d of (Y_j - mean)^2 / (b - d)^2 is least, d from 0
    to b / 2. None if the least is at b / 2: the series has not settled. A rest shorter than a batch is left out.
    """
    batches = len(values) // BATCH
    if batches < FEWEST_BATCHES:
        return 0
    means = np.asarray(values[: batches * BATCH], np.float64).reshape(batches, BATCH).mean(axis=1)
    means -= means[-1]  # equal batches are then 0, without rounding
    left = np.arange(1, batches + 1, dtype=np.float64)[::-1]
    sums = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum((means * means)[::-1])[::-1]
    errors = np.maximum(squares - sums * sums / left, 0.0) / (left * left)
    half = batches // 2
    cut = int(np.argmin(errors[: half + 1]))
    return None if cut == half else cut * BATCH


def fluid_rate_of(streams: Iterable[pa.RecordBatch], reads: tuple[int, ...]) -> FluidRate | None:
    """Return the fluid token rate of batches of STREAMS; None if no request has two tokens that are read.

    The TBT target is the smallest with which 99 % of the requests keep a fluidity-index of 0.9, whatever the objective
    of their class; first tokens are not judged. `reads`: the kinds of token that count.
    """
    slo = SloClass(reads=reads, objective=Objective())
    targets: list[int] = []
    for judged in (part.streams for batch in streams for part in resampled(batch)):
        complete = judged.column("complete").to_numpy(zero_copy_only=False)
        found = fluid_tbt_many(recorded(judged, complete), [slo])
        targets += found.values[found.known].tolist()
    return fluid_token_rate(targets)


def first_token_targets(streams: Sequence[pa.RecordBatch], classes: SloClasses) -> Prefill | str:
    """Return the curve over the prompt's length that 99 % of the first tokens kept, under this load; else why not."""
    prompts = prompts_of(streams, classes)
    try:
        return fit_prefill(prompts, DEFAULT_SHARE, contended=True)
    except (TooLittleError, np.linalg.LinAlgError) as error:
        return str(error)


LAG_BOUND_NS: Final = 10_000_000
"""The longest send lag at p99; and how late a worker's loop may be without standing still."""
CPU_BOUND: Final = 0.9
CPU_WINDOW_NS: Final = 5_000_000_000
"""The time over which a worker's use of a core counts: shorter bursts show in the lag."""
STILL_BOUND: Final = 0.01
"""The share of a run in which a worker may stand still: nothing is read then at its time."""
_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Validity:
    """The verdict. `why`: None if it is valid. `send_lag_ms`: p50, p99, max; None for a closed loop.

    `cpu`: the largest share of a core that a worker used in a window.
    """

    valid: bool
    why: str | None
    send_lag_ms: dict[str, float] | None
    cpu: float


def judge_validity(
    lags_ns: Sequence[int] | None, cpu: float, still_ns: int, length_ns: int, client_faults: int
) -> Validity:
    """Judge a run of `length_ns`.

    `lags_ns`: the send lag of each request, None for a closed loop; `still_ns`: how long a worker stood still;
    `client_faults`: requests that this machine, not the server, has failed.
    """
    why = []
    lag_ms = None
    if lags_ns is not None:
        ordered = sorted(lags_ns)
        p50, p99 = nearest_rank(ordered, P50) or 0, nearest_rank(ordered, P99) or 0
        lag_ms = {"p50": p50 / _MS, "p99": p99 / _MS, "max": (ordered[-1] if ordered else 0) / _MS}
        if p99 > LAG_BOUND_NS:
            why.append(
                f"requests were sent late (99 % within {p99 / _MS:.1f} ms, wanted {LAG_BOUND_NS / _MS:g}): lower the "
                "rate or add --workers"
            )
    if cpu > CPU_BOUND:
        why.append(f"a worker used {cpu:.0%} of a core: add --workers")
    if still_ns > STILL_BOUND * length_ns:
        why.append(f"a worker stood still for {still_ns / 1e9:.2f} s: nothing was read at its time")
    if client_faults:
        why.append(f"{client_faults:,} requests failed for want of sockets or by a fault of the client")
    return Validity(not why, "; ".join(why) or None, lag_ms, cpu)


def busiest_share(samples: Sequence[tuple[int, int]], window_ns: int = CPU_WINDOW_NS) -> float:
    """Return the largest share of a core within a window, or in all if that is shorter.

    `samples`: (instant, processor time so far), ns, in order.
    """
    busiest, first = 0.0, 0
    for index, (at_ns, used_ns) in enumerate(samples):
        while first + 1 < index and samples[first + 1][0] <= at_ns - window_ns:
            first += 1
        length_ns = at_ns - samples[first][0]
        if length_ns >= window_ns or (index == len(samples) - 1 and not busiest and length_ns):
            busiest = max(busiest, (used_ns - samples[first][1]) / length_ns)
    return busiest


def late_beyond_bound(late_ns: int) -> int:
    """Return how long a worker stood still, by how much later than due its report was made."""
    return late_ns if late_ns > LAG_BOUND_NS else 0
