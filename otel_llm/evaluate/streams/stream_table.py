"""The state of all streams in flight as columns, with a slot for each stream; a batch updates it in one pass."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.core import stream_columns
from otel_llm.core.stream_columns import BUFFERS_COUNTS, BUFFERS_NOTHING, BUFFERS_TIMES, INDEX_WIDTH, WIDTH
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.slo.live.columns import ALLOWANCE_NS, COUNT, DRY_NS, NEVER, PACE_NS, READ_FIRST_NS, RUNNING_WIDTH
from otel_llm.slo.live.running import Running

if TYPE_CHECKING:
    from array import array

    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.stream import EventArrays

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

MOST_GROUPS: Final = 65_536
"""The most groups without a stream in flight that are remembered: their names are telemetry."""
BUFFER: Final = 64
"""The values of a stream that are buffered here: times of token events, or half as many and their counts. Appending
each segment's to its arrays took a twelfth of the CPU time."""
PARTS: Final = 32
"""The number of parts in which streams are charged before a window closes."""
_VALUE_BYTES: Final = 8
FIRST_SLOTS: Final = 1024
_COLUMNS: Final = (
    "offset_ns", "watermark_ns", "receipt_ns", "segments", "tokens", "first_ns", "last_ns", "metered_tokens",
    "metered_idle_ns", "group", "slo_index", "identity", "ready", "prefiltered", "known_tokens", "buffers",
    "fresh", "windowed_tokens", "windowed_idle_ns", "last_byte_ns", "known_byte_ns",
)  # fmt: skip
_SEARCHED: Final = {"due_ns": NEVER, "found_ns": NEVER, "charged_ns": NEVER, "in_flight": False, "part": 0}
"""Separate columns, since they are searched from top to bottom, with their values in free slots."""


