"""The columns of a foreign inference span: all if every token's time is there, else those that it states.

The live evaluator and the audit share this module, so that both see the same in a span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.formats.spans.attributes import ENGINE_LATENCIES, STATED_TIMES, count_of, seconds_of, text_of
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from otel_llm.formats.records import RequestSpan

_SERVER: Final = 2  # SpanKind
_CLIENT: Final = 3


@dataclass(frozen=True, slots=True)
class Foreign:
    """The statements of another instrumentation's span on its request; None if it states nothing.

    `ttft_s` and `e2e_s` in seconds; `tokens` is the number of its token times, `expected` how many there
    should be (both 0: it has none).
    """

    ttft_s: float | None
    e2e_s: float | None
    tokens: int
    expected: int
    token_basis: str | None
    measured_at: str

    @property
    def complete(self) -> bool:
        """Return whether all token times are there, so that the request can be judged."""
        return 0 < self.tokens == self.expected

    @property
    def coverage(self) -> float | None:
        """Return the share of the token times that is there; None if the span has none at all."""
        return self.tokens / self.expected if self.tokens else None


def read_foreign(span: RequestSpan) -> Foreign | None:
    """Return the statements of a foreign span, None if it gives no time."""
    attributes = span.attributes
    ttft_s = seconds_of(attributes, semconv.GEN_AI_LATENCY_TTFT)
    for name, unit_s in semconv.FIRST_CHUNK_UNITS.items():
        if ttft_s is None and (stated := seconds_of(attributes, name)) is not None:
            ttft_s = stated * unit_s
    found = Foreign(
        ttft_s=ttft_s,
        e2e_s=seconds_of(attributes, semconv.GEN_AI_LATENCY_E2E),
        tokens=span.tokens,
        expected=_expected(span),
        token_basis=_token_basis(span),
        measured_at=_measured_at(span),
    )
    if span.events_ns or not attributes.keys().isdisjoint(STATED_TIMES):
        return found
    return None


def foreign_tokens(span: RequestSpan) -> TokenEvents | None:
    """Return the token events of a foreign span (unix ns, as received); None if it has none.

    They may be incomplete: `Resolved.complete` says whether they are judged.
    """
    return TokenEvents(span.events_ns, span.kinds, span.counts) if span.events_ns else None


def _expected(span: RequestSpan) -> int:
    """Return how many token times there should be: dropped ones count as not received.

    The reply's token count is comparable with exact times only; a number of chunks is not stated.
    """
    if not span.events_ns:
        return 0
    expected = max(span.tokens + span.dropped_events, count_of(span.attributes, semconv.TOKENS) or 0)
    if _token_basis(span) == "exact":
        expected = max(expected, count_of(span.attributes, semconv.GEN_AI_USAGE_OUTPUT_TOKENS) or 0)
    return expected


def _token_basis(span: RequestSpan) -> str | None:
    if not span.events_ns:
        return None
    return text_of(span.attributes, semconv.TOKEN_BASIS) or span.event_basis


def _measured_at(span: RequestSpan) -> str:
    """Return where the times were taken: `server` for the span of an engine or a server, else `client`.

    An engine's span is known by its latencies: SGLang gives its request spans no kind, which makes them INTERNAL.
    """
    stated = text_of(span.attributes, semconv.MEASURED_AT)
    if stated is not None:
        return stated
    engine = span.kind != _CLIENT and not span.attributes.keys().isdisjoint(ENGINE_LATENCIES)
    return "server" if engine or span.kind == _SERVER else "client"
