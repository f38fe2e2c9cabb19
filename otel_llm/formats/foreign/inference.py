"""Inference spans, ours and others': how they are recognised, and their records."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.formats.foreign.chunk_events import INFERENCE_EVENTS, SLACK_NS, TokenTimes, event_source, read_events
from otel_llm.formats.foreign.packed_arrays import PACKED, read_packed
from otel_llm.formats.records import Attributes, RequestSpan
from otel_llm.formats.spans.attributes import (
    DEFAULT_LIMITS,
    ENGINE_LATENCIES,
    MAX_VALUE_CHARS,
    STATED_TIMES,
    AttributeLimits,
    fits,
    scalars,
)
from otel_llm.formats.spans.span_checks import NO_SPAN_ID, NO_TRACE_ID, RefusedSpan, check_id, check_times
from otel_llm.formats.spans.token_events import TokenEventError

if TYPE_CHECKING:
    from collections import Counter

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import Attributes


_SAME: Final = {
    semconv.GEN_AI_USAGE_PROMPT_TOKENS: semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.GEN_AI_USAGE_COMPLETION_TOKENS: semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    semconv.OPENINFERENCE_PROMPT_TOKENS: semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.OPENINFERENCE_COMPLETION_TOKENS: semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    # The reply's statement if there is one, else the request's: the weaker of the two is claimed.
    semconv.OPENINFERENCE_MODEL: semconv.GEN_AI_RESPONSE_MODEL,
    semconv.LANGFUSE_MODEL: semconv.GEN_AI_RESPONSE_MODEL,
}
"""The conventions' name, by the name in a dialect."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def translate(span: Span, attributes: Attributes, anomalies: Counter[str]) -> None:
    """Add to the `attributes` of a foreign span its statements in a dialect, under the conventions' names."""
    for theirs, ours in _SAME.items():
        if theirs in attributes and ours not in attributes:
            if fits(ours, attributes[theirs]):
                attributes[ours] = attributes[theirs]
            else:
                anomalies["attribute_unusable"] += 1
    first_ns = _first_token_ns(span, attributes, anomalies)
    if first_ns is not None:
        start_ns, end_ns = span.start_time_unix_nano, span.end_time_unix_nano
        if start_ns - SLACK_NS <= first_ns <= end_ns + SLACK_NS:
            add_first_token(attributes, first_ns, start_ns)
        else:
            anomalies["first_token_outside_span"] += 1


def add_first_token(attributes: Attributes, first_ns: int, start_ns: int) -> None:
    """State the time to the first token unless the span does; a token before the start counts as at the start."""
    attributes.setdefault(semconv.GEN_AI_TIME_TO_FIRST_CHUNK, max(0, first_ns - start_ns) / 1e9)


def _first_token_ns(span: Span, attributes: Attributes, anomalies: Counter[str]) -> int | None:
    """Return the first token's time, unix ns, by an event of OpenInference or an attribute of Langfuse."""
    for event in span.events:
        if event.name == semconv.OPENINFERENCE_FIRST_TOKEN_EVENT:
            return event.time_unix_nano
    began = attributes.get(semconv.LANGFUSE_COMPLETION_START)
    if began is None:
        return None
    try:
        # ISO 8601 in the quotes of JSON; without an offset it could be in any zone.
        return (datetime.fromisoformat(str(began).strip('"')) - _EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, TypeError, OverflowError):
        anomalies["attribute_unusable"] += 1
        return None


_OURS: Final = frozenset({semconv.SEGMENTS, semconv.OUTCOME})
_TIMED: Final = frozenset(
    {*semconv.FIRST_CHUNK_UNITS, semconv.TIME_PER_CHUNK, semconv.LANGFUSE_COMPLETION_START, *PACKED}
)
"""Attributes with times of a reply, unless the operation's name says that the span is of another operation."""
_RELEVANT: Final = frozenset({semconv.GEN_AI_OPERATION_NAME, semconv.OPENINFERENCE_SPAN_KIND, *_TIMED})
_SUFFICIENT: Final = frozenset({*_OURS, *ENGINE_LATENCIES})
INFERENCE_ATTRIBUTES: Final = _RELEVANT | _SUFFICIENT
"""A span with none of them can be one of inference by its events only; the scan skips the others."""
_STATUS_ERROR: Final = 2


