"""Charge what readers got and waited: to counters that only grow, and to the windows of instances and classes.

Nothing is charged with a segment. A charge is the difference of two states of a stream: now, and at the last charge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from otel_llm.slo.batch.many import penalties

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
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


class Increase(NamedTuple):
    """What readers of one group got and waited since they were last charged; a row a stream, (N,)."""

    group: Group
    tokens: Ints
    idle_ns: Ints
    penalty_tokens: Floats
    """What the added idle time costs; negative where idle time turned out to be less."""


class Balance(NamedTuple):
    """What is left to charge of one stream at its end: `tokens`, and idle time from `before_ns` to `idle_ns`."""

    tokens: int
    before_ns: int
    idle_ns: int
    abort_penalty: float


class Charged:
    """Remember what was charged of each stream in flight, so that each charge is the rest: all add up to the verdict.

    Two are kept beside each other, in columns of the table: `metered` for the counters (`Meter`), `windowed` for the
    windows of instances and classes (`Groups`).
    """

    def __init__(self, table: StreamTable, kept: Literal["metered", "windowed"]) -> None:
        self._table = table
        self._metered = kept == "metered"

    def charge(self, slots: Ints) -> Iterator[Increase]:
        """Yield by group what readers got and waited since the last charge, up to each stream's watermark."""
        table, running = self._table, self._table.running
        charged_tokens, charged_idle_ns = self._columns
        tokens = running.count[slots]
        idle_ns = running.idle_ns(slots, np.maximum(table.watermark_ns[slots], table.last_ns[slots]))
        changed = (tokens != charged_tokens[slots]) | (idle_ns != charged_idle_ns[slots])
        slots, tokens, idle_ns = slots[changed], tokens[changed], idle_ns[changed]
        if not slots.size:
            return
        before_ns = charged_idle_ns[slots]
        more = tokens - charged_tokens[slots]
        cost = self._penalties(slots, before_ns, idle_ns)
        charged_tokens[slots], charged_idle_ns[slots] = tokens, idle_ns
        groups, member = np.unique(table.group[slots], return_inverse=True)
        for at, group in enumerate(groups.tolist()):
            own = member == at
            yield Increase(table.groups[group], more[own], (idle_ns - before_ns)[own], cost[own])

    def close(self, stream: StreamInFlight, verdict: Verdict | None) -> Balance:
        """Return the rest, so that all charges add up to the verdict; without one, all that was charged goes back."""
        tokens, idle_ns, abort = 0, 0, 0.0
        if verdict is not None and verdict.idle_ns is not None:
            tokens, idle_ns, abort = verdict.tokens_read, verdict.idle_ns, verdict.abort_penalty
        slot, (charged_tokens, charged_idle_ns) = stream.slot, self._columns
        more, before_ns = tokens - charged_tokens.item(slot), charged_idle_ns.item(slot)
        charged_tokens[slot] = charged_idle_ns[slot] = 0
        return Balance(more, before_ns, idle_ns, abort)

    def begin_anew(self) -> None:
        """Take what readers have got and waited so far as charged."""
        for column in self._columns:
            column[:] = 0
        for _ in self.charge(self._table.slots_in_flight()):
            pass

    @property
    def _columns(self) -> tuple[Ints, Ints]:
        """Return tokens and idle time charged, by slot."""
        table = self._table
        if self._metered:
            return table.metered_tokens, table.metered_idle_ns
        return table.windowed_tokens, table.windowed_idle_ns

    def _penalties(self, slots: Ints, before_ns: Ints, after_ns: Ints) -> Floats:
        """Return what it costs (tokens) that each stream's reader waited so long instead of so long before, (N,)."""
        cost = np.zeros(len(slots))
        waited = np.flatnonzero(before_ns != after_ns)
        if waited.size:
            classes, member = np.unique(self._table.slo_index[slots[waited]], return_inverse=True)
            for at, index in enumerate(classes.tolist()):
                own = waited[member == at]
                slo = self._table.classes[index]
                cost[own] = penalties(after_ns[own], slo) - penalties(before_ns[own], slo)
        return cost


class Meter:
    """Charge counters that only grow with what readers of streams got and waited."""

    def __init__(self, table: StreamTable) -> None:
        self._table = table
        self._charged = Charged(table, "metered")

    def charge_in_flight(self) -> Iterator[Metered]:
        """Yield what readers of streams in flight got and waited since the last look, up to each one's watermark."""
        return self.charge(self._table.slots_in_flight())

    def charge(self, slots: Ints) -> Iterator[Metered]:
        """Yield the same of some streams in flight, for example before one of them gets another group."""
        for group, tokens, idle_ns, cost in self._charged.charge(slots):
            yield Metered(
                group,
                int(np.maximum(0, tokens).sum()),
                int(np.maximum(0, idle_ns).sum()),
                float(np.maximum(0.0, cost).sum() + np.maximum(0, -tokens).sum()),
                float(np.maximum(0.0, -cost).sum()),
            )

    def close(self, stream: StreamInFlight, verdict: Verdict | None) -> Metered:
        """Return the rest, so that all charges add up to the verdict; without one, all that was charged goes back."""
        tokens, before_ns, idle_ns, abort = self._charged.close(stream, verdict)
        benefit = stream.slo.benefit
        cost = benefit.penalty_tokens(idle_ns) - benefit.penalty_tokens(before_ns)
        return Metered(
            stream.group,
            max(0, tokens),
            max(0, idle_ns - before_ns),
            max(0.0, cost) + max(0, -tokens) + abort,
            max(0.0, -cost),
        )