class StreamTable:
    """The state that changes with every segment; the rest of a stream is in its LiveStream.

    `rows`: (R, WIDTH) int64, whose columns `otel_llm.core.stream_columns` describes; `group`, `slo_index` are indexes
    of `groups` and `classes`. Separate columns, (R,), instants in unix ns of the collector's clock:

    - `due_ns`: the next evaluation of the stream's rules;
    - `found_ns`: the first receipt of its request;
    - `charged_ns`: the end of the last window that it was charged to early;
    - `in_flight`: whether the commit is known and the end is not;
    - `part`: the one of `PARTS` in which it is charged early. It depends on the request only: after a restart a stream
      has another slot and must be charged at the same instants.

    `arrays[slot]` are the times of a stream's token events and, unless each is one token, their counts, if all tokens
    are content and read. The last `fresh` events are buffered in `buffer[slot]`, as `buffers` says, until
    `flush_fresh`, or until the buffer is full.
    """

    __slots__ = (
        *_COLUMNS, *_SEARCHED, "_class_at", "_first_slots", "_flat", "_free", "_group_at", "_index", "_most_groups",
        "_seed", "_tenants", "arrays", "buffer", "cells", "classes", "groups", "rows", "size", "streams",
    )  # fmt: skip
    offset_ns: Ints
    watermark_ns: Ints
    receipt_ns: Ints
    segments: Ints
    tokens: Ints
    first_ns: Ints
    last_ns: Ints
    metered_tokens: Ints
    metered_idle_ns: Ints
    group: Ints
    slo_index: Ints
    identity: Ints
    ready: Ints
    prefiltered: Ints
    known_tokens: Ints
    buffers: Ints
    fresh: Ints
    windowed_tokens: Ints
    windowed_idle_ns: Ints
    last_byte_ns: Ints
    known_byte_ns: Ints
    due_ns: Ints
    found_ns: Ints
    charged_ns: Ints
    in_flight: Bools
    part: Ints
    buffer: Ints

    def __init__(self, *, most_groups: int = MOST_GROUPS, first_slots: int = FIRST_SLOTS) -> None:
        self._view(np.zeros((0, WIDTH), dtype=np.int64))
        self._most_groups, self._first_slots = most_groups, first_slots
        self.size = 0
        self.streams: list[StreamInFlight | None] = []
        self.arrays: list[EventArrays | None] = []
        self.groups: list[Group] = []
        self.classes: list[SloClass] = []
        self._group_at: dict[Group, int] = {}
        self._class_at: dict[int, int] = {}
        self._free: list[int] = []
        self.buffer = np.empty((0, BUFFER), dtype=np.int64)
        self._index = np.zeros((1, INDEX_WIDTH), dtype=np.int64)
        self._tenants = {DEFAULT_TENANT: 0}
        """The number of each tenant in the index; tenants are named by tokens, so there are few."""
        self._seed = secrets.randbits(62)  # secret, so that a sender cannot choose keys that collide
        for name, empty in _SEARCHED.items():
            setattr(self, name, np.full(0, empty))

    def __len__(self) -> int:
        return self.size - len(self._free)

    def _view(self, rows: Ints) -> None:
        """Use these rows."""
        self.rows = rows
        self.cells = rows.data
        self._flat = rows.data.cast("B").cast("q") if rows.size else rows.data
        for name in _COLUMNS:
            setattr(self, name, rows[:, getattr(stream_columns, name.upper())])

    def running_of(self, slot: int) -> Running:
        """Return the running judgement of one stream."""
        begin = slot * WIDTH
        return Running._make(self._flat[begin : begin + RUNNING_WIDTH].tolist())

    def set_running(self, slot: int, values: array[int]) -> None:
        """Write the running judgement of one stream."""
        begin = slot * WIDTH
        self._flat[begin : begin + RUNNING_WIDTH] = memoryview(values)

    def take(self, stream: StreamInFlight, ids: bytes | None, tenant: str = DEFAULT_TENANT) -> int:
        """Return a slot for a stream; `find` finds it by its ids (trace id and span id) and its tenant."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self.rows[slot] = 0
        self.charged_ns[slot] = 0
        self.streams[slot] = stream
        if ids is not None:
            from otel_llm.core.slot_index import put  # a process that owns its streams loads no kernels

            put(self._index, self._seed, self._number_of(tenant), np.frombuffer(ids, np.int64), slot)
        return slot

    def release(self, slot: int, ids: bytes | None, tenant: str = DEFAULT_TENANT) -> None:
        """Free a slot."""
        self.streams[slot] = self.arrays[slot] = None
        self.in_flight[slot] = False
        self.ready[slot] = self.prefiltered[slot] = 0
        self.due_ns[slot] = self.found_ns[slot] = self.charged_ns[slot] = NEVER
        self._free.append(slot)
        if ids is not None:
            from otel_llm.core.slot_index import drop

            drop(self._index, self._seed, self._number_of(tenant), np.frombuffer(ids, np.int64), slot)

    def name(self, slot: int, group: Group, slo: SloClass) -> None:
        """Set the group and the class of a stream."""
        at = self._group_at.get(group)
        if at is None:
            if len(self.groups) >= self._most_groups + self.size:
                self._forget_groups()
            at = self._group_at[group] = len(self.groups)
            self.groups.append(group)
        self.group[slot] = at
        index = self._class_at.get(id(slo))
        if index is None:
            index = self._class_at[id(slo)] = len(self.classes)
            self.classes.append(slo)  # a reference, so that the id stays unique
        self.slo_index[slot] = index

    def _forget_groups(self) -> None:
        """Drop the groups without a stream in flight."""
        used, member = np.unique(self.group, return_inverse=True)
        self.groups = [self.groups[at] for at in used.tolist()]
        self._group_at = {group: at for at, group in enumerate(self.groups)}
        self.group[:] = member

    def find(self, ids: Ints, tenant: str = DEFAULT_TENANT) -> Ints:
        """Return the slot of each stream of a tenant, (S,) int64, -1 for none.

        `ids`: (S, 3) int64, as in `SegmentColumns`.
        """
        from otel_llm.core.slot_index import find

        found = np.empty(len(ids), dtype=np.int64)
        find(self._index, self._seed, self._number_of(tenant), ids, found)
        return found

    def attach(self, slot: int, arrays: EventArrays | None) -> None:
        """Append the token events of a stream to these arrays from now on; None: they are stored elsewhere."""
        self.arrays[slot] = arrays
        if arrays is None:
            self.buffers[slot] = BUFFERS_NOTHING
        else:
            self.buffers[slot] = BUFFERS_TIMES if arrays.counts is None else BUFFERS_COUNTS
        self.fresh[slot] = 0

    def flush_fresh(self, slot: int) -> None:
        """Append the buffered token events of a stream, `fresh` of them, to its arrays."""
        self._append(slot, self.buffer[slot].tobytes(), 0, self.fresh.item(slot))
        self.fresh[slot] = 0

    def flush_fresh_many(self, slots: Ints) -> None:
        """Append the buffered token events of many streams, (S,) int64; `fresh` of each is ~n for n events."""
        data = self.buffer[slots].tobytes()
        at = range(0, len(data), BUFFER * _VALUE_BYTES)
        for slot, start, fresh in zip(slots.tolist(), at, (~self.fresh[slots]).tolist(), strict=True):
            if fresh:
                self._append(slot, data, start, fresh)
        self.fresh[slots] = 0

    def _append(self, slot: int, data: bytes, start: int, events: int) -> None:
        """Append events of a buffer, which begins at `start` of `data`."""
        arrays = self.arrays[slot]
        assert arrays is not None  # noqa: S101  only then are they buffered
        times, counts = arrays
        times.frombytes(data[start : start + events * _VALUE_BYTES])
        if counts is not None:
            start += BUFFER // 2 * _VALUE_BYTES
            counts.frombytes(data[start : start + events * _VALUE_BYTES])

    def slots_in_flight(self) -> Ints:
        """Return the slots of the streams between commit and end, (S,) int64."""
        return np.flatnonzero(self.in_flight)

    def groups_in_flight(self) -> list[Group]:
        """Return the groups of the streams between commit and end."""
        return [self.groups[at] for at in np.flatnonzero(np.bincount(self.group[self.in_flight])).tolist()]

    def now_ns(self, slots: Ints, now_ns: int | Ints) -> Ints:
        """Return each stream's now, not before its last token, (S,) unix ns; `now_ns`: the collector's."""
        found: Ints = np.maximum(self.offset_ns[slots] + now_ns, self.last_ns[slots])
        return found

    def runway_ns(self, slots: Ints, now_ns: int) -> Ints:
        """Return the runway of each reader at its stream's now, (S,) ns."""
        return self.runway_at(slots, self.now_ns(slots, now_ns))

    def runway_at(self, slots: Ints, x_ns: Ints) -> Ints:
        """Return the runway of each reader at its own instant, (S,) ns: below 0 the reader waits."""
        rows = self.rows
        until: Ints = np.where(rows[slots, COUNT] > 0, rows[slots, DRY_NS], rows[slots, ALLOWANCE_NS])
        return until - x_ns

    def idle_ns(self, slots: Ints, x_ns: Ints) -> Ints:
        """Return the idle time l of each reader at an instant not before its last token, (S,) ns."""
        found: Ints = np.maximum(0, np.maximum(self.rows[slots, DRY_NS], x_ns) - self.rows[slots, ALLOWANCE_NS])
        return found

    def unbroken(self, slots: Ints) -> Bools:
        """Return whether each reader has not waited since the first token read, (S,)."""
        count = self.rows[slots, COUNT]
        read_ns: Ints = self.rows[slots, READ_FIRST_NS] + count * self.rows[slots, PACE_NS]
        found: Bools = (count > 0) & (self.rows[slots, DRY_NS] == read_ns)
        return found

    def _number_of(self, tenant: str) -> int:
        return self._tenants.setdefault(tenant, len(self._tenants))

    def _grow(self) -> None:
        size = max(self._first_slots, 2 * self.size)
        rows = np.zeros((size, self.rows.shape[1]), dtype=np.int64)
        rows[: self.size] = self.rows
        self._view(rows)
        for name, empty in _SEARCHED.items():
            column = np.full(size, empty)
            column[: self.size] = getattr(self, name)
            setattr(self, name, column)
        buffer = np.empty((size, BUFFER), dtype=np.int64)
        buffer[: self.size] = self.buffer
        self.buffer = buffer
        more = size - self.size
        self.streams += [None] * more
        self.arrays += [None] * more
        self._free += range(size - 1, self.size - 1, -1)
        self.size = size
        self._grow_index()

    def _grow_index(self) -> None:
        """Make room for a key for each slot; half of the index stays free."""
        before, self._index = self._index, np.zeros((1 << (2 * self.size - 1).bit_length(), INDEX_WIDTH), np.int64)
        if len(before) > 1 and before.any():
            from otel_llm.core.slot_index import move

            move(before, self._seed, self._index)
