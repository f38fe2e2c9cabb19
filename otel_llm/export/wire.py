"""Encode records as the bytes of an OTLP `ExportTraceServiceRequest`, without building protobuf messages.

Field numbers are those of opentelemetry-proto 1.x (trace.proto, common.proto, resource.proto); the encoding is that of
the protobuf specification. A token's event has 18 bytes, only 8 of them differ (its time), so a segment's events are
one template with the times written over it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import SpanKind

from otel_llm import semconv
from otel_llm.export.records import Segment, mark_attributes, version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TraceState

    from otel_llm.export.records import Record, RequestRecord, SpanEvent

_DOUBLE: Final = struct.Struct("<d")
_FIXED64: Final = struct.Struct("<Q")
_TWO_FIXED64: Final = struct.Struct("<BQBQ")

# Span: trace_id 1, span_id 2, trace_state 3, parent_span_id 4, name 5, kind 6, start 7, end 8, attributes 9, events 11,
# status 15, flags 16. The tag of a field is its number times 8 plus its wire type (2 with a length, 1 fixed64).
_KIND_INTERNAL: Final = b"\x30\x01"
_KINDS: Final = {SpanKind.INTERNAL: _KIND_INTERNAL, SpanKind.SERVER: b"\x30\x02", SpanKind.CLIENT: b"\x30\x03"}
_FLAGS_LOCAL: Final = b"\x85\x01\x00\x01\x00\x00"
_FLAGS_REMOTE: Final = b"\x85\x01\x00\x03\x00\x00"
"""Flags as fixed32: whether the parent is remote is known (0x100), and it is (0x200)."""

_STATUS_UNSET: Final = b"\x7a\x00"
_STATUS_ERROR_CODE: Final = b"\x18\x02"

_EVENT_NAME: Final = b"\x12" + bytes((len(semconv.TOKEN_EVENT),)) + semconv.TOKEN_EVENT.encode()
_EVENT_LENGTH: Final = 9 + len(_EVENT_NAME)
_EVENT: Final = b"\x5a" + bytes((_EVENT_LENGTH,)) + b"\x09" + bytes(8) + _EVENT_NAME
_EVENT_TIME: Final = 3
"""The position of the eight bytes of time in `_EVENT`."""

_SEGMENT_NAME_AND_KIND: Final = (
    b"\x2a" + bytes((len(semconv.SEGMENT_SPAN),)) + semconv.SEGMENT_SPAN.encode() + _KIND_INTERNAL
)
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))

INT64_MAX: Final = (1 << 63) - 1
INT64_MIN: Final = -(1 << 63)


def export_request(records: Iterable[Record]) -> bytes:
    """Encode records as one `ExportTraceServiceRequest`, grouped by resource.

    An attribute that OTLP cannot carry (an integer beyond 64 bits, text with lone surrogates) is left out, as the
    standard encoder does; nothing else is lost.
    """
    groups: dict[int, tuple[Resource, list[bytes]]] = {}
    for record in records:
        resource = record.origin.resource if isinstance(record, Segment) else record.resource
        span = _segment(record) if isinstance(record, Segment) else _request(record)
        groups.setdefault(id(resource), (resource, []))[1].append(_field(b"\x12", span))
    scope = _field(b"\x0a", _scope())
    return b"".join(
        _field(b"\x0a", _resource(resource) + _field(b"\x12", scope + b"".join(spans)) + _schema_url(resource))
        for resource, spans in groups.values()
    )


def _segment(segment: Segment) -> bytes:
    parent = segment.origin.parent
    return b"".join(
        (
            b"\x0a\x10",
            parent.trace_id.to_bytes(16, "big"),
            b"\x12\x08",
            segment.span_id.to_bytes(8, "big"),
            _trace_state(parent.trace_state),
            b"\x22\x08",
            parent.span_id.to_bytes(8, "big"),
            _SEGMENT_NAME_AND_KIND,
            _TWO_FIXED64.pack(0x39, segment.start_ns, 0x41, segment.end_ns),
            _attributes(b"\x4a", segment.attributes),
            _plain_events(segment.times_ns)
            if segment.marks is None
            else _marked_events(segment.times_ns, segment.marks),
            _STATUS_UNSET,
            _FLAGS_REMOTE if parent.is_remote else _FLAGS_LOCAL,
        )
    )


def _request(record: RequestRecord) -> bytes:
    context, parent = record.context, record.parent
    status = _STATUS_UNSET
    if record.failure is not None:
        status = _field(b"\x7a", _text(b"\x12", record.failure) + _STATUS_ERROR_CODE)
    return b"".join(
        (
            b"\x0a\x10",
            context.trace_id.to_bytes(16, "big"),
            b"\x12\x08",
            context.span_id.to_bytes(8, "big"),
            _trace_state(context.trace_state),
            b"" if parent is None else b"\x22\x08" + parent.span_id.to_bytes(8, "big"),
            _text(b"\x2a", record.name),
            _KINDS[record.kind],
            _TWO_FIXED64.pack(0x39, record.start_ns, 0x41, record.end_ns),
            _attributes(b"\x4a", record.attributes),
            b"".join(_field(b"\x5a", _event(event)) for event in record.events),
            status,
            _FLAGS_REMOTE if parent is not None and parent.is_remote else _FLAGS_LOCAL,
        )
    )


def _plain_events(times_ns: Sequence[int]) -> bytes:
    # Byte k of every time is written to its place in every event by one strided copy: 8 copies in C for any number of
    # events (about 0.05 us an event here, while one protobuf message an event costs 10 us).
    count = len(times_ns)
    if not count:
        return b""
    events = bytearray(_EVENT * count)
    times = struct.pack(f"<{count}Q", *times_ns)
    for k in range(8):
        events[_EVENT_TIME + k :: len(_EVENT)] = times[k::8]
    return bytes(events)


def _marked_events(times_ns: Sequence[int], marks: Sequence[int]) -> bytes:
    events = []
    for time_ns, packed in zip(times_ns, marks, strict=True):
        event = b"\x09" + _FIXED64.pack(time_ns) + _event_rest(packed)
        events.append(b"\x5a" + _varint(len(event)) + event)
    return b"".join(events)


def _event(event: SpanEvent) -> bytes:
    return b"\x09" + _FIXED64.pack(event.time_ns) + _text(b"\x12", event.name) + _attributes(b"\x1a", event.attributes)


@lru_cache(maxsize=1024)
def _event_rest(packed: int) -> bytes:
    return _EVENT_NAME + _attributes(b"\x1a", mark_attributes(packed))


def _scope() -> bytes:
    return _text(b"\x0a", semconv.SCOPE_NAME) + _text(b"\x12", version())


def _resource(resource: Resource) -> bytes:
    return _field(b"\x0a", _attributes(b"\x0a", resource.attributes))


def _schema_url(resource: Resource) -> bytes:
    return _text(b"\x1a", resource.schema_url)


def _trace_state(state: TraceState) -> bytes:
    return _text(b"\x1a", state.to_header()) if state else b""


def _attributes(tag: bytes, attributes: Mapping[str, object]) -> bytes:
    encoded = []
    for key, value in attributes.items():
        try:
            # By exact type: True is an int too, and equal to 1.
            pair = _int_pair(key, value) if type(value) is int else _key(key) + _field(b"\x12", _value(value))
            encoded.append(_field(tag, pair))
        except (ValueError, TypeError):  # UnicodeEncodeError is a ValueError
            continue
    return b"".join(encoded)


@lru_cache(maxsize=4096)
def _int_pair(key: str, value: int) -> bytes:
    return _key(key) + _field(b"\x12", _value(value))


@lru_cache(maxsize=1024)
def _key(key: str) -> bytes:
    return _text(b"\x0a", key)


def _value(value: object) -> bytes:
    # AnyValue: string 1, bool 2, int 3, double 4, array 5, key-value list 6, bytes 7. Its fields are a oneof: a value
    # that is the default (an empty text, 0) is still on the wire.
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, str):
        return _field(b"\x0a", value.encode())
    if isinstance(value, int):
        return b"\x18" + _int64(value)
    if isinstance(value, float):
        return b"\x21" + _DOUBLE.pack(value)
    if isinstance(value, bytes):
        return _field(b"\x3a", value)
    if isinstance(value, Mapping):
        pairs = (
            _field(b"\x0a", _text(b"\x0a", str(key)) + _field(b"\x12", _value(inner))) for key, inner in value.items()
        )
        return _field(b"\x32", b"".join(pairs))
    if isinstance(value, Sequence):
        return _field(b"\x2a", b"".join(_field(b"\x0a", _value(inner)) for inner in value))
    raise TypeError(f"no OTLP value for {type(value).__name__}")


def _int64(value: int) -> bytes:
    if not INT64_MIN <= value <= INT64_MAX:
        raise ValueError("beyond 64 bits")
    return _varint(value & 0xFFFF_FFFF_FFFF_FFFF)  # negative numbers as two's complement, ten bytes


def _varint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _text(tag: bytes, text: str) -> bytes:
    # A plain (not oneof) field that is empty is left out.
    return _field(tag, text.encode()) if text else b""
