"""Assemble streams while records arrive: complete ones are passed on at once, others wait in bounded memory.

The streams are those of `Assembler`, which keeps everything to the end. Here segments are rows of arrays. A request is
passed on, and forgotten but for its key, when nothing that may still arrive can change its row: its last segment,
segment 0, all tokens, every number between and its request span are there. Beyond a bound of memory the oldest requests
go to temporary files, partitioned by key, and are assembled at the end, file by file.
"""

from __future__ import annotations

import pickle
import tempfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.core.limits import MAX_TOKENS
from otel_llm.formats.assemble.assemble_rows import one_by_one, regular_streams, repetitions_differ, with_others
from otel_llm.formats.assemble.assembler import count_rest
from otel_llm.formats.assemble.pending_requests import NO_END, PendingRequests
from otel_llm.formats.assemble.received_request import ending_overrides
from otel_llm.formats.assemble.stream_columns import Streams, concatenate
from otel_llm.formats.assemble.stream_rows import NO_RECEIPT, Rows, joined, merge
from otel_llm.formats.batch import key_bytes
from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from otel_llm.formats.assemble.pending_requests import PendingRequest
    from otel_llm.formats.assemble.stream_rows import Bools, Ints, Merged
    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import RequestSpan, Segment


PARTS: Final = 64
"""The number of files: of 100 M tokens each takes some 15 MB."""


class Spill:
    """Temporary files of requests; they have no name, so they vanish with the process."""

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    def put(self, requests: Sequence[PendingRequest], rows: Rows | None) -> None:
        """Append requests and their rows, whose `slot` is that of one of the requests.

        Raises InputError if the folder of temporary files has no room.
        """
        part = {one.slot: zlib.crc32(one.key) % PARTS for one in requests}
        by_part: list[list[PendingRequest]] = [[] for _ in range(PARTS)]
        for one in requests:
            by_part[part[one.slot]].append(one)
        of_slot = np.zeros(max(part) + 1, np.int64)
        of_slot[list(part)] = list(part.values())
        of = None if rows is None else of_slot[rows.slot]
        try:
            if not self._files:
                self._files = [tempfile.TemporaryFile() for _ in range(PARTS)]  # noqa: SIM115  closed by close()
            for number, mine in enumerate(by_part):
                if mine:
                    own = None if rows is None or of is None else rows.only(of == number)
                    pickle.dump((mine, own), self._files[number], protocol=pickle.HIGHEST_PROTOCOL)
        except OSError as error:
            raise InputError(
                f"no room for what waits for its end in {tempfile.gettempdir()} ({error.strerror or error}); "
                "let TMPDIR name a folder with room"
            ) from error

    def partitions(self) -> Iterator[Iterator[tuple[list[PendingRequest], Rows | None]]]:
        """Yield each file's entries in the order in which they were put; a file is closed when it was read."""
        for file in self._files:
            file.seek(0)
            yield self._entries(file)
            file.close()

    def close(self) -> None:
        """Delete everything."""
        for file in self._files:
            file.close()
        self._files = []

    def _entries(self, file: IO[bytes]) -> Iterator[tuple[list[PendingRequest], Rows | None]]:
        while True:
            try:
                yield pickle.load(file)  # noqa: S301  our own, without a name by which others could open it
            except EOFError:
                return


HELD_BYTES: Final = 192 * 2**20
"""The memory of incomplete requests at which the oldest half goes to temporary files."""
KEPT_BYTES: Final = 64 * 2**20
"""The memory for request spans that are kept for choices that may still arrive."""
_KEPT_SPAN_BYTES: Final = 150
"""The approximate bytes of one beside its pickle."""


