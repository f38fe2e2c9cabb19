"""A request's key, and the headers by which a backend's spans become children of its span."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.instrumentation.request.propagation import TRACEPARENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.trace import SpanContext

    from otel_llm.formats.records import RequestKey

TRACE_HEADERS: Final = (TRACEPARENT, "tracestate", "baggage")
"""Headers of the client that `trace_headers` replaces."""
_trace_context: Final = TraceContextTextMapPropagator()


def trace_headers(own: SpanContext | None, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Return the headers for a backend: of the request span `own`, or the client's if the recording failed."""
    carrier: dict[str, str] = {}
    if own is not None:
        _trace_context.inject(carrier, trace.set_span_in_context(NonRecordingSpan(own), otel_context.Context()))
    kept = TRACE_HEADERS if own is None else ("baggage",)
    found = [(name.decode("latin-1").lower(), value) for name, value in headers]
    theirs = [(name, value.decode("utf-8", "surrogateescape")) for name, value in found if name in kept]
    return [*carrier.items(), *theirs]


def key_of(span: SpanContext | None) -> RequestKey:
    """Return a request's key from its span, or a random one if the recording failed: the rules still need a key."""
    if span is None:
        return secrets.token_bytes(16), secrets.token_bytes(8), DEFAULT_TENANT
    return span.trace_id.to_bytes(16, "big"), span.span_id.to_bytes(8, "big"), DEFAULT_TENANT
