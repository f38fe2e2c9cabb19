"""Token times as events on a request span: one event a token, or one a chunk of the reply.

The SDK keeps 128 events on a span and drops the oldest, so the first tokens. The span has the number of dropped events;
a stream that lost some is not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm import semconv
from otel_llm.core.limits import MAX_TOKENS
from otel_llm.formats.spans.span_checks import time_fault
from otel_llm.formats.spans.token_events import TokenEventError, read_tokens

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

SLACK_NS: Final = 1_000_000_000
"""How far outside of its span a token may lie: events and ends are not read at the same instant."""
SOURCES: Final = (
    semconv.TOKEN_GENERATED_EVENT,
    semconv.TOKEN_EVENT,
    semconv.CHUNK_EVENT,
    semconv.OLD_CHUNK_EVENT,
)
"""The events with the times of tokens, best first; only one kind of them counts on a span."""
INFERENCE_EVENTS: Final = frozenset(SOURCES) - {semconv.TOKEN_EVENT}
"""Events that make any span one of inference; `token` alone is too common a word."""
_BASES: Final = {
    semconv.TOKEN_GENERATED_EVENT: "exact",
    semconv.CHUNK_EVENT: "chunk",
    semconv.OLD_CHUNK_EVENT: "chunk",
}


class TokenTimes(NamedTuple):
    """The token times of a request span, unix ns as received; `kinds` and `counts` as in `RequestSpan`."""

    times_ns: Sequence[int]
    kinds: bytes | None
    basis: str | None
    """The meaning of one time: `exact`, `chunk`, None if unknown."""
    dropped: int
    """Times that its sender lost."""
    counts: Sequence[int] | None = None


def event_source(span: Span) -> str | None:
    """Return the name of the events of `span` with the times of tokens, None if there are none."""
    names = {event.name for event in span.events}
    return next((name for name in SOURCES if name in names), None)


def read_events(span: Span, source: str, anomalies: Counter[str], budget: int = MAX_TOKENS) -> TokenTimes:
    """Return the token times of the events named `source`.

    Raises:
        TokenEventError: a time is missing, beyond 63 bits or more than SLACK_NS outside of the span
            (`token_outside_span`), or there are more tokens than `budget`.
    """
    if source == semconv.TOKEN_EVENT:
        times_ns, kinds, counts = read_tokens(span, {source}, anomalies, budget)
    else:
        times_ns, kinds, counts = [event.time_unix_nano for event in span.events if event.name == source], None, None
        if len(times_ns) > budget:
            raise TokenEventError("too_many_tokens")
        fault = time_fault(min(times_ns), max(times_ns))
        if fault is not None:
            raise TokenEventError(fault)
    if min(times_ns) < span.start_time_unix_nano - SLACK_NS or max(times_ns) > span.end_time_unix_nano + SLACK_NS:
        raise TokenEventError("token_outside_span")
    return TokenTimes(times_ns, kinds, _BASES.get(source), span.dropped_events_count, counts)
