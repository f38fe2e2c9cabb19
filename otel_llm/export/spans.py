"""Records as the SDK's read-only spans, so that any `SpanExporter` can take them. Imports the SDK: import it late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_llm import semconv
from otel_llm.export.records import Segment, mark_attributes, version

if TYPE_CHECKING:
    from otel_llm.export.records import Record, RequestRecord


class TokenEvents(Sequence[Event]):
    """The token events of a segment, each built when it is read and not kept."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __len__(self) -> int:
        return len(self._segment.times_ns)

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        segment = self._segment
        attributes = None if segment.marks is None else mark_attributes(segment.marks[index])
        return Event(semconv.TOKEN_EVENT, attributes, segment.times_ns[index])


def readable(record: Record) -> ReadableSpan:
    """Return a record as the read-only span that exporters take."""
    return _segment(record) if isinstance(record, Segment) else _request(record)


def _segment(segment: Segment) -> ReadableSpan:
    parent = segment.origin.parent
    return ReadableSpan(
        name=semconv.SEGMENT_SPAN,
        # A segment that is sent is sampled, whether or not the request span is.
        context=SpanContext(
            parent.trace_id,
            segment.span_id,
            False,
            TraceFlags(TraceFlags.SAMPLED),
            parent.trace_state,
        ),
        parent=parent,
        resource=segment.origin.resource,
        attributes=dict(segment.attributes),
        events=TokenEvents(segment),
        kind=SpanKind.INTERNAL,
        start_time=segment.start_ns,
        end_time=segment.end_ns,
        instrumentation_scope=_scope(),
    )


def _request(record: RequestRecord) -> ReadableSpan:
    return ReadableSpan(
        name=record.name,
        context=record.context,
        parent=record.parent,
        resource=record.resource,
        attributes=dict(record.attributes),
        events=[Event(event.name, dict(event.attributes), event.time_ns) for event in record.events],
        kind=record.kind,
        status=Status(StatusCode.UNSET) if record.failure is None else Status(StatusCode.ERROR, record.failure),
        start_time=record.start_ns,
        end_time=record.end_ns,
        instrumentation_scope=_scope(),
    )


def _scope() -> InstrumentationScope:
    return InstrumentationScope(semconv.SCOPE_NAME, version())
