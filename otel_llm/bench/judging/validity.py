"""Whether the client decided the result of a run.

An open loop promises to send at intended times; a client that is late, or that has no processor time left to read at
once what arrives, measures itself. The bounds are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.slo.quantiles import P50, P99, nearest_rank

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """The verdict. `why`: None where it is valid. `send_lag_ms`: p50, p99, max; None for a closed loop.

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
    """Return the largest share of a core within a window, or in all where that is shorter.

    `samples`: (instant, processor time so far), ns, in order.
    """
    busiest, first = 0.0, 0
    for place, (at_ns, used_ns) in enumerate(samples):
        while first + 1 < place and samples[first + 1][0] <= at_ns - window_ns:
            first += 1
        length_ns = at_ns - samples[first][0]
        if length_ns >= window_ns or (place == len(samples) - 1 and not busiest and length_ns):
            busiest = max(busiest, (used_ns - samples[first][1]) / length_ns)
    return busiest


def late_beyond_bound(late_ns: int) -> int:
    """Return how long a worker stood still, by how much later than due its report was made."""
    return late_ns if late_ns > LAG_BOUND_NS else 0
