"""Read the columns of a scan: segments as columns, other spans as records, the rest by protobuf, span by span."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_llm import semconv
from otel_llm.core.limits import MAX_TOKENS
from otel_llm.core.scanning import span_columns as column
from otel_llm.core.scanning.scan import scan as scan_message
from otel_llm.formats.batch import Batch, SegmentColumns, ids_of
from otel_llm.formats.otlp.attribute_cache import attribute_cache
from otel_llm.formats.otlp.length_delimited import (
    RESOURCE,
    RESOURCE_SPANS,
    SCOPE,
    SPAN,
    length_delimited,
    within_scope,
)
from otel_llm.formats.otlp.span_records import add_span, instance_of
from otel_llm.formats.records import DecodeError, RequestSpan, Segment
from otel_llm.formats.spans.attributes import MAX_VALUE_CHARS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.formats.records import Attributes
    from otel_llm.formats.spans.attributes import AttributeLimits

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]

_MUCH: Final = 4
"""The whole message is checked at once if spans that are only checked have more than this fraction of it: 1 / _MUCH."""
_TOO_MANY: Final = "too_many_tokens"
_FRAMED_BYTES: Final = 2048
"""Longer resources and scopes are not cached."""


class Scanned(NamedTuple):
    """The arrays of a scan, of the length of its results; see `otel_llm.core.scanning.scan.scan`."""

    spans: Ints
    times_ns: Ints
    counts: Ints
    kinds: Bytes
    attributes: Ints
    pieces: Ints
    plain: int
    """The number of plain segments."""
    tokens: int
    """The number of tokens of all rows."""


def scan(raw: bytes) -> Scanned | None:
    """Return the scan of an export request; None if protobuf must find the error."""
    data = np.frombuffer(raw, np.uint8)
    # The size of the usual message: a segment takes 60 bytes or more, a token 18, an attribute 24.
    room = {
        column.SPANS: len(raw) // 60 + 8,
        column.ALL_EVENTS: len(raw) // 18 + 8,
        column.ALL_ATTRIBUTES: len(raw) // 24 + 8,
        column.PIECES: len(raw) // 256 + 8,
    }
    while True:
        spans = np.empty((room[column.SPANS], column.SPAN_COLUMNS), np.int64)
        events = room[column.ALL_EVENTS]
        times_ns, counts, kinds = np.empty(events, np.int64), np.empty(events, np.int64), np.empty(events, np.uint8)
        attributes = np.empty((room[column.ALL_ATTRIBUTES], 2), np.int64)
        pieces = np.empty((room[column.PIECES], column.PIECE_COLUMNS), np.int64)
        filled = np.zeros(column.COUNTS, np.int64)
        answer = scan_message(data, spans, times_ns, counts, kinds, attributes, pieces, filled)
        if answer == column.READ:
            break
        if answer == column.UNREADABLE:
            return None
        room = {what: 4 * max(had, int(filled[what])) if filled[what] >= had else had for what, had in room.items()}
    return Scanned(
        spans[: filled[column.SPANS]],
        times_ns[: filled[column.ALL_EVENTS]],
        counts[: filled[column.ALL_EVENTS]],
        kinds[: filled[column.ALL_EVENTS]],
        attributes[: filled[column.ALL_ATTRIBUTES]],
        pieces[: filled[column.PIECES]],
        int(filled[column.PLAIN_SPANS]),
        int(filled[column.ALL_EVENTS] + filled[column.MORE_TOKENS]),
    )


def read_scanned(raw: bytes, receipt_ns: int | None, limits: AttributeLimits, budget: int) -> Batch | None:
    """Return the records of an export request of at most `budget` tokens; None if protobuf must read all of it.

    Raises:
        DecodeError: these bytes are no such message.
    """
    found = scan(raw)
    if found is None or found.tokens > budget:
        return None
    senders = _senders(raw, found.pieces)
    batch = Batch()
    if found.plain == len(found.spans):
        batch.plain = _columns(found, found.spans) if found.plain else None
        return batch
    kinds = found.spans[:, column.CLASS]
    plain, foreign = kinds == column.PLAIN, kinds == column.FOREIGN
    if found.plain:
        batch.plain = _columns(found, found.spans[plain])
    if foreign.any():
        batch.ignored = _check_foreign(raw, found.spans[foreign])
    records = _Records(raw, found, senders, batch, receipt_ns, limits, budget)
    return batch if records.add(found.spans[~(plain | foreign)]) else None


def _check_foreign(raw: bytes, spans: Ints) -> int:
    """Return the number of these spans, which protobuf only checks.

    Raises:
        DecodeError: one of them is none.
    """
    begin, stop = spans[:, column.BEGIN], spans[:, column.STOP]
    if _MUCH * int((stop - begin).sum()) > len(raw):
        _checked(raw)
    else:
        places = zip(begin.tolist(), stop.tolist(), strict=True)
        _checked(within_scope(b"".join(length_delimited(SPAN, raw[at:end]) for at, end in places)))
    return len(spans)


def _columns(found: Scanned, spans: Ints) -> SegmentColumns:
    """Return plain segments with the times of their tokens, copied: the scan's arrays are larger."""
    begin, stop = spans[:, column.EVENTS], spans[:, column.EVENTS + 1]
    offsets = np.zeros(len(spans) + 1, np.int64)
    np.cumsum(stop - begin, out=offsets[1:])
    if offsets[-1] == len(found.times_ns):
        times_ns, counts = found.times_ns.copy(), found.counts.copy()
    else:
        own = np.repeat(begin - offsets[:-1], stop - begin) + np.arange(offsets[-1])
        times_ns, counts = found.times_ns[own], found.counts[own]
    return SegmentColumns(
        ids=np.ascontiguousarray(spans[:, column.TRACE : column.TRACE + 3]),
        seq=spans[:, column.SEQ].copy(),
        first_token=spans[:, column.FIRST_TOKEN].copy(),
        start_ns=spans[:, column.START_NS].copy(),
        end_ns=spans[:, column.END_NS].copy(),
        kind=spans[:, column.KIND].astype(np.uint8),
        offsets=offsets,
        times_ns=times_ns,
        counts=counts,
        tokens=spans[:, column.TOKENS].copy(),
        last_byte_ns=spans[:, column.LAST_BYTE_NS].copy(),
    )


