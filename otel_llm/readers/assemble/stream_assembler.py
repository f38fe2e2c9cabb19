"""From records to streams while the records come: what is whole is handed on at once, what is not waits within bounds.

The same streams as those of `assemble.Assembler`, which keeps everything to the end. Here segments are rows of arrays,
and a request of which nothing that could still come would change the row (its last segment is there, all tokens are,
segment 0 is, no number is missing, and so is its request span) is handed on and forgotten but for its key. Beyond a
bound of memory the oldest requests go to temporary files, divided by their keys, and are put together at the end, file
by file.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.readers.assemble.requests import Parts, Resolved, count_rest, says_all, streams_of
from otel_llm.readers.assemble.spill import Spill
from otel_llm.readers.assemble.stream_parts import (
    NO_END,
    Open,
    Streams,
    as_segments,
    declared_by,
    ending_of,
    ends_at,
    kinds_of,
    resolve,
    say_more,
    sort_times,
    together,
    with_others,
)
from otel_llm.readers.assemble.stream_rows import NO_RECEIPT, Rows, gather, joined, tile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_llm.readers.assemble.requests import Assembled
    from otel_llm.readers.assemble.stream_rows import Bools, Ints, Tiled
    from otel_llm.readers.batch import Batch
    from otel_llm.readers.records import RequestSpan, Segment
    from otel_llm.readers.segment_columns import SegmentColumns

HELD_BYTES: Final = 192 * 2**20
"""What requests that are not whole may take before the oldest half goes to temporary files."""
KEPT_BYTES: Final = 64 * 2**20
"""What request spans may take that are kept for choices of theirs that may still come."""
CHUNK_TOKENS: Final = 1_000_000
"""Tokens put together at once at the end, about."""
_CHUNK_REQUESTS: Final = 8192
_MOST_BLOCKS: Final = 16
_SEGMENT_BYTES: Final = 700
_REQUEST_BYTES: Final = 900
_ATTRIBUTE_BYTES: Final = 150
_TOKEN_BYTES: Final = 40


@dataclass(slots=True)
class StreamAssembler:
    """Take export requests in any order and give streams: `take` those that are whole, `finish` the others.

    `counts` as in Assembler, and `anomaly.segment_after_end`: segments numbered behind the last one of a stream that
    was handed on; they change nothing.
    """

    held_bytes: int = HELD_BYTES
    kept_bytes: int = KEPT_BYTES
    counts: Counter[str] = field(default_factory=Counter)
    _open: dict[bytes, Open] = field(default_factory=dict)
    _by_slot: list[Open | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _slots: dict[bytes, int] = field(default_factory=dict)
    _received: Ints = field(default_factory=lambda: np.zeros(1024, np.int64))
    _needed: Ints = field(default_factory=lambda: np.full(1024, -1, np.int64))
    _blocks: list[Rows] = field(default_factory=list)
    _weight: int = 0
    _order: int = 0
    _done: dict[bytes, int] = field(default_factory=dict)
    _kept: dict[bytes, bytes] = field(default_factory=dict)
    _kept_weight: int = 0
    _spilled: set[bytes] = field(default_factory=set)
    _spill: Spill | None = None

    def take(self, received: Iterable[tuple[Batch, int | None]]) -> Streams:
        """Take what export requests held, each with its time of receipt, and return the streams that are whole now."""
        touched: set[int] = set()
        plains: list[tuple[SegmentColumns, int, int]] = []
        for batch, receipt_ns in received:
            self._order += 1
            for segment in batch.segments:
                self._add_segment(segment, touched)
            for span in batch.requests:
                self._add_request(span, touched)
            if batch.plain is not None:
                plains.append((batch.plain, NO_RECEIPT if receipt_ns is None else receipt_ns, self._order))
            count_rest(batch, self.counts)
        slots = self._add_plain(plains) if plains else np.zeros(0, np.int64)
        slots = np.union1d(slots, np.fromiter(touched, np.int64, len(touched)))
        ready = slots[(self._needed[slots] >= 0) & (self._received[slots] >= self._needed[slots])]
        found = self._put_together(ready, early=True) if len(ready) else Streams()
        if self._weight + sum(block.bytes_held for block in self._blocks) > self.held_bytes:
            self._spill_oldest()
        return found

    def finish(self) -> Iterator[Streams]:
        """Yield what is left, and delete what was written; take nothing afterwards."""
        try:
            if self._spill is not None:
                self._spill_all(one for one in list(self._open.values()) if one.spilled)
            yield from self._rest()
            if self._spill is not None:
                for entries in self._spill.partitions():
                    part = StreamAssembler(counts=self.counts)
                    part._restore(entries)
                    yield from part._rest()
        finally:
            self.close()

    def close(self) -> None:
        """Delete the temporary files, if there are any."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    # What comes.

    def _of(self, key: bytes) -> Open:
        found = self._open.get(key)
        if found is None:
            slot = self._free.pop() if self._free else len(self._by_slot)
            if slot == len(self._by_slot):
                self._by_slot.append(None)
            if slot >= len(self._received):
                self._received = np.concatenate((self._received, np.zeros_like(self._received)))
                self._needed = np.concatenate((self._needed, np.full_like(self._needed, -1)))
            found = self._by_slot[slot] = self._open[key] = Open(key, slot, spilled=key in self._spilled)
            self._received[slot], self._needed[slot] = 0, -1
            self._slots[key] = slot
            self._weight += found.weight
            if key in self._done:
                found.earlier = found.choices = True
                kept = self._kept.get(key)
                found.request = None if kept is None else pickle.loads(kept)  # noqa: S301  our own, of a moment ago
        return found

    def _add_segment(self, segment: Segment, touched: set[int]) -> None:
        key = segment.trace_id + segment.span_id
        if not segment.choice and (ended := self._done.get(key)) is not None:
            self._late(segment.seq, ended)
            return
        one = self._of(key)
        one.segments.append((self._order, segment))
        one.choices |= segment.choice != 0
        weight = _SEGMENT_BYTES + _TOKEN_BYTES * len(segment.times_ns) + _ATTRIBUTE_BYTES * len(segment.attributes)
        one.weight += weight
        self._weight += weight
        self._received[one.slot] += 1
        touched.add(one.slot)
        self._see(one)

    def _add_request(self, span: RequestSpan, touched: set[int]) -> None:
        key = span.trace_id + span.span_id
        one = None if key in self._done else self._of(key)
        if one is None or one.request is not None:
            self.counts["duplicate_requests"] += 1
            return
        one.request = span
        weight = _REQUEST_BYTES + _TOKEN_BYTES * len(span.events_ns) + _ATTRIBUTE_BYTES * len(span.attributes)
        one.weight += weight
        self._weight += weight
        touched.add(one.slot)
        self._see(one)

    def _add_plain(self, plains: Sequence[tuple[SegmentColumns, int, int]]) -> Ints:
        """Take segments that are columns already; return the slots of their streams."""
        slots = self._slots
        blocks: list[Rows] = []
        for plain, receipt_ns, order in plains:
            keys = plain.keys
            found = [-1 if (slot := slots.get(key)) is None else slot for key in keys]
            if -1 in found:
                found = [slot if slot >= 0 else self._new(key) for slot, key in zip(found, keys, strict=True)]
            rows = Rows(
                slot=np.array(found, np.int64),
                seq=plain.seq,
                first_token=plain.first_token,
                end_ns=plain.end_ns,
                kind=plain.kind,
                order=np.full(len(plain), order),
                receipt_ns=np.full(len(plain), receipt_ns),
                counts=np.diff(plain.offsets),
                times_ns=plain.times_ns,
            )
            if (late := rows.slot < 0).any():
                for place in np.flatnonzero(late).tolist():
                    self._late(int(rows.seq[place]), self._done[keys[place]])
                rows = rows.only(~late)
            blocks.append(rows)
        block = joined(blocks)
        self._blocks.append(block)
        touched, counts = np.unique(block.slot, return_counts=True)
        self._received[touched] += counts
        return touched

    def _new(self, key: bytes) -> int:
        """Return the slot of a request that may be new, -1 for one whose choice 0 was handed on."""
        return -1 if key in self._done else self._of(key).slot

    def _late(self, seq: int, ended: int) -> None:
        self.counts["duplicate_segments" if seq < ended else "anomaly.segment_after_end"] += 1

    def _see(self, one: Open) -> None:
        """Note how many segments a request needs to be whole, if what was read one by one may be all of that."""
        self._needed[one.slot] = -1
        request = one.request
        if request is None or one.choices or one.spilled:
            return
        ending = ending_of(one)
        if ending is None or not says_all(ending.attributes, request.attributes):
            return
        needed = ending.seq + 1
        if request.attributes.get(semconv.SEGMENTS) != needed and self._kept_weight > self.kept_bytes:
            return  # there may be other choices, and there is no room to keep the span for them
        self._needed[one.slot] = needed

    # What goes.

    def _put_together(self, slots: Ints, *, early: bool) -> Streams:
        """Return the streams of these requests; `early`: those that are whole, while the others stay."""
        opens = [one for slot in slots.tolist() if (one := self._by_slot[slot]) is not None]
        plain = self._extract(slots)
        rows, own_kinds = with_others(plain, opens)
        if rows is None:
            return self._one_by_one(opens, None, {})
        place = np.full(len(self._by_slot), -1, np.int64)
        place[slots] = np.arange(len(slots))
        stream = place[rows.slot]
        some = np.zeros(len(slots), np.bool_)
        some[stream] = True
        if not some.all():  # request spans without segments
            place[slots[some]] = np.arange(int(some.sum()))
            stream = place[rows.slot]
        whole = [one for one, has in zip(opens, some.tolist(), strict=True) if has]
        tiled = tile(rows, stream, len(whole))
        lengths = np.diff(tiled.bounds)
        ending = np.fromiter((ends_at(one) for one in whole), np.int64, len(whole))
        chosen = tiled.regular & ((ending == NO_END) | (ending == lengths - 1)) & ~say_more(whole, rows, stream, tiled)
        if early:
            chosen &= lengths == self._needed[slots]
            declared = np.fromiter((declared_by(one) for one in whole), np.int64, len(whole))
            chosen &= tiled.tokens >= declared
        found = self._regular(whole, rows, own_kinds, tiled, chosen)
        if early:
            self._keep_back(whole, plain, chosen, tiled)
            return found
        irregular = [one for one, is_done in zip(whole, chosen.tolist(), strict=True) if not is_done]
        bare = [one for one, has in zip(opens, some.tolist(), strict=True) if not has]
        self.counts["duplicate_segments"] += int(tiled.repeated[chosen].sum())
        rest = self._one_by_one(irregular + bare, plain, {one.slot: [] for one in irregular})
        return together((found, rest))

    def _keep_back(self, whole: list[Open], plain: Rows | None, chosen: Bools, tiled: Tiled) -> None:
        """Forget the requests that were handed on, and put back what was taken of the others."""
        self.counts["duplicate_segments"] += int(tiled.repeated[chosen].sum())
        lengths = np.diff(tiled.bounds)
        for place, (one, gone) in enumerate(zip(whole, chosen.tolist(), strict=True)):
            if gone:
                request = one.request
                assert request is not None  # noqa: S101
                if request.attributes.get(semconv.SEGMENTS) != int(lengths[place]):
                    kept = self._kept[one.key] = pickle.dumps(request)
                    self._kept_weight += len(kept) + 150
                self._done[one.key] = int(lengths[place])
                self._drop(one)
        if plain is not None and not chosen.all():
            back = np.zeros(len(self._by_slot), np.bool_)
            back[[one.slot for one, gone in zip(whole, chosen.tolist(), strict=True) if not gone]] = True
            stays = back[plain.slot]
            if stays.any():
                self._blocks.append(plain.only(stays))

    def _regular(
        self, opens: list[Open], rows: Rows, own_kinds: dict[int, bytes], tiled: Tiled, chosen: Bools
    ) -> Streams:
        """Return the streams that are `chosen`, of which nothing is missing in between."""
        lengths = np.diff(tiled.bounds)
        taken = tiled.rows[np.repeat(chosen, lengths)]
        starts = np.cumsum(rows.counts) - rows.counts
        times = gather(rows.times_ns, starts[taken], rows.counts[taken])
        tokens = tiled.tokens[chosen]
        offsets = np.concatenate(([0], np.cumsum(tokens)))
        kind = rows.kind[tiled.rows]
        kinded = np.logical_or.reduceat(kind != 0, tiled.bounds[:-1])
        resolved: list[Resolved] = []
        kinds: list[bytes | None] = []
        columns = zip(
            opens,
            chosen.tolist(),
            lengths.tolist(),
            tiled.tokens.tolist(),
            tiled.end_ns.tolist(),
            tiled.inner_end_ns.tolist(),
            tiled.offset_ns.tolist(),
            tiled.has_offset.tolist(),
            strict=True,
        )
        for place, (one, mine, segments, count, end_ns, inner_ns, offset_ns, has_offset) in enumerate(columns):
            if mine:
                offset = offset_ns if has_offset else None
                resolved.append(resolve(one, segments, count, end_ns, inner_ns, offset))
                own = tiled.rows[tiled.bounds[place] : tiled.bounds[place + 1]] if kinded[place] else ()
                kinds.append(kinds_of(rows, own, own_kinds) if kinded[place] else None)
        found = Streams(resolved, times, offsets, kinds)
        sort_times(found)
        return found

    def _one_by_one(self, opens: list[Open], plain: Rows | None, own: dict[int, list[tuple[int, Segment]]]) -> Streams:
        """Return the streams of requests that have holes, choices or no segments, as `Assembler` puts them together."""
        if plain is not None and own:
            as_segments(plain, own, self._by_slot)
        found: list[Assembled] = []
        for one in opens:
            parts = Parts(one.key[:16], one.key[16:], one.request)
            if one.earlier:
                parts.stream(0)
            # As they came; of one export request those read one by one first.
            for _, segment in sorted([*one.segments, *own.get(one.slot, ())], key=lambda pair: pair[0]):
                if not parts.stream(segment.choice).add(segment):
                    self.counts["duplicate_segments"] += 1
            found += [stream for stream in streams_of(parts, self.counts) if stream.resolved.choice or not one.earlier]
        return Streams.of(found)

    def _drop(self, one: Open) -> None:
        self._by_slot[one.slot] = None
        self._needed[one.slot] = -1
        self._free.append(one.slot)
        del self._open[one.key], self._slots[one.key]
        self._weight -= one.weight

    def _extract(self, slots: Ints) -> Rows | None:
        """Take the rows of these streams out of what is held."""
        flag = np.zeros(len(self._by_slot), np.bool_)
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

    # The end, and what waits for it elsewhere.

    def _rest(self) -> Iterator[Streams]:
        for slots in self._chunks(list(self._open.values())):
            found = self._put_together(slots, early=False)
            for slot in slots.tolist():
                if (one := self._by_slot[slot]) is not None:
                    self._drop(one)
            if len(found):
                yield found

    def _chunks(self, opens: list[Open]) -> Iterator[Ints]:
        tokens = np.zeros(len(self._by_slot), np.int64)
        for block in self._blocks:
            np.add.at(tokens, block.slot, block.counts)
        waiting: list[int] = []
        total = 0
        for one in opens:
            waiting.append(one.slot)
            total += int(tokens[one.slot]) + one.weight // _TOKEN_BYTES
            if total >= CHUNK_TOKENS or len(waiting) >= _CHUNK_REQUESTS:
                yield np.array(waiting)
                waiting, total = [], 0
        if waiting:
            yield np.array(waiting)

    def _spill_oldest(self) -> None:
        opens = list(self._open.values())
        if self._spill is None:
            self._spill = Spill()
        self._spill_all(opens[: len(opens) // 2 + 1])

    def _spill_all(self, opens: Iterable[Open]) -> None:
        """Write requests to the temporary files: nothing of them stays but that they are there."""
        chosen = list(opens)
        if not chosen or self._spill is None:
            return
        rows = self._extract(np.array([one.slot for one in chosen]))
        self._spill.put(chosen, rows)
        for one in chosen:
            self._spilled.add(one.key)
            self._drop(one)

    def _restore(self, entries: Iterable[tuple[list[Open], Rows | None]]) -> None:
        """Take back what was written, in the order in which it was."""
        for opens, rows in entries:
            slots = np.zeros(max(read.slot for read in opens) + 1, np.int64)
            for read in opens:
                one = self._of(read.key)
                slots[read.slot] = one.slot
                one.segments += read.segments
                one.choices |= read.choices
                one.earlier |= read.earlier
                one.weight += read.weight
                if one.request is None:
                    one.request = read.request
                elif read.request is not None and not read.earlier:
                    self.counts["duplicate_requests"] += 1
            if rows is not None:
                rows.slot = slots[rows.slot]
                self._blocks.append(rows)
