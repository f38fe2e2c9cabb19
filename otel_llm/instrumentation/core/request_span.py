"""The request span: another instrumentation's open one, one from the application's TracerProvider, or our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_llm import semconv
from otel_llm.export.records import RequestRecord, SpanEvent, version
from otel_llm.instrumentation.core.serving import within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import Span, TracerProvider

    from otel_llm.export.records import AttributeValue

MAX_EVENTS: Final = 128
"""The most events of one span, as in the SDK; later ones are left out."""
OPENINFERENCE_KIND: Final = "openinference.span.kind"
"""The attribute by which OpenInference marks its spans (`LLM` for an inference); it sets no `gen_ai.operation.name`."""


class RequestSpan(Protocol):
    """The parent span of a recording's segments."""

    context: SpanContext

    def say(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set the attributes of the span, which was begun without any."""

    def event(self, event: SpanEvent) -> None:
        """Add an event."""

    def end(
        self, end_ns: int, ours: Mapping[str, AttributeValue], gen_ai: Mapping[str, AttributeValue], failure: str | None
    ) -> None:
        """End at `end_ns` (unix ns); `failure` describes the error, if there was one."""


class StartedSpan:
    """A span of our own from the application's TracerProvider."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.context = span.get_span_context()

    def say(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set the attributes."""
        self._span.set_attributes(attributes)

    def event(self, event: SpanEvent) -> None:
        """Add an event."""
        self._span.add_event(event.name, event.attributes, event.time_ns)

    def end(
        self, end_ns: int, ours: Mapping[str, AttributeValue], gen_ai: Mapping[str, AttributeValue], failure: str | None
    ) -> None:
        """Set the last attributes, and end the span."""
        self._span.set_attributes({**gen_ai, **ours})
        if failure is not None:
            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end(end_ns)


class AttachedSpan(StartedSpan):
    """Another instrumentation's inference span: it gets our attributes while it is open, and is never ended by us."""

    def __init__(self, span: Span, ours: Mapping[str, AttributeValue]) -> None:
        super().__init__(span)
        span.set_attributes(ours)

    def end(
        self,
        end_ns: int,  # noqa: ARG002
        ours: Mapping[str, AttributeValue],
        gen_ai: Mapping[str, AttributeValue],  # noqa: ARG002
        failure: str | None,  # noqa: ARG002
    ) -> None:
        """Set our last attributes."""
        if self._span.is_recording():
            self._span.set_attributes(ours)


class OwnSpan:
    """A span of our own if the application has no TracerProvider; it has our own ids and is sent as segments are."""

    def __init__(
        self,
        name: str,
        start_ns: int,
        attributes: Mapping[str, AttributeValue],
        parent: SpanContext | None,
        resource: Resource,
        getrandbits: Callable[[int], int],
        send: Callable[[RequestRecord], None],
        kind: SpanKind,
    ) -> None:
        self._name = name
        self._kind = kind
        self._start_ns = start_ns
        self._attributes = attributes
        self._parent = parent
        self._resource = resource
        self._send = send
        self._events: list[SpanEvent] = []
        self.context = SpanContext(
            parent.trace_id if parent is not None else getrandbits(128) or 1,
            getrandbits(64) or 1,
            is_remote=False,
            trace_flags=parent.trace_flags if parent is not None else TraceFlags(TraceFlags.SAMPLED),
            trace_state=parent.trace_state if parent is not None else None,
        )

    def say(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set the attributes."""
        self._attributes = {**self._attributes, **attributes}

    def event(self, event: SpanEvent) -> None:
        """Add an event."""
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)

    def end(
        self, end_ns: int, ours: Mapping[str, AttributeValue], gen_ai: Mapping[str, AttributeValue], failure: str | None
    ) -> None:
        """Set the last attributes, and send the span."""
        attributes = {**self._attributes, **gen_ai, **ours}
        self._send(
            RequestRecord(
                self.context,
                self._parent,
                self._resource,
                self._name,
                self._start_ns,
                end_ns,
                attributes,
                failure,
                self._kind,
                self._events,
            )
        )


def has_provider(provider: TracerProvider) -> bool:
    """Return whether spans started with this provider have ids of their own."""
    return not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def begin(
    context: Context,
    provider: TracerProvider,
    resource: Resource,
    name: str,
    start_ns: int,
    ours: Mapping[str, AttributeValue],
    gen_ai: Mapping[str, AttributeValue],
    getrandbits: Callable[[int], int],
    send: Callable[[RequestRecord], None],
    *,
    server: bool = False,
) -> RequestSpan:
    """Return the request span of a request that was committed at `start_ns` (unix ns) in `context`.

    `ours` are the attributes under `otel_llm.`, which an attached span gets too; `gen_ai` the others. In a `server` its
    parent is the client's span, or an open server span of the request. A client's is in the trace of the request that
    is being served, if there is one.
    """
    current = trace.get_current_span(context)
    if is_inference(current):
        return AttachedSpan(current, ours)
    if not server:
        context = within(context)
    parent = trace.get_current_span(context).get_span_context()
    kind = SpanKind.CLIENT
    if server:
        kind = SpanKind.INTERNAL if parent.is_valid and not parent.is_remote else SpanKind.SERVER
    attributes = {**gen_ai, **ours}
    if has_provider(provider):
        tracer = provider.get_tracer(semconv.SCOPE_NAME, version())
        span = tracer.start_span(name, context, kind, attributes, start_time=start_ns)
        if span.get_span_context().is_valid:
            return StartedSpan(span)
    return OwnSpan(name, start_ns, attributes, parent if parent.is_valid else None, resource, getrandbits, send, kind)


def is_inference(span: Span) -> bool:
    """Return whether an open span is an inference without a recording of ours beneath it.

    A span over two requests (a fallback to another model) belongs to the first: it identifies the segments.
    """
    return stands_for_inference(span) and semconv.MEASURED_AT not in (getattr(span, "attributes", None) or {})


def stands_for_inference(span: Span) -> bool:
    """Return whether an open span is an inference."""
    if not span.is_recording():
        return False
    attributes = getattr(span, "attributes", None) or {}
    return (
        attributes.get(semconv.GEN_AI_OPERATION_NAME) in semconv.INFERENCE_OPERATIONS
        or attributes.get(OPENINFERENCE_KIND) == "LLM"
    )
