"""Convert a parsed span to a record: decide whether it is ours, refuse or keep it, and reduce it to what is kept.

The fields that place a segment in its stream (ids, seq, first token, choice, times, token counts) must be right, or the
segment is refused with a reason word and the rest of the message is kept. Any other wrong attribute is left out and
counted: only its own fact is lost, not the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_COUNT, MAX_TOKENS
from otel_llm.formats.foreign.inference import read_request
from otel_llm.formats.records import Segment
from otel_llm.formats.spans.attributes import MAX_VALUE_CHARS, AttributeLimits, scalars
from otel_llm.formats.spans.span_checks import NO_SPAN_ID, NO_TRACE_ID, RefusedSpan, check_id, check_times
from otel_llm.formats.spans.token_events import TokenEventError, read_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import Scalar

_TOKEN_EVENTS: Final = frozenset({semconv.TOKEN_EVENT})


def add_span(
    span: Span, batch: Batch, budget: int, receipt_ns: int | None, instance_id: str | None, limits: AttributeLimits
) -> int:
    """Add the record of a span to `batch`; return the remaining `budget` of tokens."""
    allowed = min(budget, MAX_TOKENS)
    try:
        if span.name == semconv.SEGMENT_SPAN:
            segment = _segment(span, batch, allowed, receipt_ns, instance_id, limits)
            batch.segments.append(segment)
            return budget - segment.tokens
        request = read_request(span, batch, allowed, receipt_ns, instance_id, limits)
    except (RefusedSpan, TokenEventError) as refusal:
        batch.refused[str(refusal)] += 1
        return budget
    if request is None:
        batch.ignored += 1
        return budget
    batch.requests.append(request)
    return budget - request.tokens


def _segment(
    span: Span, batch: Batch, budget: int, receipt_ns: int | None, instance_id: str | None, limits: AttributeLimits
) -> Segment:
    trace_id = check_id(span.trace_id, NO_TRACE_ID, "bad_trace_id")
    request_id = check_id(span.parent_span_id, NO_SPAN_ID, "bad_parent_span_id")
    start_ns, end_ns = check_times(span)
    seq = first_token = None
    choice = 0
    last_byte_ns: Scalar = 0
    others: list[KeyValue] | None = None
    for attribute in span.attributes:
        # One look-up each: most segments have these two and nothing else.
        key = attribute.key
        if key == semconv.SEGMENT_SEQ:
            seq = _placing(attribute, "bad_seq")
        elif key == semconv.SEGMENT_FIRST_TOKEN:
            first_token = _placing(attribute, "bad_first_token")
        elif key == semconv.CHOICE:
            choice = _placing(attribute, "bad_choice")
        elif key == semconv.SEGMENT_LAST_BYTE:
            last_byte_ns = scalars([attribute], batch.anomalies, limits).get(key, last_byte_ns)
        elif others is None:
            others = [attribute]
        else:
            others.append(attribute)
    if seq is None or first_token is None:
        raise RefusedSpan("missing_seq" if seq is None else "missing_first_token")
    times_ns, kinds, counts = read_tokens(span, _TOKEN_EVENTS, batch.anomalies, budget)
    if times_ns and max(times_ns) > end_ns:
        batch.anomalies["token_after_segment_end"] += 1
    attributes = scalars(others, batch.anomalies, limits) if others else {}
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
        min(int(last_byte_ns), end_ns),
        counts,
    )


def instance_of(attributes: Iterable[KeyValue]) -> str | None:
    """Return `service.instance.id` of a resource, by its attributes; None if it is missing or too long."""
    for attribute in attributes:
        if attribute.key == semconv.SERVICE_INSTANCE_ID:
            value = attribute.value.string_value
            return value if 0 < len(value) <= MAX_VALUE_CHARS else None
    return None


def _placing(attribute: KeyValue, reason: str) -> int:
    value = attribute.value
    number = value.int_value
    if not 0 <= number <= MAX_COUNT or (number == 0 and not value.HasField("int_value")):
        raise RefusedSpan(reason)
    return number
