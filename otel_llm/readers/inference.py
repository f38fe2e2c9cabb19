"""Inference spans, ours and others': which they are, and what is kept of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.readers.attributes import ENGINE_LATENCIES, MAX_VALUE_CHARS, scalars
from otel_llm.readers.checks import NO_SPAN_ID, NO_TRACE_ID, check_id, check_times
from otel_llm.readers.records import Batch, RequestSpan
from otel_llm.readers.token_events import read_tokens

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

CHUNK_EVENT: Final = "gen_ai.content.completion.chunk"
"""Traceloop's event for each chunk of a streamed reply."""
_REQUEST_EVENTS: Final = frozenset({semconv.TOKEN_EVENT, CHUNK_EVENT})
_STATUS_ERROR: Final = 2


def read_request(
    span: Span, batch: Batch, budget: int, receipt_ns: int | None, instance_id: str | None
) -> RequestSpan | None:
    """Return the inference span, None for any other.

    Others' spans are the bulk of what a general exporter sends, so their attributes are looked at once, by key.
    """
    chunked = any(event.name == CHUNK_EVENT for event in span.events)
    if not chunked and not is_inference(span):
        return None
    trace_id = check_id(span.trace_id, NO_TRACE_ID, "bad_trace_id")
    span_id = check_id(span.span_id, NO_SPAN_ID, "bad_span_id")
    start_ns, end_ns = check_times(span)
    attributes = scalars(span.attributes, batch.anomalies)
    events_ns, kinds = read_tokens(span, _REQUEST_EVENTS, batch.anomalies, budget)
    return RequestSpan(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=span.parent_span_id,
        name=span.name[:MAX_VALUE_CHARS],
        kind=span.kind,
        start_ns=start_ns,
        end_ns=end_ns,
        error=span.status.code == _STATUS_ERROR,
        attributes=attributes,
        events_ns=events_ns,
        kinds=kinds,
        event_basis="chunk" if chunked else None,
        dropped_events=span.dropped_events_count,
        receipt_ns=receipt_ns,
        instance_id=instance_id,
    )


def is_inference(span: Span) -> bool:
    """Tell whether a span is that of a model's reply, ours or another instrumentation's."""
    for attribute in span.attributes:
        key = attribute.key
        if key == semconv.GEN_AI_OPERATION_NAME:
            if attribute.value.string_value in semconv.INFERENCE_OPERATIONS:
                return True
        elif key in (semconv.SEGMENTS, semconv.OUTCOME) or key in ENGINE_LATENCIES:
            return True
    return False
