"""From OTLP trace export requests to records: which spans are ours, what is refused, what is kept of each.

What places a segment in its stream (ids, seq, first token, choice, times, token counts) must be right, or the segment
is refused with a reason word and the rest of the message is kept. Any other attribute that is wrong is left out and
counted: it costs its own fact, not the tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_llm import semconv
from otel_llm.readers import plain_segments
from otel_llm.readers.attributes import DEFAULT_LIMITS, MAX_COUNT, MAX_VALUE_CHARS, AttributeLimits, scalars
from otel_llm.readers.checks import NO_SPAN_ID, NO_TRACE_ID, RefusedSpan, check_id, check_times
from otel_llm.readers.inference import read_request
from otel_llm.readers.records import Batch, DecodeError, Segment
from otel_llm.readers.token_events import MAX_MESSAGE_TOKENS, MAX_TOKENS, TokenEventError, read_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.readers.plain_requests import Placed
    from otel_llm.readers.plain_segments import Taken

_TOKEN_EVENTS: Final = frozenset({semconv.TOKEN_EVENT})
_RESOURCE_SPANS_TAG: Final = 0x0A


MOST_PARTS: Final = 200_000
"""Resources, scopes and spans in one export request: an empty one is two bytes, and takes a thousand times that."""
_MUCH_BYTES: Final = 256 * 1024
"""Smaller messages hold less than that."""
_SHORT_BYTES: Final = 2048
"""What is left of a message is remembered up to this length where no span is in it."""


def parse(raw: bytes) -> ExportTraceServiceRequest:
    """Return the message that `raw` holds; no bytes are an empty one.

    Raises:
        DecodeError: these bytes are no such message.
    """
    try:
        return ExportTraceServiceRequest.FromString(raw)
    except ProtobufDecodeError as error:
        raise DecodeError(f"not an OTLP trace export request: {error}") from error


def read(raw: bytes, *, limits: AttributeLimits = DEFAULT_LIMITS, few: int = plain_segments.FEW) -> Batch:
    """Return the records of an export request: plain segments as columns if it may have `few` or more, the rest alone.

    Raises:
        DecodeError: these bytes are no such message.
    """
    found = read_all((raw,), limits=limits, few=few)[0]
    if isinstance(found, DecodeError):
        raise found
    return found


def read_all(
    raws: Sequence[bytes], *, limits: AttributeLimits = DEFAULT_LIMITS, few: int = plain_segments.FEW
) -> list[Batch | DecodeError]:
    """Return the records of each export request as `read` does, or why these bytes are no such message."""
    return [_read(taken, limits) for taken in plain_segments.take(raws, few, limits)] if raws else []


def _read(taken: Taken, limits: AttributeLimits) -> Batch | DecodeError:
    rest, requests = taken.rest, len(taken.requests)
    if len(rest) + 2 * requests > _MUCH_BYTES and plain_segments.parts(rest, MOST_PARTS) + requests > MOST_PARTS:
        return DecodeError(f"more than {MOST_PARTS} spans, scopes and resources in one export request")
    try:
        return whole(taken, limits=limits)
    except DecodeError as error:
        return error


def whole(taken: Taken, receipt_ns: int | None = None, limits: AttributeLimits = DEFAULT_LIMITS) -> Batch:
    """Return the records of an export request of which some were taken as columns.

    Raises:
        DecodeError: the rest of it is no such message.
    """
    senders: tuple[str | None, ...] = ()
    if taken.bare and len(taken.rest) <= _SHORT_BYTES:
        senders, batch = _senders(taken.rest), Batch(requests=[request for request, _, _ in taken.requests])
    else:
        message = parse(taken.rest)
        batch = _decoded(message, receipt_ns, limits, taken.requests)
        if taken.requests:
            senders = _senders_of(message)
    for request, resource, _ in taken.requests:
        request.receipt_ns, request.instance_id = receipt_ns, senders[resource]
    batch.plain = taken.plain
    for segment in taken.saying:
        segment.receipt_ns = receipt_ns
    batch.segments += taken.saying
    return batch


def _senders_of(message: ExportTraceServiceRequest) -> tuple[str | None, ...]:
    return tuple(_instance_id(resource_spans.resource.attributes) for resource_spans in message.resource_spans)


@lru_cache(maxsize=256)
def _senders(shell: bytes) -> tuple[str | None, ...]:
    """Return who sent what stood in an export request of which no span is left; most senders send many.

    Raises:
        DecodeError: these bytes are no such message.
    """
    return _senders_of(parse(shell))


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


def decode(
    message: ExportTraceServiceRequest, receipt_ns: int | None = None, limits: AttributeLimits = DEFAULT_LIMITS
) -> Batch:
    """Return the records of `message`; it raises nothing, what is unusable is counted in the batch."""
    return _decoded(message, receipt_ns, limits, ())


def _decoded(
    message: ExportTraceServiceRequest, receipt_ns: int | None, limits: AttributeLimits, requests: Sequence[Placed]
) -> Batch:
    """Return the records of `message`, and between them, where they stood, request spans that were taken of it."""
    batch = Batch()
    budget = MAX_MESSAGE_TOKENS
    waiting = [*reversed(requests)]
    number = 0
    for resource_spans in message.resource_spans:
        instance_id = _instance_id(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                while waiting and waiting[-1][2] <= number:
                    batch.requests.append(waiting.pop()[0])
                number += 1
                try:
                    allowed = min(budget, MAX_TOKENS)
                    if span.name == semconv.SEGMENT_SPAN:
                        segment = _segment(span, batch, allowed, receipt_ns, instance_id, limits)
                        budget -= len(segment.times_ns)
                        batch.segments.append(segment)
                    elif (request := read_request(span, batch, allowed, receipt_ns, instance_id, limits)) is not None:
                        budget -= len(request.events_ns)
                        batch.requests.append(request)
                    else:
                        batch.ignored += 1
                except (RefusedSpan, TokenEventError) as refusal:
                    batch.refused[str(refusal)] += 1
    batch.requests += [request for request, _, _ in reversed(waiting)]
    return batch


def _segment(
    span: Span, batch: Batch, budget: int, receipt_ns: int | None, instance_id: str | None, limits: AttributeLimits
) -> Segment:
    trace_id = check_id(span.trace_id, NO_TRACE_ID, "bad_trace_id")
    request_id = check_id(span.parent_span_id, NO_SPAN_ID, "bad_parent_span_id")
    start_ns, end_ns = check_times(span)
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
        raise RefusedSpan("missing_seq" if seq is None else "missing_first_token")
    times_ns, kinds = read_tokens(span, _TOKEN_EVENTS, batch.anomalies, budget)
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
    )


def _instance_id(attributes: Iterable[KeyValue]) -> str | None:
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
