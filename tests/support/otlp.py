"""Builders of OTLP spans and export requests, as small as a test can say them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from otel_llm import semconv

T0_NS = 1_790_000_000_000_000_000
"""The commit of every built stream, unless a test says otherwise: unix ns."""

Value = str | bool | int | float | bytes | Sequence[str]
Event = int | tuple[int, Mapping[str, Value]] | tuple[str, int]
"""A token's time; a token's time with attributes; or another event's name and time."""


def token(at_ns: int, count: int | None = None, kind: str | None = None) -> Event:
    """Return a token event with the attributes it may have."""
    attributes: dict[str, Value] = {}
    if count is not None:
        attributes[semconv.TOKEN_COUNT] = count
    if kind is not None:
        attributes[semconv.TOKEN_KIND] = kind
    return (at_ns, attributes) if attributes else at_ns


IDENTITY: Mapping[str, Value] = {
    semconv.GEN_AI_OPERATION_NAME: "chat",
    semconv.GEN_AI_REQUEST_MODEL: "m",
    semconv.MEASURED_AT: "client",
}


def trace_id(number: int = 1) -> bytes:
    return number.to_bytes(16, "big")


def span_id(number: int = 1) -> bytes:
    return number.to_bytes(8, "big")


def any_value(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, bytes):
        return AnyValue(bytes_value=value)
    return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))


def attributes_of(values: Mapping[str, Value]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in values.items()]


def nested(depth: int, key: str = "nested") -> KeyValue:
    """Return an attribute whose value is a list in a list, so deep."""
    value = AnyValue(int_value=1)
    for _ in range(depth):
        value = AnyValue(array_value=ArrayValue(values=[value]))
    return KeyValue(key=key, value=value)


def event_of(event: Event) -> Span.Event:
    if isinstance(event, int):
        return Span.Event(name=semconv.TOKEN_EVENT, time_unix_nano=event)
    first, second = event
    if isinstance(first, str):
        assert isinstance(second, int)
        return Span.Event(name=first, time_unix_nano=second)
    assert isinstance(second, Mapping)
    return Span.Event(name=semconv.TOKEN_EVENT, time_unix_nano=first, attributes=attributes_of(second))


def segment_span(
    seq: int | None = 0,
    first_token: int | None = 0,
    events: Iterable[Event] = (),
    *,
    request: int = 1,
    choice: int = 0,
    start_ns: int = T0_NS,
    end_ns: int | None = None,
    attributes: Mapping[str, Value] | None = None,
) -> Span:
    """Return a segment span of request `request` (its trace and span id); its end is its start if not said."""
    placing: dict[str, Value] = {}
    if seq is not None:
        placing[semconv.SEGMENT_SEQ] = seq
    if first_token is not None:
        placing[semconv.SEGMENT_FIRST_TOKEN] = first_token
    if choice:
        placing[semconv.CHOICE] = choice
    span = Span(
        trace_id=trace_id(request),
        span_id=((request & 0xFFFFFF) << 40 | (choice & 0xFF) << 32 | ((seq or 0) & 0xFFFFFFFF) | 1 << 63).to_bytes(
            8, "big"
        ),
        parent_span_id=span_id(request),
        name=semconv.SEGMENT_SPAN,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns if end_ns is None else end_ns,
        attributes=attributes_of(placing | dict(attributes or {})),
        events=[event_of(event) for event in events],
    )
    span.status.SetInParent()  # as every encoder writes it
    span.flags = 0x101
    return span


def request_span(
    *,
    request: int = 1,
    name: str = "chat m",
    kind: Span.SpanKind.ValueType = Span.SPAN_KIND_CLIENT,
    start_ns: int = T0_NS,
    end_ns: int = T0_NS + 1_000_000_000,
    attributes: Mapping[str, Value] = IDENTITY,
    events: Iterable[Event] = (),
    error: bool = False,
    dropped_events: int = 0,
) -> Span:
    """Return the inference span of request `request`."""
    return Span(
        trace_id=trace_id(request),
        span_id=span_id(request),
        name=name,
        kind=kind,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=end_ns,
        attributes=attributes_of(attributes),
        events=[event_of(event) for event in events],
        dropped_events_count=dropped_events,
        status=Status(code=Status.STATUS_CODE_ERROR) if error else None,
    )


def stream_spans(
    tokens_ns: Sequence[int],
    *,
    request: int = 1,
    choice: int = 0,
    commit_ns: int = T0_NS,
    end_ns: int,
    outcome: str = "completed",
    segment_tokens: int = 64,
    identity: Mapping[str, Value] = IDENTITY,
    ending: Mapping[str, Value] = MappingProxyType({}),
) -> list[Span]:
    """Return all segments of one stream as a recorder would cut them: the commit, the tokens, the end.

    `ending`: further attributes of the last one.
    """
    spans = [segment_span(request=request, choice=choice, start_ns=commit_ns, attributes=identity)]
    pieces = [tokens_ns[i : i + segment_tokens] for i in range(0, len(tokens_ns), segment_tokens)] or [()]
    start = commit_ns
    for seq, piece in enumerate(pieces, 1):
        last = seq == len(pieces)
        end = end_ns if last else max(piece)
        said: dict[str, Value] = {}
        if last:
            said = {
                semconv.OUTCOME: outcome,
                semconv.TOKENS: len(tokens_ns),
                semconv.TOKEN_BASIS: "exact",
                semconv.SEGMENTS: len(pieces) + 1,
                **ending,
            }
        spans.append(
            segment_span(
                seq,
                (seq - 1) * segment_tokens,
                piece,
                request=request,
                choice=choice,
                start_ns=start,
                end_ns=end,
                attributes=said,
            )
        )
        start = end
    return spans


def export(*spans: Span, resource: Mapping[str, Value] | None = None) -> ExportTraceServiceRequest:
    """Return one export request with these spans under one resource and one scope."""
    message = ExportTraceServiceRequest()
    resource_spans = message.resource_spans.add()
    resource_spans.resource.attributes.extend(attributes_of(resource or {}))
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = semconv.SCOPE_NAME
    scope_spans.spans.extend(spans)
    return message
