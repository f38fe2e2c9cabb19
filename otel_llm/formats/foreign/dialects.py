"""Translate other vocabularies into the GenAI conventions: OpenInference, Langfuse, the conventions' own old names.

Afterwards a model, a token count and the time to the first token have one name each. A statement under the
conventions' names is never overwritten; one in a dialect is checked like any attribute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.formats.foreign.chunk_events import SLACK_NS
from otel_llm.formats.spans.attributes import fits

if TYPE_CHECKING:
    from collections import Counter

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    from otel_llm.formats.records import Attributes

_SAME: Final = {
    semconv.GEN_AI_USAGE_PROMPT_TOKENS: semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.GEN_AI_USAGE_COMPLETION_TOKENS: semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    semconv.OPENINFERENCE_PROMPT_TOKENS: semconv.GEN_AI_USAGE_INPUT_TOKENS,
    semconv.OPENINFERENCE_COMPLETION_TOKENS: semconv.GEN_AI_USAGE_OUTPUT_TOKENS,
    # The reply's statement where there is one, else the request's: the weaker of the two is claimed.
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
