"""What readers got and waited, as charges for counters that only grow: taken when somebody looks, and at the end.

The counters need no charge with every segment: what happened since the last look is the difference of two states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from otel_llm.slo.classes import EXPONENTIAL_CAP_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.slo.classes import Benefit
    from otel_llm.slo.verdict import Verdict

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]


class Metered(NamedTuple):
    """What was got and waited by readers of one group; none is negative.

    Over a request's charges, `tokens_read` - `penalty_tokens` + `refunded_tokens` is its benefit, but for rounding.
    """

    group: Group
    tokens_read: int
    idle_ns: int
    penalty_tokens: float
    refunded_tokens: float


class Meter:
    """Remember what the counters have of each stream in flight."""

    def __init__(self, table: StreamTable) -> None:
        self._table = table

    def charge_flying(self) -> Iterator[Metered]:
        """Yield what readers of streams in flight got and waited since the last look, up to each one's watermark."""
        return self.charge(self._table.flying())

    def charge(self, slots: Ints) -> Iterator[Metered]:
        """Yield the same of some streams in flight, for example before one of them gets another group."""
        table, running = self._table, self._table.running
        tokens = running.count[slots]
        idle_ns = running.idle_ns(slots, np.maximum(table.watermark_ns[slots], table.last_ns[slots]))
        changed = (tokens != table.metered_tokens[slots]) | (idle_ns != table.metered_idle_ns[slots])
        slots, tokens, idle_ns = slots[changed], tokens[changed], idle_ns[changed]
        if not slots.size:
            return
        before_ns = table.metered_idle_ns[slots]
        more = tokens - table.metered_tokens[slots]
        cost = self.penalties(slots, before_ns, idle_ns)
        table.metered_tokens[slots], table.metered_idle_ns[slots] = tokens, idle_ns
        groups, member = np.unique(table.group[slots], return_inverse=True)
        for at, group in enumerate(groups.tolist()):
            own = member == at
            yield Metered(
                table.groups[group],
                int(np.maximum(0, more[own]).sum()),
                int(np.maximum(0, idle_ns[own] - before_ns[own]).sum()),
                float(np.maximum(0.0, cost[own]).sum() + np.maximum(0, -more[own]).sum()),
                float(np.maximum(0.0, -cost[own]).sum()),
            )

    def close(self, stream: StreamInFlight, verdict: Verdict | None) -> Metered:
        """Return the rest, so that all charges add up to the verdict; without one, all that was charged goes back."""
        tokens, idle_ns, abort = 0, 0, 0.0
        if verdict is not None and verdict.idle_ns is not None:
            tokens, idle_ns, abort = verdict.tokens_read, verdict.idle_ns, verdict.abort_penalty
        table, slot = self._table, stream.slot
        more = tokens - table.metered_tokens.item(slot)
        before_ns = table.metered_idle_ns.item(slot)
        benefit = stream.slo.benefit
        cost = benefit.penalty_tokens(idle_ns) - benefit.penalty_tokens(before_ns)
        table.metered_tokens[slot] = table.metered_idle_ns[slot] = 0
        return Metered(
            stream.group,
            max(0, more),
            max(0, idle_ns - before_ns),
            max(0.0, cost) + max(0, -more) + abort,
            max(0.0, -cost),
        )

    def penalties(self, slots: Ints, before_ns: Ints, after_ns: Ints) -> Floats:
        """Return what it costs (tokens) that each stream's reader waited so long instead of so long before."""
        cost = np.zeros(len(slots))
        waited = np.flatnonzero(before_ns != after_ns)
        if waited.size:
            classes, member = np.unique(self._table.slo_index[slots[waited]], return_inverse=True)
            for at, index in enumerate(classes.tolist()):
                own = waited[member == at]
                benefit = self._table.classes[index].benefit
                cost[own] = _penalty_tokens(benefit, after_ns[own]) - _penalty_tokens(benefit, before_ns[own])
        return cost


def _penalty_tokens(benefit: Benefit, idle_ns: Ints) -> Floats:
    """Return alpha f(l) as `Benefit.penalty_tokens` does, of many."""
    idle_s = idle_ns / 1e9
    if benefit.penalty == "linear":
        return benefit.alpha * idle_s
    if benefit.penalty == "quadratic":
        return benefit.alpha * (idle_s * idle_s)
    return benefit.alpha * np.expm1(np.minimum(idle_s, EXPONENTIAL_CAP_S))
