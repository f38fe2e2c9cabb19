"""Charges of tokens and idle time: to counters that only grow, and to the windows of instances and classes.

A segment makes no charge. A charge is the difference of two states of a stream: now, and at the last charge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from otel_llm.slo.batch.many import penalties
from otel_llm.slo.live.columns import COUNT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.slo.verdict import Verdict

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]


class Metered(NamedTuple):
    """A charge to the readers of one group; no number is negative.

    Over all charges of a request, `tokens_read` - `penalty_tokens` + `refunded_tokens` is its benefit, up to rounding.
    """

    group: Group
    tokens_read: int
    idle_ns: int
    penalty_tokens: float
    refunded_tokens: float


class Increase(NamedTuple):
    """The tokens and idle time of one group's streams since their last charge; (N,), one element for each stream."""

    group: Group
    tokens: Ints
    idle_ns: Ints
    penalty_tokens: Floats
    """The cost of the added idle time; negative if later segments have reduced it."""


class Balance(NamedTuple):
    """The rest to charge for one stream at its end: `tokens`, and idle time from `before_ns` to `idle_ns`."""

    stream: StreamInFlight
    tokens: int
    before_ns: int
    idle_ns: int
    abort_penalty: float


class Charged:
    """The charges of each stream in flight so far; with the last one, all charges add up to the verdict.

    They are in columns of the table: `metered` for the counters (`Meter`), `windowed` for the windows of instances and
    classes (`Groups`).
    """

    def __init__(self, table: StreamTable, column: Literal["metered", "windowed"]) -> None:
        self._table = table
        self._metered = column == "metered"

    def charge(self, slots: Ints) -> Iterator[Increase]:
        """Yield by group the increase since the last charge, up to each stream's watermark; `slots`: (S,) int64."""
        table = self._table
        charged_tokens, charged_idle_ns = self._columns
        tokens = table.rows[slots, COUNT]
        idle_ns = table.idle_ns(slots, np.maximum(table.watermark_ns[slots], table.last_ns[slots]))
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

    def close(self, ended: Sequence[tuple[StreamInFlight, Verdict | None]]) -> Iterator[Balance]:
        """Yield the rest of each stream's verdict; without a verdict, the refund of all charges."""
        charged_tokens, charged_idle_ns = self._columns
        slots = [stream.slot for stream, _ in ended]
        before = (charged_tokens[slots].tolist(), charged_idle_ns[slots].tolist())
        charged_tokens[slots] = charged_idle_ns[slots] = 0
        for (stream, verdict), tokens, before_ns in zip(ended, *before, strict=True):
            if verdict is None or verdict.idle_ns is None:
                yield Balance(stream, -tokens, before_ns, 0, 0.0)
            else:
                more = verdict.tokens_read - tokens
                yield Balance(stream, more, before_ns, verdict.idle_ns, verdict.abort_penalty)

    def reset(self) -> None:
        """Count tokens and idle time so far as charged."""
        for column in self._columns:
            column[:] = 0
        for _ in self.charge(self._table.slots_in_flight()):
            pass

    @property
    def _columns(self) -> tuple[Ints, Ints]:
        """Return the charged tokens and idle time (ns), by slot."""
        table = self._table
        if self._metered:
            return table.metered_tokens, table.metered_idle_ns
        return table.windowed_tokens, table.windowed_idle_ns

    def _penalties(self, slots: Ints, before_ns: Ints, after_ns: Ints) -> Floats:
        """Return the cost, in tokens, of idle time from `before_ns` to `after_ns`; all (N,)."""
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
    """Charges for counters that only grow."""

    def __init__(self, table: StreamTable) -> None:
        self._table = table
        self._charged = Charged(table, "metered")

    def charge_in_flight(self) -> Iterator[Metered]:
        """Yield the charges of all streams in flight since the last ones, up to each stream's watermark."""
        return self.charge(self._table.slots_in_flight())

    def charge(self, slots: Ints) -> Iterator[Metered]:
        """Yield the charges of some streams in flight, (S,) int64, for example before the group of one changes."""
        for group, tokens, idle_ns, cost in self._charged.charge(slots):
            yield Metered(
                group,
                int(np.maximum(0, tokens).sum()),
                int(np.maximum(0, idle_ns).sum()),
                float(np.maximum(0.0, cost).sum() + np.maximum(0, -tokens).sum()),
                float(np.maximum(0.0, -cost).sum()),
            )

    def close(self, ended: Sequence[tuple[StreamInFlight, Verdict | None]]) -> Iterator[Metered]:
        """Yield by group the rest of the streams' verdicts; without a verdict, the refund of all charges."""
        found: dict[Group, list[float]] = {}
        for stream, tokens, before_ns, idle_ns, abort in self._charged.close(ended):
            sums = found.setdefault(stream.group, [0, 0, 0.0, 0.0])
            sums[0] += max(0, tokens)
            sums[2] += max(0, -tokens) + abort
            if idle_ns != before_ns:
                benefit = stream.slo.benefit
                cost = benefit.penalty_tokens(idle_ns) - benefit.penalty_tokens(before_ns)
                sums[1] += max(0, idle_ns - before_ns)
                sums[2] += max(0.0, cost)
                sums[3] += max(0.0, -cost)
        for group, (read, idle, cost, refunded) in found.items():
            yield Metered(group, int(read), int(idle), cost, refunded)