def read_request(
    span: Span,
    batch: Batch,
    budget: int,
    receipt_ns: int | None,
    instance_id: str | None,
    limits: AttributeLimits = DEFAULT_LIMITS,
) -> RequestSpan | None:
    """Return the inference span, None for any other.

    Foreign spans are the bulk of a general exporter's, so their attributes are read once, by key.
    """
    source = event_source(span)
    if source not in INFERENCE_EVENTS and not is_inference(span):
        return None
    trace_id = check_id(span.trace_id, NO_TRACE_ID, "bad_trace_id")
    span_id = check_id(span.span_id, NO_SPAN_ID, "bad_span_id")
    start_ns, end_ns = check_times(span)
    attributes = scalars(span.attributes, batch.anomalies, limits)
    tokens = TokenTimes([], None, None, span.dropped_events_count)
    if semconv.SEGMENTS not in attributes:  # else segments have the times of tokens
        translate(span, attributes, batch.anomalies)
        tokens = _token_times(span, source, attributes, batch, budget) or tokens
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
        events_ns=tokens.times_ns,
        kinds=tokens.kinds,
        counts=tokens.counts,
        event_basis=tokens.basis,
        dropped_events=tokens.dropped,
        receipt_ns=receipt_ns,
        instance_id=instance_id,
    )


def is_inference(span: Span) -> bool:
    """Tell by its attributes whether a span is a model's reply, by us or another instrumentation."""
    timed = False
    operation = ""
    for attribute in span.attributes:
        key = attribute.key
        if key in _RELEVANT:
            if key in _TIMED:
                timed = True
            elif key == semconv.GEN_AI_OPERATION_NAME:
                operation = attribute.value.string_value
                if operation in semconv.INFERENCE_OPERATIONS:
                    return True
            elif attribute.value.string_value == "LLM":
                return True
        elif key in _SUFFICIENT:
            return True
    return timed and operation not in semconv.OTHER_OPERATIONS


def _token_times(
    span: Span, source: str | None, attributes: Attributes, batch: Batch, budget: int
) -> TokenTimes | None:
    """Return the token times of a foreign span: those of an array, else of events; None if it has none.

    Wrong times are left out, if the span states another time too.

    Raises:
        RefusedSpan: it states no other time.
    """
    tokens = refusal = None
    try:
        packed = read_packed(span.attributes, span.start_time_unix_nano, span.end_time_unix_nano, budget)
        if packed is not None:
            tokens = TokenTimes(packed, None, "exact", 0)
    except TokenEventError as error:
        refusal = str(error)
    if tokens is None and source is not None:
        try:
            tokens = read_events(span, source, batch.anomalies, budget)
        except TokenEventError as error:
            refusal = refusal or str(error)
    if refusal is not None:
        if tokens is None and attributes.keys().isdisjoint(STATED_TIMES):
            raise RefusedSpan(refusal)
        batch.anomalies[refusal] += 1
    if tokens is not None and _choices(span) > 1:
        # The times are not separated by choice, so no reader got all of them; but the first token is the first.
        batch.anomalies["choices_not_told_apart"] += 1
        if not tokens.dropped:
            add_first_token(attributes, min(tokens.times_ns), span.start_time_unix_nano)
        return None
    return tokens


def _choices(span: Span) -> int:
    """Return the number of replies of a request: as many as asked for, or as many as have a finish reason."""
    most = 1
    for attribute in span.attributes:
        if attribute.key == semconv.GEN_AI_REQUEST_CHOICE_COUNT:
            most = max(most, attribute.value.int_value)
        elif attribute.key == semconv.GEN_AI_RESPONSE_FINISH_REASONS:
            most = max(most, len(attribute.value.array_value.values))
    return most
