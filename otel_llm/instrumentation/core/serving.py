"""The request that this task serves, as its model calls see it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Protocol

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext


class ModelCall(Protocol):
    """A recorded model call of a request that is being served."""

    def left(self) -> None:
        """End: the client of the reply has left."""


class Serving(Protocol):
    """A request that is being served; `server_context.ServerContext` in a server."""

    @property
    def open(self) -> bool:
        """Whether there is an active recording."""

    def span_context(self) -> SpanContext:
        """Return the context of the request's span."""

    def join(self, call: ModelCall) -> None:
        """Remember a model call of this request, by a weak reference."""


current: Final[ContextVar[Serving | None]] = ContextVar("otel_llm_served", default=None)
"""The request that this task serves; set and reset in one frame, around the application."""


def within(context: Context) -> Context:
    """Return the context in which the span of a model call begins: `context`, in the trace of the served request.

    Another trace is current if a server instrumentation began one of its own for a request without a trace.
    """
    serving = current.get()
    if serving is None or not serving.open:
        return context
    own = serving.span_context()
    if not own.is_valid or trace.get_current_span(context).get_span_context().trace_id == own.trace_id:
        return context
    return trace.set_span_in_context(NonRecordingSpan(own), context)