class _Records:
    """The spans of a message that are no columns, added to its batch in order."""

    def __init__(
        self,
        raw: bytes,
        found: Scanned,
        senders: dict[int, str | None],
        batch: Batch,
        receipt_ns: int | None,
        limits: AttributeLimits,
        budget: int,
    ) -> None:
        self._budget = budget
        self._raw = raw
        self._found = found
        self._senders = senders
        self._batch = batch
        self._receipt_ns = receipt_ns
        self._limits = limits
        self._cache = attribute_cache(limits)
        self._places: Sequence[tuple[int, int]] = found.attributes.tolist()

    def add(self, spans: Ints) -> bool:
        """Add spans; return False if the order of all spans decides which of them are within the token budget.

        Raises:
            DecodeError: one that is left to protobuf is invalid.
        """
        rows = spans.tolist()
        read = [None if row[column.CLASS] == column.OTHER else self._attributes(row) for row in rows]
        others = [row for row, attributes in zip(rows, read, strict=True) if attributes is None]
        left = iter(self._parsed(others))
        budget = self._budget - self._found.tokens
        # If protobuf reads a span after all, its tokens are counted then.
        budget += sum(row[column.TOKENS] for row in others if row[column.CLASS] != column.OTHER)
        last, reported = (b"", -1), Batch()
        every = ids_of(np.ascontiguousarray(spans[:, column.TRACE : column.TRACE + 3]))
        for row, attributes, ids in zip(rows, read, every, strict=True):
            if attributes is None:
                span, written = next(left), (self._raw[row[column.BEGIN] : row[column.STOP]], row[column.RESOURCE])
                if written != last:  # otherwise it repeats the one before: read once
                    last, reported = written, Batch()
                    sender = self._senders.get(row[column.RESOURCE])
                    add_span(span, reported, min(budget, MAX_TOKENS), self._receipt_ns, sender, self._limits)
                budget -= reported.tokens + sum(one.tokens for one in reported.requests)
                if budget < 0 or (budget < MAX_TOKENS and _TOO_MANY in reported.refused | reported.anomalies):
                    return False
                _add(self._batch, reported)
            elif row[column.CLASS] == column.SEGMENT:
                self._segment(row, ids, attributes)
            else:
                self._request(row, ids, attributes)
        return True

    def _parsed(self, rows: Sequence[Sequence[int]]) -> Sequence[Span]:
        if not rows:
            return ()
        fields = b"".join(length_delimited(SPAN, self._raw[row[column.BEGIN] : row[column.STOP]]) for row in rows)
        return _checked(within_scope(fields)).resource_spans[0].scope_spans[0].spans

    def _attributes(self, row: Sequence[int]) -> Attributes | None:
        begin, stop = row[column.ATTRIBUTES], row[column.ATTRIBUTES + 1]
        if stop - begin > self._limits.count:
            return None
        places = self._places[begin:stop]
        if row[column.CLASS] == column.SEGMENT:
            return self._cache.read_shared(self._raw, places)
        found = self._cache.read(self._raw, places)
        # A request span whose segments have the times of tokens; otherwise it is read as a foreign span is.
        return found if found is not None and semconv.SEGMENTS in found else None

    def _segment(self, row: Sequence[int], ids: bytes, attributes: Attributes) -> None:
        begin, stop = row[column.EVENTS], row[column.EVENTS + 1]
        kinds = self._found.kinds[begin:stop].tobytes()
        if row[column.LATE]:
            self._batch.anomalies["token_after_segment_end"] += 1
        self._batch.segments.append(
            Segment(
                ids[:16],
                ids[16:],
                row[column.CHOICE],
                row[column.SEQ],
                row[column.FIRST_TOKEN],
                row[column.START_NS],
                row[column.END_NS],
                self._found.times_ns[begin:stop].tolist(),
                kinds if any(kinds) else None,
                attributes,
                self._receipt_ns,
                self._senders.get(row[column.RESOURCE]),
                row[column.LAST_BYTE_NS],
                None if row[column.TOKENS] == stop - begin else self._found.counts[begin:stop].tolist(),
            )
        )

    def _request(self, row: Sequence[int], ids: bytes, attributes: Attributes) -> None:
        parent = row[column.PARENT_AT]
        self._batch.requests.append(
            RequestSpan(
                ids[:16],
                ids[16:],
                self._raw[parent : parent + 8] if parent >= 0 else b"",
                self._raw[row[column.NAME_AT] : row[column.NAME_END]].decode()[:MAX_VALUE_CHARS],
                row[column.KIND],
                row[column.START_NS],
                row[column.END_NS],
                bool(row[column.ERROR]),
                attributes,
                receipt_ns=self._receipt_ns,
                instance_id=self._senders.get(row[column.RESOURCE]),
            )
        )