@dataclass(slots=True)
class StreamAssembler:
    """The assembly of export requests in any order: `take` returns complete streams, `finish` the others.

    `counts` as in Assembler, and `anomaly.segment_after_end`: segments numbered after the last one of a stream that was
    passed on; they change nothing.
    """

    held_bytes: int = HELD_BYTES
    kept_bytes: int = KEPT_BYTES
    counts: Counter[str] = field(default_factory=Counter)
    _pending: PendingRequests = field(default_factory=PendingRequests)
    _order: int = 0
    """The number of the current export request."""
    _done: dict[bytes, int] = field(default_factory=dict)
    """The number of segments of each request whose choice 0 was passed on."""
    _kept: dict[bytes, bytes] = field(default_factory=dict)
    """The pickled request spans of requests that may have other choices."""
    _kept_weight: int = 0
    _spilled: set[bytes] = field(default_factory=set)
    _spill: Spill | None = None

    def take(self, received: Iterable[tuple[Batch, int | None]]) -> Streams:
        """Take the records of export requests, each with its time of receipt; return the streams now complete."""
        touched: set[int] = set()
        plains: list[tuple[Batch, int, int]] = []
        for batch, receipt_ns in received:
            self._order += 1
            for segment in batch.segments:
                self._add_segment(segment, touched)
            for span in batch.requests:
                self._add_request(span, touched)
            if batch.plain is not None:
                plains.append((batch, NO_RECEIPT if receipt_ns is None else receipt_ns, self._order))
            count_rest(batch, self.counts)
        slots = self._add_plain(plains) if plains else np.zeros(0, np.int64)
        slots = np.union1d(slots, np.fromiter(touched, np.int64, len(touched)))
        whole = self._pending.complete(slots)
        found = self._put_together(whole, early=True) if len(whole) else Streams()
        if self._pending.bytes_held > self.held_bytes:
            self._spill_oldest()
        return found

    def finish(self) -> Iterator[Streams]:
        """Yield the remaining streams, and delete the temporary files; no `take` afterwards."""
        try:
            if self._spill is not None:
                self._spill_all(one for one in list(self._pending.by_key.values()) if one.spilled)
            yield from self._rest()
            if self._spill is not None:
                for entries in self._spill.partitions():
                    part = StreamAssembler(counts=self.counts)
                    self.counts["duplicate_requests"] += part._pending.restore(entries)
                    yield from part._rest()
        finally:
            self.close()

    def close(self) -> None:
        """Delete the temporary files, if there are any."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None

    # Arriving records.

    def _of(self, key: bytes) -> PendingRequest:
        found = self._pending.by_key.get(key)
        if found is None:
            found = self._pending.add(key)
            found.spilled = key in self._spilled
            if key in self._done:
                found.earlier = found.choices = True
                kept = self._kept.get(key)
                found.request = None if kept is None else pickle.loads(kept)  # noqa: S301  our own, of a moment ago
        return found

    def _add_segment(self, segment: Segment, touched: set[int]) -> None:
        key = key_bytes(segment.request_key)
        if not segment.choice and (ended := self._done.get(key)) is not None:
            self._late(segment.seq, ended)
            return
        one = self._of(key)
        self._pending.add_segment(one, segment, self._order)
        touched.add(one.slot)
        self._set_needed(one)

    def _add_request(self, span: RequestSpan, touched: set[int]) -> None:
        key = key_bytes(span.key)
        one = None if key in self._done else self._of(key)
        if one is None or one.request is not None:
            self.counts["duplicate_requests"] += 1
            return
        self._pending.add_span(one, span)
        touched.add(one.slot)
        self._set_needed(one)

    def _add_plain(self, plains: Sequence[tuple[Batch, int, int]]) -> Ints:
        """Take segments that are columns already; return the slots of their streams."""
        slots = self._pending.slots
        blocks: list[Rows] = []
        for batch, receipt_ns, order in plains:
            plain, keys = batch.plain, batch.plain_keys()
            assert plain is not None  # noqa: S101  `take` has looked
            found = [-1 if (slot := slots.get(key)) is None else slot for key in keys]
            if -1 in found:
                found = [slot if slot >= 0 else self._new_slot(key) for slot, key in zip(found, keys, strict=True)]
            rows = Rows(
                slot=np.array(found, np.int64),
                seq=plain.seq,
                first_token=plain.first_token,
                end_ns=plain.end_ns,
                kind=plain.kind,
                order=np.full(len(plain), order),
                receipt_ns=np.full(len(plain), receipt_ns),
                events=np.diff(plain.offsets),
                tokens=plain.tokens,
                times_ns=plain.times_ns,
                counts=plain.counts,
            )
            if (late := rows.slot < 0).any():
                for index in np.flatnonzero(late).tolist():
                    self._late(int(rows.seq[index]), self._done[keys[index]])
                rows = rows.only(~late)
            blocks.append(rows)
        block = joined(blocks)
        self._pending.add_rows(block)
        touched, counts = np.unique(block.slot, return_counts=True)
        self._pending.received[touched] += counts
        return touched

    def _new_slot(self, key: bytes) -> int:
        """Return the slot of a request that may be new, -1 for one whose choice 0 was passed on."""
        return -1 if key in self._done else self._of(key).slot

    def _late(self, seq: int, ended: int) -> None:
        self.counts["duplicate_segments" if seq < ended else "anomaly.segment_after_end"] += 1

    def _set_needed(self, one: PendingRequest) -> None:
        """Note how many segments make a request complete, if those read one by one may be all that is needed."""
        needed = self._pending.needed
        needed[one.slot] = -1
        request = one.request
        if request is None or one.choices or one.spilled:
            return
        ending = one.ending()
        if ending is None or not ending_overrides(ending.attributes, request.attributes):
            return
        segments = ending.seq + 1
        if request.attributes.get(semconv.SEGMENTS) != segments and self._kept_weight > self.kept_bytes:
            return  # there may be other choices, and no memory is left to keep the span for them
        needed[one.slot] = segments

    # Complete streams.

    def _put_together(self, slots: Ints, *, early: bool) -> Streams:
        """Return the streams of these requests; `early`: only the complete ones, while the others stay."""
        pending = self._pending
        requests = [one for slot in slots.tolist() if (one := pending.by_slot[slot]) is not None]
        plain = pending.take_rows(slots)
        rows, own_kinds = with_others(plain, requests)
        if rows is None:
            return one_by_one(requests, None, self.counts)
        index = np.full(len(pending.by_slot), -1, np.int64)
        index[slots] = np.arange(len(slots))
        stream = index[rows.slot]
        has_rows = np.zeros(len(slots), np.bool_)
        has_rows[stream] = True
        if not has_rows.all():  # request spans without segments
            index[slots[has_rows]] = np.arange(int(has_rows.sum()))
            stream = index[rows.slot]
        begun = [one for one, has in zip(requests, has_rows.tolist(), strict=True) if has]
        merged = merge(rows, stream, len(begun))
        lengths = np.diff(merged.bounds)
        ending = np.fromiter((one.ending_seq() for one in begun), np.int64, len(begun))
        chosen = merged.regular & ((ending == NO_END) | (ending == lengths - 1))
        chosen &= merged.tokens <= MAX_TOKENS
        chosen &= ~repetitions_differ(begun, rows, stream, merged)
        if early:
            chosen &= lengths == pending.needed[slots]
            declared = np.fromiter((one.declared_tokens() for one in begun), np.int64, len(begun))
            chosen &= merged.tokens >= declared
        found = regular_streams(begun, rows, own_kinds, merged, chosen)
        self.counts["duplicate_segments"] += int(merged.repeated[chosen].sum())
        if early:
            self._forget(begun, plain, chosen, merged)
            return found
        irregular = [one for one, is_done in zip(begun, chosen.tolist(), strict=True) if not is_done]
        bare = [one for one, has in zip(requests, has_rows.tolist(), strict=True) if not has]
        return concatenate((found, one_by_one(irregular + bare, plain, self.counts)))

    def _forget(self, requests: list[PendingRequest], plain: Rows | None, chosen: Bools, merged: Merged) -> None:
        """Forget the requests that were passed on, and put back the rows of the others."""
        lengths = np.diff(merged.bounds)
        for one, gone, segments in zip(requests, chosen.tolist(), lengths.tolist(), strict=True):
            if gone:
                request = one.request
                assert request is not None  # noqa: S101
                if request.attributes.get(semconv.SEGMENTS) != segments:
                    kept = self._kept[one.key] = pickle.dumps(request)
                    self._kept_weight += len(kept) + _KEPT_SPAN_BYTES
                self._done[one.key] = segments
                self._pending.drop(one)
        if plain is not None and not chosen.all():
            pending = np.zeros(len(self._pending.by_slot), np.bool_)
            pending[[one.slot for one, gone in zip(requests, chosen.tolist(), strict=True) if not gone]] = True
            stays = pending[plain.slot]
            if stays.any():
                self._pending.add_rows(plain.only(stays))

    def _rest(self) -> Iterator[Streams]:
        for slots in self._pending.chunks():
            found = self._put_together(slots, early=False)
            for slot in slots.tolist():
                if (one := self._pending.by_slot[slot]) is not None:
                    self._pending.drop(one)
            if len(found):
                yield found

    # Temporary files.

    def _spill_oldest(self) -> None:
        requests = list(self._pending.by_key.values())
        if self._spill is None:
            self._spill = Spill()
        self._spill_all(requests[: len(requests) // 2 + 1])

    def _spill_all(self, requests: Iterable[PendingRequest]) -> None:
        """Write requests to the temporary files; only their keys stay."""
        chosen = list(requests)
        if not chosen or self._spill is None:
            return
        rows = self._pending.take_rows(np.array([one.slot for one in chosen]))
        self._spill.put(chosen, rows)
        for one in chosen:
            self._spilled.add(one.key)
            self._pending.drop(one)
