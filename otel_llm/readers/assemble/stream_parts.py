"""One request on its way to a row: what was received of it, and what that comes to once it is whole or all is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.readers.assemble.requests import Held, Parts, Prefix, Resolved, StreamParts, declared_tokens
from otel_llm.readers.assemble.stream_rows import NO_RECEIPT, OWN_KINDS, Rows, joined
from otel_llm.readers.records import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.readers.assemble.requests import Assembled
    from otel_llm.readers.assemble.stream_rows import Bools, Ints, Tiled
    from otel_llm.readers.records import Attributes, RequestSpan

NO_END: Final = -1
SEVERAL: Final = -2


@dataclass(slots=True)
class Streams:
    """Streams put together: what is known of each, and the token times of them all.

    Those of stream r are `times_ns[offsets[r]:offsets[r + 1]]`, in the order that `Assembled` states; `kinds` a code a
    token, None where all is content.
    """

    resolved: list[Resolved] = field(default_factory=list)
    times_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    offsets: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    kinds: list[bytes | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.resolved)

    @classmethod
    def of(cls, streams: Sequence[Assembled]) -> Streams:
        """Return these streams, in their order."""
        lengths = [len(one.times_ns) for one in streams]
        times = np.fromiter((time for one in streams for time in one.times_ns), np.int64, sum(lengths))
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        return cls([one.resolved for one in streams], times, offsets, [one.kinds for one in streams])


@dataclass(slots=True)
class Open:
    """A request of which something was received and that was not handed on: what stands in no row of segments.

    `segments` are those that were read one by one, with the number of their export request; `choices`: it has others
    than 0; `earlier`: choice 0 was handed on; `weight` about how many bytes it takes.
    """

    key: bytes
    slot: int
    segments: list[tuple[int, Segment]] = field(default_factory=list)
    request: RequestSpan | None = None
    choices: bool = False
    earlier: bool = False
    spilled: bool = False
    weight: int = 300


def ending_of(one: Open) -> Segment | None:
    """Return the last segment, where exactly one says that it is, and segment 0 was received too."""
    endings = [segment for _, segment in one.segments if semconv.OUTCOME in segment.attributes]
    if len({segment.seq for segment in endings}) != 1 or not any(segment.seq == 0 for _, segment in one.segments):
        return None
    return endings[0]


def ends_at(one: Open) -> int:
    """Return the number of the segment that says how a request's only choice ended; SEVERAL where there is not one."""
    if one.choices or one.earlier:
        return SEVERAL
    endings = {segment.seq for _, segment in one.segments if semconv.OUTCOME in segment.attributes}
    return NO_END if not endings else endings.pop() if len(endings) == 1 else SEVERAL


def declared_by(one: Open) -> int:
    """Return how many tokens a request's last segment says that there are, 0 where it does not."""
    ending = ending_of(one)
    return 0 if ending is None else declared_tokens(ending.attributes)


def with_others(plain: Rows | None, opens: list[Open]) -> tuple[Rows | None, dict[int, bytes]]:
    """Return the rows of requests together with the segments that were read one by one, and the kinds that these have.

    The kinds are by place among the rows. Those read one by one come first: of two with one number in one export
    request they are taken.
    """
    cells: list[tuple[int, int, int, int, int, int, int, int]] = []
    times: list[int] = []
    own_kinds: dict[int, bytes] = {}
    for one in opens:
        if one.choices:
            continue
        for order, segment in one.segments:
            if segment.kinds is not None:
                own_kinds[len(cells)] = segment.kinds
            cells.append(
                (
                    one.slot,
                    segment.seq,
                    segment.first_token,
                    segment.end_ns,
                    0 if segment.kinds is None else OWN_KINDS,
                    order,
                    NO_RECEIPT if segment.receipt_ns is None else segment.receipt_ns,
                    len(segment.times_ns),
                )
            )
            times += segment.times_ns
    if not cells:
        return plain, own_kinds
    slot, seq, first, end, kind, order, receipt, counts = np.array(cells, np.int64).T
    others = Rows(slot, seq, first, end, kind.astype(np.uint8), order, receipt, counts, np.array(times, np.int64))
    return others if plain is None else joined([others, plain]), own_kinds


