"""Read the segments of an export request that have the one form they nearly always have, all at once.

A segment in the middle of a stream, as every encoder of OTLP writes it, is a fixed run of bytes but for its ids, times
and counts: fields in order of number, the two attributes that place it, token events of one kind without a count, an
unset status. Its name is searched, everything around it is compared with that form by numpy, and what matches is read
as columns, without one Python object an event: 15 ns a token where protobuf's own objects take 250. The first and the
last of a stream say more behind those two attributes: they are read in the same pass and become records, and what they
say, which is nearly always what others have said before, is looked up by its bytes. What has another form is left to
protobuf, span by span; nothing is read that protobuf would not have read the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv
from otel_llm.readers.attributes import DEFAULT_LIMITS
from otel_llm.readers.plain_requests import SEGMENTS_KEY, plain_requests
from otel_llm.readers.records import Segment
from otel_llm.readers.saying import MOST_BYTES, framed, said
from otel_llm.readers.token_events import MAX_MESSAGE_TOKENS, MAX_TIME_NS
from otel_llm.slo.classes import CONTENT, KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeAlias

    import numpy.typing as npt

    from otel_llm.readers.attributes import AttributeLimits
    from otel_llm.readers.plain_requests import Placed, PlainRequests
    from otel_llm.readers.records import Attributes

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    Bools = npt.NDArray[np.bool_]
    _Origin: TypeAlias = "tuple[PlainSegments, int, int]"

TRACE_BYTES: Final = 16
_KEY: Final = np.dtype("V24")
"""A stream's key here: trace id and request span id, one after the other."""


@dataclass(slots=True)
class PlainSegments:
    """Segments as columns, in the order in which they stand in the message.

    `ids`: (S, 3), the halves of the trace id and the id of the request span, each eight bytes as an integer; `seq`,
    `first_token`, `start_ns`, `end_ns`, `kind`: (S,); `times_ns`: (N,) all tokens, those of segment i at
    `offsets[i]:offsets[i + 1]`, as received; `kind` is the code of all tokens of a segment. The choice is 0, and
    nothing else is said of the stream.
    """

    ids: Ints
    seq: Ints
    first_token: Ints
    start_ns: Ints
    end_ns: Ints
    kind: Bytes
    offsets: Ints
    times_ns: Ints
    origin: _Origin | None = field(default=None, repr=False, compare=False)
    """Of which segments they are a part, from one place to another."""

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def keys(self) -> list[bytes]:
        """Return the key of each, 24 bytes: trace id and request span id."""
        return keys_of(self.ids)

    def part(self, start: int, stop: int) -> PlainSegments:
        """Return those from one place to another, as views."""
        if start == 0 and stop == len(self):
            return self
        first, last = self.offsets[start], self.offsets[stop]
        return PlainSegments(
            self.ids[start:stop],
            self.seq[start:stop],
            self.first_token[start:stop],
            self.start_ns[start:stop],
            self.end_ns[start:stop],
            self.kind[start:stop],
            self.offsets[start : stop + 1] - first,
            self.times_ns[first:last],
            (self, start, stop),
        )

    def segment(self, place: int, receipt_ns: int | None = None) -> Segment:
        """Return one of them as a record of its own."""
        return next(self.part(place, place + 1).records([{}], receipt_ns))

    def records(self, attributes: Iterable[Attributes], receipt_ns: int | None = None) -> Iterator[Segment]:
        """Yield each of them as a record of its own; `attributes`: what each says besides."""
        offsets, times = self.offsets.tolist(), self.times_ns.tolist()
        for key, seq, first_token, start_ns, end_ns, kind, start, stop, saying in zip(
            self.keys,
            self.seq.tolist(),
            self.first_token.tolist(),
            self.start_ns.tolist(),
            self.end_ns.tolist(),
            self.kind.tolist(),
            offsets[:-1],
            offsets[1:],
            attributes,
            strict=True,
        ):
            yield Segment(
                key[:TRACE_BYTES],
                key[TRACE_BYTES:],
                0,
                seq,
                first_token,
                start_ns,
                end_ns,
                times[start:stop],
                None if kind == CONTENT or start == stop else bytes((kind,)) * (stop - start),
                saying,
                receipt_ns,
            )

    def only(self, chosen: Bools) -> PlainSegments:
        """Return those that are chosen, (S,)."""
        lengths = np.diff(self.offsets)
        return PlainSegments(
            ids=self.ids[chosen],
            seq=self.seq[chosen],
            first_token=self.first_token[chosen],
            start_ns=self.start_ns[chosen],
            end_ns=self.end_ns[chosen],
            kind=self.kind[chosen],
            offsets=np.concatenate(([0], np.cumsum(lengths[chosen]))),
            times_ns=self.times_ns[np.repeat(chosen, lengths)],
        )


