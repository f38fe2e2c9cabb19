"""An application that sends the worked rows with the official Python SDK and one of its exporters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)
from support.integration.interop_rows import exports, spans

FLUSH_MS = 60_000


class GivenIds(IdGenerator):
    """Give the ids that the next span is to have."""

    trace_id = span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


def deliver(exporter: SpanExporter) -> None:
    """Make every span with the SDK and send each export request as one batch; the exporter is shut down."""
    ids = GivenIds()
    resource = Resource.create({"service.name": "rows"})
    provider = TracerProvider(id_generator=ids, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("otel_llm")
    for export in exports():
        for span in spans(export):
            _make(tracer, ids, span)
        assert provider.force_flush(FLUSH_MS)
    provider.shutdown()


def _make(tracer: Tracer, ids: GivenIds, span: Mapping[str, Any]) -> None:
    ids.trace_id, ids.span_id = int(span["traceId"], 16), int(span["spanId"], 16)
    made = tracer.start_span(
        span["name"],
        context=_below(ids.trace_id, span.get("parentSpanId", "")),
        kind=SpanKind(span["kind"] - 1),  # the wire's 1 is the SDK's 0
        attributes=_attributes(span["attributes"]),
        start_time=int(span["startTimeUnixNano"]),
    )
    for event in span.get("events", ()):
        made.add_event(event["name"], _attributes(event.get("attributes", ())), int(event["timeUnixNano"]))
    if span.get("status", {}).get("code") == 2:
        made.set_status(Status(StatusCode.ERROR))
    made.end(int(span["endTimeUnixNano"]))


def _below(trace_id: int, parent: str) -> Context:
    if not parent:
        return Context()
    above = SpanContext(trace_id, int(parent, 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(above), Context())


def _attributes(pairs: Sequence[Mapping[str, Any]]) -> dict[str, str | int]:
    return {
        pair["key"]: int(value) if kind == "intValue" else value
        for pair in pairs
        for kind, value in pair["value"].items()
    }