def resolve(one: Open, segments: int, tokens: int, end_ns: int, inner_end_ns: int, offset_ns: int | None) -> Resolved:
    """Say what is known of a stream whose segments are all there from 0 on: those before the last one as a prefix.

    `segments`, `tokens`: how many there are; `end_ns`: the latest end of one, `inner_end_ns`: of one but the last.
    """
    last: Segment | None = None
    said: dict[int, Segment] = {}
    for _, segment in one.segments:
        if semconv.OUTCOME in segment.attributes:
            last = last or segment
        elif segment.attributes or not segment.seq:
            said.setdefault(segment.seq, segment)
    stream = StreamParts(offset_ns=offset_ns)
    if last is not None:
        stream.held[last.seq] = Held(last, len(last.times_ns))
        stream.ending = last.seq
        segments, tokens, end_ns = segments - 1, tokens - len(last.times_ns), inner_end_ns
    if segments:
        attributes: Attributes = {}
        for seq in sorted(said, reverse=True):
            attributes.update(said[seq].attributes)
        stream.prefix = Prefix(segments, tokens, said[0].start_ns, end_ns, attributes)
    return Parts(one.key[:16], one.key[16:], one.request, {0: stream}).resolve(0)


def say_more(opens: list[Open], rows: Rows, stream: Ints, tiled: Tiled) -> Bools:
    """Tell of which streams (C,) a repetition says something that the segment that came first does not.

    It changes nothing, but here what segments say is not kept by row: such a stream is to be put together one by one.
    `rows`, `stream` as for `tile`, of `with_others`: those that were read one by one stand first.
    """
    found = np.zeros(len(opens), np.bool_)
    if not tiled.repeated.any():
        return found  # nearly always
    others = [segment for one in opens if not one.choices for _, segment in one.segments]
    repeated = np.ones(len(others), np.bool_)
    repeated[tiled.rows[tiled.rows < len(others)]] = False
    for place in np.flatnonzero(repeated).tolist():
        of = int(stream[place])
        own = tiled.rows[tiled.bounds[of] : tiled.bounds[of + 1]]
        first = int(own[rows.seq[own] == rows.seq[place]][0])
        came = others[first].attributes if first < len(others) else {}
        found[of] |= others[place].attributes != came
    return found


def kinds_of(rows: Rows, places: Iterable[int], own: dict[int, bytes]) -> bytes:
    """Return a code a token of the rows at these places; `own`: those of rows whose tokens have their own."""
    return b"".join(
        bytes((int(rows.kind[place]),)) * int(rows.counts[place]) if place not in own else own[place]
        for place in places
    )


def as_segments(plain: Rows, own: dict[int, list[tuple[int, Segment]]], by_slot: Sequence[Open | None]) -> None:
    """Put rows among the segments of the streams in `own`, as if they had been read one by one."""
    mine = np.isin(plain.slot, np.fromiter(own, np.int64, len(own)))
    if not mine.any():
        return
    rows = plain.only(mine)
    stops = np.cumsum(rows.counts).tolist()
    times = rows.times_ns.tolist()
    columns = (rows.slot, rows.seq, rows.first_token, rows.end_ns, rows.kind, rows.order, rows.receipt_ns, rows.counts)
    for stop, (slot, seq, first, end_ns, kind, order, receipt_ns, count) in zip(
        stops, zip(*(column.tolist() for column in columns), strict=True), strict=True
    ):
        one = by_slot[slot]
        assert one is not None  # noqa: S101
        segment = Segment(
            one.key[:16],
            one.key[16:],
            0,
            seq,
            first,
            end_ns,  # where it begins says nothing
            end_ns,
            times[stop - count : stop],
            bytes((kind,)) * count if kind else None,
            {},
            None if receipt_ns == NO_RECEIPT else receipt_ns,
        )
        own[slot].append((order, segment))


def sort_times(streams: Streams) -> None:
    """Put the tokens of the streams that are complete in order of time, each with its kind."""
    times, offsets = streams.times_ns, streams.offsets
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1
    if not len(falls):
        return
    of = np.searchsorted(offsets, falls, "right") - 1
    for place in np.unique(of[offsets[of] != falls]).tolist():
        if streams.resolved[place].complete:
            span = slice(int(offsets[place]), int(offsets[place + 1]))
            order = np.argsort(times[span], kind="stable")
            times[span] = times[span][order]
            kinds = streams.kinds[place]
            if kinds is not None:
                streams.kinds[place] = np.frombuffer(kinds, np.uint8)[order].tobytes()


def together(parts: Sequence[Streams]) -> Streams:
    """Return streams of several as one, in their order."""
    some = [part for part in parts if len(part)]
    if len(some) < 2:
        return some[0] if some else Streams()
    starts = np.cumsum([0, *(int(part.offsets[-1]) for part in some)])
    return Streams(
        [one for part in some for one in part.resolved],
        np.concatenate([part.times_ns for part in some]),
        np.concatenate([[0], *(part.offsets[1:] + start for part, start in zip(some, starts, strict=False))]),
        [one for part in some for one in part.kinds],
    )