def keys_of(ids: Ints) -> list[bytes]:
    """Return rows of three integers as the 24 bytes that they were read from."""
    keys: list[bytes] = ids.view(_KEY).ravel().tolist()
    return keys


def joined(parts: Sequence[PlainSegments]) -> PlainSegments:
    """Return the segments of several messages, in their order; `parts` must not be empty."""
    if len(parts) == 1:
        return parts[0]
    whole = _rejoined(parts[0].origin, (part.origin for part in parts[1:]))
    if whole is not None:
        return whole
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return PlainSegments(
        ids=np.concatenate([part.ids for part in parts]),
        seq=np.concatenate([part.seq for part in parts]),
        first_token=np.concatenate([part.first_token for part in parts]),
        start_ns=np.concatenate([part.start_ns for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        kind=np.concatenate([part.kind for part in parts]),
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        times_ns=np.concatenate([part.times_ns for part in parts]),
    )


def _rejoined(first: _Origin | None, others: Iterable[_Origin | None]) -> PlainSegments | None:
    """Return as one what was read together and taken apart, None where it is not that."""
    if first is None:
        return None
    whole, begin, upto = first
    for origin in others:
        if origin is None or origin[0] is not whole or origin[1] != upto:
            return None
        upto = origin[2]
    return whole.part(begin, upto)


_NAME_FIELD: Final = b"\x2a" + bytes((len(semconv.SEGMENT_SPAN),)) + semconv.SEGMENT_SPAN.encode()
_EVENTS_TAG: Final = 0x5A
_ATTRIBUTE_TAG: Final = 0x4A
FEW: Final = 4
"""Fewer segments in a message are read quicker one by one."""
_TAG: Final = 0x12
"""Field 2 with a length: the spans of a ScopeSpans, and the ScopeSpans of a ResourceSpans."""
_RESOURCE_SPANS_TAG: Final = 0x0A
_IDS: Final = b"\x0a\x10" + bytes(16) + b"\x12\x08" + bytes(8) + b"\x22\x08" + bytes(8)
_TRACE_AT: Final = 2
_SPAN_AT: Final = 20
_PARENT_AT: Final = 30
_START_AT: Final = len(_IDS) + len(_NAME_FIELD) + 3
_END_AT: Final = _START_AT + 9
_TIMES: Final = b"\x30\x01\x39" + bytes(8) + b"\x41" + bytes(8)
"""Kind INTERNAL, start, end."""
_TAIL: Final = b"\x7a\x00\x85\x01"
"""A status that is not set, and the tag of the flags, 4 bytes more."""
_TAIL_BYTES: Final = len(_TAIL) + 4
_EVENT_TIME_AT: Final = 3
_ROWS: Final = 256
"""So many rows are compared at a stretch."""
_EVENTS: Final = 8192
"""So many events are copied together at a time: what they take stays in the nearest caches."""
_MOST_VARINT_BYTES: Final = 4


class _Form:
    """Bytes of fixed length of which some must stand as they are: `template`, but for what is `free`, (start, length).

    Where it may stand is copied together and compared in one go.
    """

    __slots__ = ("_dtype", "_masks", "_values", "size")

    def __init__(self, template: bytes, *free: tuple[int, int]) -> None:
        mask = bytearray(b"\xff" * len(template))
        for start, length in free:
            mask[start : start + length] = bytes(length)
        self.size = len(template)
        self._dtype = np.dtype(f"V{self.size}")
        self._masks = np.frombuffer(bytes(mask) * _ROWS, dtype=np.uint8)
        self._values = np.frombuffer(template * _ROWS, dtype=np.uint8) & self._masks

    def rows(self, raw: bytes, starts: Ints) -> Bytes:
        """Return the bytes from each of `starts` on, (S, size); all of them are within `raw`."""
        everywhere = np.ndarray((max(0, len(raw) - self.size + 1),), self._dtype, raw, strides=(1,))
        return everywhere[starts].view(np.uint8).reshape(len(starts), self.size)

    def matches(self, rows: Bytes) -> Bools:
        """Tell which of these rows have the form."""
        fits = np.ones(len(rows), dtype=bool)
        whole = len(rows) // _ROWS * _ROWS
        for start, stop, stretches in ((0, whole, whole // _ROWS), (whole, len(rows), 1)):
            if start == stop:
                continue
            found = rows[start:stop].reshape(stretches, -1)
            length = found.shape[1]
            apart = (found & self._masks[:length]) != self._values[:length]
            for stretch in np.flatnonzero(apart.any(axis=1)).tolist():  # few, nearly always
                first = start + stretch * _ROWS
                fits[first : first + _ROWS] = ~apart[stretch].reshape(-1, self.size).any(axis=1)
        return fits

    def stands(self, raw: bytes, starts: Ints) -> Bools:
        """Tell at which of `starts` it stands."""
        return self.matches(self.rows(raw, starts))


def _integers(rows: Bytes, at: int) -> Ints:
    """Return the little-endian 64-bit integer at this place of each row, (S,)."""
    if not len(rows):
        return np.zeros(0, dtype=np.int64)
    return np.ndarray((len(rows),), "<i8", rows, at, (rows.shape[1],)).astype(np.int64)


def _int_attribute(key: str) -> bytes:
    """Return an int attribute up to its varint; the two lengths that depend on that are 0."""
    name = key.encode()
    return b"\x4a\x00\x0a" + bytes((len(name),)) + name + b"\x12\x00\x18"


_SEQ: Final = _int_attribute(semconv.SEGMENT_SEQ)
_FIRST: Final = _int_attribute(semconv.SEGMENT_FIRST_TOKEN)
_HEAD_TEMPLATE: Final = _IDS + _NAME_FIELD + _TIMES
_HEAD: Final = _Form(
    _HEAD_TEMPLATE,
    (_TRACE_AT, 16),
    (_SPAN_AT, 8),
    (_PARENT_AT, 8),
    (len(_IDS), len(_NAME_FIELD)),  # was searched for
    (_START_AT, 8),
    (_END_AT, 8),
)
_SEQ_FORM: Final = _Form(_SEQ, (1, 1), (len(_SEQ) - 2, 1))
_FIRST_FORM: Final = _Form(_FIRST, (1, 1), (len(_FIRST) - 2, 1))
_TAIL_FORM: Final = _Form(_TAIL)
_NAME: Final = _Form(_NAME_FIELD)
_SHORTEST_FROM_NAME: Final = _NAME.size + len(_TIMES) + _SEQ_FORM.size + _FIRST_FORM.size + 2 + _TAIL_BYTES
"""The shortest segment, from its name to its end."""


def _event_form(kind: int) -> _Form:
    event = Span.Event(name=semconv.TOKEN_EVENT, time_unix_nano=1)
    if kind != CONTENT:
        event.attributes.append(KeyValue(key=semconv.TOKEN_KIND, value=AnyValue(string_value=KINDS[kind])))
    body = event.SerializeToString()
    return _Form(bytes((_EVENTS_TAG, len(body))) + body, (_EVENT_TIME_AT, 8))


_EVENT_FORMS: Final = tuple(_event_form(kind) for kind in range(len(KINDS)))


class Taken(NamedTuple):
    """What was taken of an export request: the plain segments (None: none), those that say more, and what is left."""

    plain: PlainSegments | None
    saying: Sequence[Segment]
    rest: bytes
    requests: Sequence[Placed] = ()
    bare: bool = False
    """No span is left, only resources and scopes."""


def take(raws: Sequence[bytes], few: int = FEW, limits: AttributeLimits = DEFAULT_LIMITS) -> list[Taken]:
    """Take of each export request the segments that have the form, and the request spans that have theirs.

    They are searched in all requests at once, and only if those may hold `few` or more of either.
    """
    nothing = [Taken(None, (), raw) for raw in raws]
    joint = raws[0] if len(raws) == 1 else b"".join(raws)
    names = _names(joint)
    found = _candidates(joint, names, limits) if len(names) >= few else None
    if found is None and joint.count(SEGMENTS_KEY) < few:
        return nothing
    walk = _Rest(joint, _NONE if found is None else found.begin, _NONE if found is None else found.end)
    walk.requests = plain_requests(limits)
    splits: list[_Split | None] = []
    start = 0
    for raw in raws:
        splits.append(walk.split(start, start + len(raw)))
        start += len(raw)
    if found is None:
        return [
            Taken(None, (), split.rest, split.requests, split.bare) if split and split.requests else alone
            for split, alone in zip(splits, nothing, strict=True)
        ]
    places = np.concatenate([_NONE, *(split.places for split in splits if split)])
    says = np.zeros(len(found.begin), dtype=bool)
    says[list(found.saying)] = True
    says = says[places]
    plain, saying = found.segments(places[~says]), found.segments(places[says])
    told = list(saying.records([found.saying[place] for place in places[says].tolist()]))
    taken = []
    start = plain_start = told_start = 0
    for split, alone in zip(splits, nothing, strict=True):
        stop = start + (len(split.places) if split else 0)
        told_stop = told_start + int(says[start:stop].sum())
        plain_stop = stop - told_stop
        if split and (stop > start or split.requests):
            columns = plain.part(plain_start, plain_stop) if plain_stop > plain_start else None
            taken.append(Taken(columns, told[told_start:told_stop], split.rest, split.requests, split.bare))
        else:
            taken.append(alone)
        start, plain_start, told_start = stop, plain_stop, told_stop
    return taken


def _names(raw: bytes) -> Ints:
    """Return where the name of a segment stands, but for the last bytes, where nothing of one would follow."""
    data = np.frombuffer(raw, dtype=np.uint8)
    first = data[: 1 - _SHORTEST_FROM_NAME] == _NAME_FIELD[0]
    if np.count_nonzero(first) * _SHORTEST_FROM_NAME > len(raw):  # more than there can be names: made to cost memory
        pieces = raw.split(_NAME_FIELD)
        names = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))[:-1]
        names += len(_NAME_FIELD)
        return np.cumsum(names) - len(_NAME_FIELD)
    found: Ints = np.flatnonzero(first)
    found = found[data[found + 1] == _NAME_FIELD[1]]  # few others are left by then
    return found[_NAME.stands(raw, found)] if found.size else found


@dataclass(slots=True)
class _Candidates:
    """Spans that have the form, wherever they stand (it may be inside a string); `begin:end` from tag to last byte."""

    begin: Ints
    end: Ints
    ids: Ints
    start_ns: Ints
    end_ns: Ints
    seq: Ints
    first_token: Ints
    kind: Bytes
    offsets: Ints
    times_ns: Ints
    saying: dict[int, Attributes]
    """What those say that have further attributes, by place."""

    def segments(self, taken: Ints) -> PlainSegments:
        """Return those at these places, in their order."""
        offsets, times = self.offsets, self.times_ns
        if len(taken) < len(self.begin):
            lengths = np.diff(offsets)[taken]
            inside = np.repeat(offsets[taken] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
            offsets, times = np.concatenate(([0], np.cumsum(lengths))), times[inside]
        return PlainSegments(
            ids=self.ids[taken],
            seq=self.seq[taken],
            first_token=self.first_token[taken],
            start_ns=self.start_ns[taken],
            end_ns=self.end_ns[taken],
            kind=self.kind[taken],
            offsets=offsets,
            times_ns=times,
        )


def _candidates(raw: bytes, names: Ints, limits: AttributeLimits) -> _Candidates | None:
    data = np.frombuffer(raw, dtype=np.uint8)
    head = names - len(_IDS)
    # Room for the shortest: everything below is read within the message.
    shortest = len(_IDS) + _SHORTEST_FROM_NAME
    head = head[(head >= 4) & (head + shortest <= len(raw))]
    if not head.size:
        return None
    rows = _HEAD.rows(raw, head)
    head, rows = _kept(_HEAD.matches(rows), head, rows)
    begin, end = _extent(data, head)
    fits = (begin >= 0) & (end <= len(raw)) & (end - head >= shortest)
    head, rows, begin, end = _kept(fits, head, rows, begin, end)
    at = head + _HEAD.size
    head, rows, begin, end, at = _kept(_SEQ_FORM.stands(raw, at), head, rows, begin, end, at)
    seq, at, fits = _int_value(data, at, end, _SEQ_FORM.size)
    head, rows, begin, end, at, seq = _kept(fits, head, rows, begin, end, at, seq)
    fits = at + _FIRST_FORM.size + 1 + _TAIL_BYTES <= end
    head, rows, begin, end, at, seq = _kept(fits, head, rows, begin, end, at, seq)
    head, rows, begin, end, at, seq = _kept(_FIRST_FORM.stands(raw, at), head, rows, begin, end, at, seq)
    first, at, fits = _int_value(data, at, end, _FIRST_FORM.size)

    start_ns, end_ns = _integers(rows, _START_AT), _integers(rows, _END_AT)
    fits &= (start_ns > 0) & (end_ns >= start_ns) & (end_ns <= MAX_TIME_NS)
    ids = np.empty((len(head), 3), dtype=np.int64)
    for column, place in enumerate((_TRACE_AT, _TRACE_AT + 8, _PARENT_AT)):
        ids[:, column] = _integers(rows, place)
    fits &= (ids[:, 0] | ids[:, 1]) != 0
    fits &= ids[:, 2] != 0
    tail = end - _TAIL_BYTES
    fits &= at <= tail
    fits[fits] &= _TAIL_FORM.stands(raw, tail[fits])
    more = np.flatnonzero(fits & (data[np.minimum(at, len(raw) - 1)] == _ATTRIBUTE_TAG))
    saying: dict[int, Attributes] = {}
    for place, start, stop in zip(more.tolist(), at[more].tolist(), tail[more].tolist(), strict=True):
        attributes, at[place] = _said(raw, start, stop, limits)
        if attributes is not None:
            saying[place] = attributes
    plain = seq > 0  # one that begins a stream says more
    plain[more] = False
    plain[list(saying)] = True
    fits &= plain
    length = tail - at
    kind, count = np.zeros(len(head), dtype=np.uint8), np.zeros(len(head), dtype=np.int64)
    lead = data[np.minimum(at + 1, len(raw) - 1)]
    shaped = length == 0
    for code, form in enumerate(_EVENT_FORMS):
        own = np.flatnonzero(lead == form.size - 2)  # nearly always they all are of one kind
        own = own[(length[own] > 0) & (length[own] % form.size == 0)] if own.size else own
        if own.size:
            kind[own], count[own] = code, length[own] // form.size
            shaped[own] = True
    fits &= shaped
    if not fits.any():
        return None
    if saying and not fits.all():
        saying = {at: saying[place] for at, place in enumerate(np.flatnonzero(fits).tolist()) if place in saying}
    head, begin, end, at, seq, first = _kept(fits, head, begin, end, at, seq, first)
    ids, start_ns, end_ns, count = _kept(fits, ids, start_ns, end_ns, count)
    kind = kind[fits]
    offsets = np.concatenate(([0], np.cumsum(count)))
    if offsets[-1] > MAX_MESSAGE_TOKENS:
        return None
    times, whole = _tokens(raw, at, kind, count, offsets)
    whole &= _last_not_after(times, offsets, end_ns)
    if not whole.all():
        # Once more without those whose tokens do not fit: it is rare, and simpler than to carry them along.
        left = head[whole] + len(_IDS)
        return _candidates(raw, left, limits) if left.size else None
    return _Candidates(begin, end, ids, start_ns, end_ns, seq, first, kind, offsets, times, saying)


def _kept(fits: Bools, *columns: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Return columns without the rows that do not fit; nearly always there are none."""
    return columns if fits.all() else tuple(column[fits] for column in columns)


def _said(raw: bytes, start: int, stop: int, limits: AttributeLimits) -> tuple[Attributes | None, int]:
    """Return what the attributes from `start` on say, None where protobuf is to say it, and where they end."""
    position = start
    while position < stop and raw[position] == _ATTRIBUTE_TAG:
        length, size = raw[position + 1], 2
        if length > 127:
            length, size = length & 127 | raw[position + 2] << 7, 3
            if length >= 1 << 14:
                return None, stop
        position += size + length
    if position > stop or position - start > MOST_BYTES:
        return None, stop
    return said(raw[start:position], limits), position


def _extent(data: Bytes, head: Ints) -> tuple[Ints, Ints]:
    """Return where spans with this content begin (their tag) and end; a begin of -1 where no length stands there."""
    one, two, three = (data[head - back].astype(np.int64) for back in (1, 2, 3))
    low, mid, high = one < 128, two >= 128, three >= 128
    begin = np.full(len(head), -1)
    length = np.zeros(len(head), dtype=np.int64)
    for size, fits, value in (
        (1, low & (two == _TAG), one),
        (2, low & mid & (three == _TAG), (two & 127) | one << 7),
        (3, low & mid & high & (data[head - 4] == _TAG), (three & 127) | (two & 127) << 7 | one << 14),
    ):
        begin[fits], length[fits] = head[fits] - size - 1, value[fits]
    return begin, head + length


def _int_value(data: Bytes, at: Ints, end: Ints, size: int) -> tuple[Ints, Ints, Bools]:
    """Return the varint behind an attribute of `size` bytes at `at`, where the next field begins, and what fits."""
    start = at + size
    value = np.zeros(len(at), dtype=np.int64)
    length = np.zeros(len(at), dtype=np.int64)
    more = np.ones(len(at), dtype=bool)
    for place in range(_MOST_VARINT_BYTES):
        byte = data[np.minimum(start + place, end - 1)]
        value[more] |= (byte[more].astype(np.int64) & 127) << 7 * place
        length += more
        more &= byte > 127
        if not more.any():
            break
    # Both lengths must say what was read: that of the value, and that of the attribute.
    fits = ~more & (data[at + size - 2] == 1 + length) & (data[at + 1] == size - 2 + length) & (start + length <= end)
    return value, start + length, fits


def _tokens(raw: bytes, at: Ints, kind: Bytes, count: Ints, offsets: Ints) -> tuple[Ints, Bools]:
    """Return the times of all tokens, and of which segments every event has the form and a time."""
    whole = np.ones(len(at), dtype=bool)
    times: Ints | None = None
    for code, form in enumerate(_EVENT_FORMS):
        own = np.flatnonzero((kind == code) & (count > 0))
        if not own.size:
            continue
        number = count[own]
        before = np.cumsum(number) - number
        index = np.arange(number.sum())
        place = np.repeat(at[own] - before * form.size, number)
        place += index * form.size
        found, fits = np.empty(len(place), dtype=np.int64), np.empty(len(place), dtype=bool)
        for start in range(0, len(place), _EVENTS):
            some = slice(start, start + _EVENTS)
            rows = form.rows(raw, place[some])
            found[some], fits[some] = _integers(rows, _EVENT_TIME_AT), form.matches(rows)
        fits &= found > 0
        fits &= found <= MAX_TIME_NS
        if len(found) == offsets[-1]:
            times = found  # nearly always: all tokens are of one kind
        else:
            times = np.zeros(offsets[-1], dtype=np.int64) if times is None else times
            times[np.repeat(offsets[own] - before, number) + index] = found
        if not fits.all():
            whole[np.repeat(own, number)[~fits]] = False
    return np.zeros(0, dtype=np.int64) if times is None else times, whole


def _last_not_after(times: Ints, offsets: Ints, end_ns: Ints) -> Bools:
    """Tell which segments have no token after their end: those that have are counted, one by one."""
    fits = np.ones(len(end_ns), dtype=bool)
    filled = np.flatnonzero(np.diff(offsets))
    if filled.size:
        fits[filled] = np.maximum.reduceat(times, offsets[filled]) <= end_ns[filled]
    return fits


_NONE: Final = np.zeros(0, dtype=np.int64)


class _Split(NamedTuple):
    """Which candidates are spans of a message, the rest of it, and the request spans that were read there."""

    places: Ints
    rest: bytes
    requests: list[Placed]
    bare: bool


class _Rest:
    """Walk a message, jump over candidates where a span may stand, read request spans there, keep everything else."""

    requests: PlainRequests | None = None

    def __init__(self, raw: bytes, begin: Ints, end: Ints) -> None:
        self._raw = raw
        self._end = end
        follows = np.zeros(len(begin), dtype=bool)
        follows[1:] = begin[1:] == end[:-1]
        starts = np.flatnonzero(~follows)
        stops = np.append(starts[1:], len(begin))[: len(starts)]
        runs = zip(starts.tolist(), stops.tolist(), end[stops - 1].tolist(), strict=True)
        self._runs = dict(zip(begin[starts].tolist(), runs, strict=True))
        self._taken: list[tuple[int, int]] = []
        self._placed: list[Placed] = []
        self._resources = self._left = 0

    def split(self, begin: int, end: int) -> _Split | None:
        """Return what is read of the message between these places, and that message without it.

        None where its fields do not add up.
        """
        self._taken, self._placed = [], []
        self._resources = self._left = 0
        try:
            parts = b"".join(
                self._resource(payload, stop) if tag == _RESOURCE_SPANS_TAG else self._raw[start:stop]
                for tag, start, payload, stop in self.fields(begin, end)
            )
        except _MalformedError:
            return None
        places = np.concatenate([_NONE, *(np.arange(first, last) for first, last in self._taken)])
        return _Split(places, parts, self._placed, self._left == 0)

    def _resource(self, start: int, stop: int) -> bytes:
        parts = [
            self._scope(payload, end) if tag == _TAG else self._raw[begin:end]
            for tag, begin, payload, end in self.fields(start, stop)
        ]
        self._resources += 1
        return framed(_RESOURCE_SPANS_TAG, b"".join(parts))

    def _scope(self, start: int, stop: int) -> bytes:
        parts: list[bytes] = []
        position = start
        requests = self.requests
        while position < stop:
            run = self._runs.get(position)
            if run is not None:
                first, last, behind = run
                if behind > stop:
                    # The last of a run may belong to whatever stands behind this scope.
                    last = first + int(np.searchsorted(self._end[first:last], stop, side="right"))
                    behind = int(self._end[last - 1])
                if last > first:
                    if self._taken and self._taken[-1][1] == first:  # behind a span of another form
                        first = self._taken.pop()[0]
                    self._taken.append((first, last))
                    position = behind
                    continue
            if requests is not None and self._raw[position] == _TAG:
                found = requests.read(self._raw, position, stop)
                if found is not None:
                    request, position = found
                    self._placed.append((request, self._resources, self._left))
                    continue
            tag, _, following = self._field(position, stop)
            self._left += tag == _TAG
            parts.append(self._raw[position:following])
            position = following
        return framed(_TAG, b"".join(parts))

    def fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield each field's tag, where it begins, where its payload does, and where it ends."""
        while start < stop:
            tag, payload, following = self._field(start, stop)
            yield tag, start, payload, following
            start = following

    def _field(self, start: int, stop: int) -> tuple[int, int, int]:
        """Return a field's tag, where its payload begins, and where the next field does."""
        tag, position = self._varint(start, min(stop, start + _TAG_BYTES))
        wire_type = tag & 7
        if wire_type == 2:
            length, position = self._varint(position, min(stop, position + _TAG_BYTES))
            following = position + length
        elif wire_type == 0:
            following = self._varint(position, stop)[1]
        elif wire_type in _FIXED:
            following = position + _FIXED[wire_type]
        else:
            raise _MalformedError
        if following > stop:
            raise _MalformedError
        return tag, position, following

    def _varint(self, position: int, stop: int) -> tuple[int, int]:
        value = shift = 0
        while position < stop and shift < 64:
            byte = self._raw[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, position
            shift += 7
        raise _MalformedError


_TAG_BYTES: Final = 5
"""Protobuf refuses tags and lengths that take more."""
_FIXED: Final = {1: 8, 5: 4}


def parts(raw: bytes, most: int) -> int:
    """Count resources, scopes and spans of an export request, up to `most` + 1; what does not add up counts nothing."""
    walk = _Rest(raw, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    found = 0
    try:
        for tag, _, start, stop in walk.fields(0, len(raw)):
            found += 1
            if tag != _RESOURCE_SPANS_TAG:
                continue
            for inner, _, scope_start, scope_stop in walk.fields(start, stop):
                found += 1
                if inner == _TAG:
                    for _ in walk.fields(scope_start, scope_stop):
                        found += 1
                        if found > most:
                            return found
                if found > most:
                    return found
            if found > most:
                return found
    except _MalformedError:
        return found
    return found


class _MalformedError(ValueError):
    """Say that fields do not add up: protobuf is to say what is wrong with them."""
