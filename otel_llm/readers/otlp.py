"""From OTLP trace export requests to records: which spans are ours, what is refused, what is kept of each.

What places a segment in its stream (ids, seq, first token, choice, times, token counts) must be right, or the segment
is refused with a reason word and the rest of the message is kept. Any other attribute that is wrong is left out and
counted: it costs its own fact, not the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_llm import semconv
from otel_llm.readers.attributes import ENGINE_LATENCIES, MAX_COUNT, MAX_VALUE_CHARS, scalars
from otel_llm.readers.records import Batch, DecodeError, RequestSpan, Segment
from otel_llm.readers.token_events import MAX_TIME_NS, MAX_TOKENS, TokenEventError, read_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

MAX_MESSAGE_TOKENS: Final = 4_000_000
"""Tokens that one message may expand to: an event of 40 bytes can claim a million."""

CHUNK_EVENT: Final = "gen_ai.content.completion.chunk"
"""Traceloop's event for each chunk of a streamed reply."""
_TOKEN_EVENTS: Final = frozenset({semconv.TOKEN_EVENT})
_REQUEST_EVENTS: Final = frozenset({semconv.TOKEN_EVENT, CHUNK_EVENT})
_STATUS_ERROR: Final = 2
_NO_TRACE_ID: Final = bytes(16)
_NO_SPAN_ID: Final = bytes(8)
_RESOURCE_SPANS_TAG: Final = 0x0A


class _Refused(Exception):  # noqa: N818 - a reason, carried over two calls
    """Carry the reason word of a span that cannot be used."""


def parse(raw: bytes) -> ExportTraceServiceRequest:
    """Return the message that `raw` holds; no bytes are an empty one.

    Raises:
        DecodeError: these bytes are no such message.
    """
    try:
        return ExportTraceServiceRequest.FromString(raw)
    except ProtobufDecodeError as error:
        raise DecodeError(f"not an OTLP trace export request: {error}") from error


def parse_cut(raw: bytes) -> tuple[ExportTraceServiceRequest, bool]:
    """Return the message in `raw` and whether it was whole; of one that was cut, the resources before the cut.

    Raises:
        DecodeError: nothing whole stands at its beginning.
    """
    try:
        return parse(raw), True
    except DecodeError:
        end = _whole_resources(raw)
        if end == 0:
            raise
        return parse(raw[:end]), False


def _whole_resources(raw: bytes) -> int:
    """Return where the last `resource_spans` ends that is not cut."""
    whole = position = 0
    while position < len(raw) and raw[position] == _RESOURCE_SPANS_TAG:
        length = 0
        for size, byte in enumerate(raw[position + 1 : position + 6]):
            length |= (byte & 127) << 7 * size
            if byte < 128:
                position += 2 + size + length
                break
        else:
            break
        if position <= len(raw):
            whole = position
    return whole


def decode(message: ExportTraceServiceRequest, receipt_ns: int | None = None) -> Batch:
    """Return the records of `message`; it raises nothing, what is unusable is counted in the batch."""
    batch = Batch()
    budget = MAX_MESSAGE_TOKENS
    for resource_spans in message.resource_spans:
        instance_id = _instance_id(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                try:
                    allowed = min(budget, MAX_TOKENS)
                    if span.name == semconv.SEGMENT_SPAN:
                        segment = _segment(span, batch, allowed, receipt_ns, instance_id)
                        budget -= len(segment.times_ns)
                        batch.segments.append(segment)
                    elif (request := _request(span, batch, allowed, receipt_ns, instance_id)) is not None:
                        budget -= len(request.events_ns)
                        batch.requests.append(request)
                    else:
                        batch.ignored += 1
                except (_Refused, TokenEventError) as refusal:
                    batch.refused[str(refusal)] += 1
    return batch


def _segment(span: Span, batch: Batch, budget: int, receipt_ns: int | None, instance_id: str | None) -> Segment:
    trace_id = _check_id(span.trace_id, _NO_TRACE_ID, "bad_trace_id")
    request_id = _check_id(span.parent_span_id, _NO_SPAN_ID, "bad_parent_span_id")
    start_ns, end_ns = _check_times(span)
    seq = first_token = None
    choice = 0
    others: list[KeyValue] | None = None
    for attribute in span.attributes:
        # One look each: most segments carry these two and nothing else.
        key = attribute.key
        if key == semconv.SEGMENT_SEQ:
            seq = _placing(attribute, "bad_seq")
        elif key == semconv.SEGMENT_FIRST_TOKEN:
            first_token = _placing(attribute, "bad_first_token")
        elif key == semconv.CHOICE:
            choice = _placing(attribute, "bad_choice")
        elif others is None:
            others = [attribute]
        else:
            others.append(attribute)
    if seq is None or first_token is None:
        raise _Refused("missing_seq" if seq is None else "missing_first_token")
    times_ns, kinds = read_tokens(span, _TOKEN_EVENTS, batch.anomalies, budget)
    if times_ns and max(times_ns) > end_ns:
        batch.anomalies["token_after_segment_end"] += 1
    attributes = scalars(others, batch.anomalies) if others else {}
    return Segment(
        trace_id,
        request_id,
        choice,
        seq,
        first_token,
        start_ns,
        end_ns,
        times_ns,
        kinds,
        attributes,
        receipt_ns,
        instance_id,
    )


def _request(
    span: Span, batch: Batch, budget: int, receipt_ns: int | None, instance_id: str | None
) -> RequestSpan | None:
    """Return the inference span, None for any other.

    Others' spans are the bulk of what a general exporter sends, so their attributes are looked at once, by key.
    """
    chunked = any(event.name == CHUNK_EVENT for event in span.events)
    if not chunked and not _is_inference(span):
        return None
    trace_id = _check_id(span.trace_id, _NO_TRACE_ID, "bad_trace_id")
    span_id = _check_id(span.span_id, _NO_SPAN_ID, "bad_span_id")
    start_ns, end_ns = _check_times(span)
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


def _is_inference(span: Span) -> bool:
    for attribute in span.attributes:
        key = attribute.key
        if key == semconv.GEN_AI_OPERATION_NAME:
            if attribute.value.string_value in semconv.INFERENCE_OPERATIONS:
                return True
        elif key in (semconv.SEGMENTS, semconv.OUTCOME) or key in ENGINE_LATENCIES:
            return True
    return False


def _instance_id(attributes: Iterable[KeyValue]) -> str | None:
    for attribute in attributes:
        if attribute.key == semconv.SERVICE_INSTANCE_ID:
            value = attribute.value.string_value
            return value if 0 < len(value) <= MAX_VALUE_CHARS else None
    return None


def _check_id(value: bytes, nobody: bytes, reason: str) -> bytes:
    if len(value) != len(nobody) or value == nobody:
        raise _Refused(reason)
    return value


def _check_times(span: Span) -> tuple[int, int]:
    start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
    if start_ns == 0 or end_ns == 0:
        raise _Refused("missing_time")
    if start_ns > MAX_TIME_NS or end_ns > MAX_TIME_NS:
        raise _Refused("time_out_of_range")
    if end_ns < start_ns:
        raise _Refused("end_before_start")
    return start_ns, end_ns


def _placing(attribute: KeyValue, reason: str) -> int:
    value = attribute.value
    number = value.int_value
    if not 0 <= number <= MAX_COUNT or (number == 0 and not value.HasField("int_value")):
        raise _Refused(reason)
    return number
