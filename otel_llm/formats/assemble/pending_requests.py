"""Requests that were received in part and wait for the rest; each has a slot, by which rows refer to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.formats.assemble.received_stream import EVENT_BYTES, record_bytes
from otel_llm.formats.assemble.stream_rows import Rows, joined
from otel_llm.formats.batch import request_of
from otel_llm.formats.spans.attributes import count_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.formats.assemble.stream_rows import Ints
    from otel_llm.formats.records import RequestKey, RequestSpan, Segment

NO_END: Final = -1
SEVERAL: Final = -2
CHUNK_TOKENS: Final = 1_000_000
"""About the number of tokens that are assembled at once at the end."""
_CHUNK_REQUESTS: Final = 8192
_MOST_BLOCKS: Final = 16
# The approximate bytes of each.
_PENDING_BYTES: Final = 300


@dataclass(slots=True)
class PendingRequest:
    """A request that was not passed on: its received parts besides rows.

    `segments` are those read one by one, with the number of their export request; `choices`: it has others than 0;
    `earlier`: choice 0 was passed on; `spilled`: a part is in a temporary file; `weight`: approximate bytes.
    """

    key: bytes
    slot: int
    segments: list[tuple[int, Segment]] = field(default_factory=list)
    request: RequestSpan | None = None
    choices: bool = False
    earlier: bool = False
    spilled: bool = False
    weight: int = _PENDING_BYTES

    @property
    def request_key(self) -> RequestKey:
        """Return its key as a tuple."""
        return request_of(self.key)

    def endings(self) -> list[Segment]:
        """Return the segments that state the end of their stream."""
        return [segment for _, segment in self.segments if semconv.OUTCOME in segment.attributes]

    def ending(self) -> Segment | None:
        """Return the last segment, if exactly one states the end, and segment 0 was received too."""
        endings = self.endings()
        if len({segment.seq for segment in endings}) != 1 or not any(segment.seq == 0 for _, segment in self.segments):
            return None
        return endings[0]

    def ending_seq(self) -> int:
        """Return the number of the segment that states the end of the only choice; NO_END, or SEVERAL of either."""
        if self.choices or self.earlier:
            return SEVERAL
        numbers = {segment.seq for segment in self.endings()}
        return NO_END if not numbers else numbers.pop() if len(numbers) == 1 else SEVERAL

    def declared_tokens(self) -> int:
        """Return the number of tokens that its last segment states, 0 if it states none."""
        ending = self.ending()
        return 0 if ending is None else count_of(ending.attributes, semconv.TOKENS) or 0


class PendingRequests:
    """The pending requests by key and by slot, with the rows of their plain segments.

    By slot, (slots,): `received`, the number of its segments; `needed`, how many make the request complete, -1 if
    not known. The slot of a dropped request is reused.
    """

    def __init__(self) -> None:
        self.by_key: dict[bytes, PendingRequest] = {}
        self.by_slot: list[PendingRequest | None] = []
        self.slots: dict[bytes, int] = {}
        self.received: Ints = np.zeros(1024, np.int64)
        self.needed: Ints = np.full(1024, -1, np.int64)
        self._free: list[int] = []
        self._blocks: list[Rows] = []
        self._weight = 0

    @property
    def bytes_held(self) -> int:
        """Return their approximate memory."""
        return self._weight + sum(block.bytes_held for block in self._blocks)

    def add(self, key: bytes) -> PendingRequest:
        """Return a new request of this key, which must not be pending."""
        slot = self._free.pop() if self._free else len(self.by_slot)
        if slot == len(self.by_slot):
            self.by_slot.append(None)
        if slot >= len(self.received):
            self.received = np.concatenate((self.received, np.zeros_like(self.received)))
            self.needed = np.concatenate((self.needed, np.full_like(self.needed, -1)))
        found = self.by_slot[slot] = self.by_key[key] = PendingRequest(key, slot)
        self.received[slot], self.needed[slot] = 0, -1
        self.slots[key] = slot
        self._weight += found.weight
        return found

    def add_segment(self, one: PendingRequest, segment: Segment, order: int) -> None:
        """Add a segment of the export request numbered `order`."""
        one.segments.append((order, segment))
        one.choices |= segment.choice != 0
        self.received[one.slot] += 1
        self._weigh(one, record_bytes(segment))

    def add_span(self, one: PendingRequest, span: RequestSpan) -> None:
        """Add the request span of a request that has none."""
        one.request = span
        self._weigh(one, record_bytes(span))

    def add_rows(self, rows: Rows) -> None:
        """Keep rows whose slots are those of pending requests; `received` is the caller's."""
        self._blocks.append(rows)

    def take_rows(self, slots: Ints) -> Rows | None:
        """Remove and return the rows of these requests, None if there are none."""
        flag = np.zeros(len(self.by_slot), np.bool_)
        flag[slots] = True
        taken: list[Rows] = []
        left: list[Rows] = []
        for block in self._blocks:
            mine = flag[block.slot]
            if mine.all():
                taken.append(block)
            elif mine.any():
                taken.append(block.only(mine))
                left.append(block.only(~mine))
            else:
                left.append(block)
        self._blocks = [joined(left)] if len(left) > _MOST_BLOCKS else left
        return joined(taken) if taken else None

    def drop(self, one: PendingRequest) -> None:
        """Forget a request whose rows were removed."""
        self.by_slot[one.slot] = None
        self.needed[one.slot] = -1
        self._free.append(one.slot)
        del self.by_key[one.key], self.slots[one.key]
        self._weight -= one.weight

    def complete(self, slots: Ints) -> Ints:
        """Return those of these slots whose requests are complete."""
        return slots[(self.needed[slots] >= 0) & (self.received[slots] >= self.needed[slots])]

    def chunks(self) -> Iterator[Ints]:
        """Yield the slots of all requests, in groups of about CHUNK_TOKENS."""
        tokens = np.zeros(len(self.by_slot), np.int64)
        for block in self._blocks:
            np.add.at(tokens, block.slot, block.tokens)
        waiting: list[int] = []
        total = 0
        for one in list(self.by_key.values()):
            waiting.append(one.slot)
            total += int(tokens[one.slot]) + one.weight // EVENT_BYTES
            if total >= CHUNK_TOKENS or len(waiting) >= _CHUNK_REQUESTS:
                yield np.array(waiting)
                waiting, total = [], 0
        if waiting:
            yield np.array(waiting)

    def restore(self, entries: Iterable[tuple[list[PendingRequest], Rows | None]]) -> int:
        """Take back the entries of a temporary file, in order; return the number of repeated request spans."""
        twice = 0
        for requests, rows in entries:
            slots = np.zeros(max(read.slot for read in requests) + 1, np.int64)
            for read in requests:
                one = self.by_key.get(read.key) or self.add(read.key)
                slots[read.slot] = one.slot
                one.segments += read.segments
                one.choices |= read.choices
                one.earlier |= read.earlier
                one.weight += read.weight
                self._weight += read.weight
                if one.request is None:
                    one.request = read.request
                elif read.request is not None and not read.earlier:
                    twice += 1
            if rows is not None:
                rows.slot = slots[rows.slot]
                self.add_rows(rows)
        return twice

    def _weigh(self, one: PendingRequest, weight: int) -> None:
        one.weight += weight
        self._weight += weight