def _add(batch: Batch, span: Batch) -> None:
    """Add the counts and records of one span's batch to those of all."""
    batch.segments += span.segments
    batch.requests += span.requests
    batch.ignored += span.ignored
    if span.refused:
        batch.refused.update(span.refused)
    if span.anomalies:
        batch.anomalies.update(span.anomalies)


def _senders(raw: bytes, pieces: Ints) -> dict[int, str | None]:
    """Return the sender of each resource with statements on itself; check resources and scopes.

    Raises:
        DecodeError: one of them is none.
    """
    senders: dict[int, str | None] = {}
    for what, resource, begin, stop in pieces.tolist():
        fields, short = raw[begin:stop], stop - begin <= _FRAMED_BYTES
        if what == column.RESOURCE_PIECE:
            senders[resource] = known_sender(fields) if short else _sender(fields)
        elif short:
            _known_scope(fields)
        else:
            _check_scope(fields)
    return senders


def _sender(fields: bytes) -> str | None:
    message = _checked(length_delimited(RESOURCE_SPANS, length_delimited(RESOURCE, fields)))
    return instance_of(message.resource_spans[0].resource.attributes)


def _check_scope(fields: bytes) -> None:
    _checked(within_scope(length_delimited(SCOPE, fields)))


# Most senders send many messages.
known_sender = lru_cache(maxsize=256)(_sender)
_known_scope = lru_cache(maxsize=256)(_check_scope)


def _checked(message: bytes) -> ExportTraceServiceRequest:
    try:
        return ExportTraceServiceRequest.FromString(message)
    except ProtobufDecodeError as error:
        raise DecodeError(f"not an OTLP trace export request: {error}") from error
