"""Segments as raw OTLP bytes, cheaply: the span by protobuf, its token events pasted behind it.

A load generator must not be the slow part. Protobuf messages may be concatenated field by field, and the event of a
token without attributes differs from any other in its eight bytes of time alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Value = str | int
_EVENT_HEAD = bytes((0x5A, 16, 0x09))  # Span.events, of 16 bytes: time_unix_nano ...
_EVENT_TAIL = bytes((0x12, 5)) + b"token"  # ... and name


def token_events(times_ns: NDArray[np.int64]) -> bytes:
    """Return the events of tokens at these times (unix ns), as fields of a Span."""
    made = np.empty((len(times_ns), 18), dtype=np.uint8)
    made[:, :3] = np.frombuffer(_EVENT_HEAD, dtype=np.uint8)
    made[:, 3:11] = times_ns.astype("<i8").view(np.uint8).reshape(-1, 8)
    made[:, 11:] = np.frombuffer(_EVENT_TAIL, dtype=np.uint8)
    return made.tobytes()


def segment(
    trace_id: bytes,
    request_id: bytes,
    seq: int,
    first_token: int,
    start_ns: int,
    end_ns: int,
    times_ns: NDArray[np.int64],
    attributes: Mapping[str, Value],
) -> bytes:
    """Return a segment span."""
    placing: dict[str, Value] = {"otel_llm.segment.seq": seq, "otel_llm.segment.first_token": first_token}
    span = Span(
        trace_id=trace_id,
        span_id=(1 << 63 | int.from_bytes(request_id[4:], "big") << 24 | seq).to_bytes(8, "big"),
        parent_span_id=request_id,
        name="otel_llm.segment",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
        attributes=attributes_of(placing | dict(attributes)),
    )
    return span.SerializeToString() + token_events(times_ns)


def request(trace_id: bytes, request_id: bytes, start_ns: int, end_ns: int, attributes: Mapping[str, Value]) -> bytes:
    """Return a request span."""
    return Span(
        trace_id=trace_id,
        span_id=request_id,
        name="chat",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
        attributes=attributes_of(attributes),
    ).SerializeToString()


def export_request(service: str, spans: Iterable[bytes]) -> bytes:
    """Return an export request of one resource and one scope."""
    resource = Resource(attributes=attributes_of({"service.instance.id": service})).SerializeToString()
    scope_spans = b"".join(_field(2, span) for span in spans)
    return _field(1, _field(1, resource) + _field(2, scope_spans))


def attributes_of(values: Mapping[str, Value]) -> list[KeyValue]:
    """Return attributes."""
    return [
        KeyValue(key=key, value=AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=value))
        for key, value in values.items()
    ]


def _field(number: int, content: bytes) -> bytes:
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes((number << 3 | 2,)) + bytes(length) + content
