"""Propagate the trace and the SLO class from a client to its server.

W3C Trace Context, whatever propagators the application chose: engines and routers read it. The class has a header of
its own, since some routers drop baggage; baggage as a whole is not ours to send to a model's provider.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.trace import NonRecordingSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_llm import semconv
from otel_llm.instrumentation.process import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.process.runtime import Runtime

TRACEPARENT_CHARS: Final = 512
TRACESTATE_CHARS, TRACESTATE_MEMBERS = 8192, 32
BAGGAGE_CHARS, BAGGAGE_MEMBERS, BAGGAGE_MEMBER_CHARS = 8192, 180, 4096

_SPACES: Final = " \t"
_NO_SPACES: Final = str.maketrans("", "", _SPACES)
_KEY: Final = r"[!#-'*+\-.0-9A-Z^-z|~]+"
_VALUE: Final = r"[!#-+\--:<-\[\]-~]*"
_PAIR: Final = rf"{_KEY}[ \t]*=[ \t]*{_VALUE}"
_BAGGAGE_MEMBER: Final = re.compile(rf"{_PAIR}(?:[ \t]*;[ \t]*(?:{_PAIR}|{_KEY}))*")
_TRACESTATE_KEY: Final = r"(?:[a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
_TRACESTATE_MEMBER: Final = re.compile(rf"{_TRACESTATE_KEY}=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]")


def traceparent_of(header: str) -> str:
    """Return a `traceparent` that can be one, else an empty text."""
    return header if len(header) <= TRACEPARENT_CHARS else ""


def tracestate_of(header: str) -> str:
    """Return a valid `tracestate`, else an empty text: it is all or nothing."""
    if len(header) > TRACESTATE_CHARS:
        return ""
    members = [member for part in header.split(",") if (member := part.strip(_SPACES))]
    valid = len(members) <= TRACESTATE_MEMBERS and all(map(_TRACESTATE_MEMBER.fullmatch, members))
    return ",".join(members) if valid else ""


def baggage_of(header: str) -> str:
    """Return the valid members of a `baggage`, without spaces, as many as the limits allow."""
    members: list[str] = []
    room = BAGGAGE_CHARS
    for part in header.split(","):
        member = part.strip(_SPACES)
        if len(member) > BAGGAGE_MEMBER_CHARS or _BAGGAGE_MEMBER.fullmatch(member) is None:
            continue
        member = member.translate(_NO_SPACES)  # there are none in a value
        room -= len(member) + 1
        if room < 0 or len(members) == BAGGAGE_MEMBERS:
            break
        members.append(member)
    return ",".join(members)


Attached = tuple["Context", "Token[Context]"]
"""The context that was made current, and the token to restore the one before."""

TRACEPARENT: Final = "traceparent"
SLO_CLASS_HEADER: Final = "x-slo-class"
_READ: Final[Mapping[str, Callable[[str], str]]] = {
    TRACEPARENT: traceparent_of,
    "tracestate": tracestate_of,
    "baggage": baggage_of,
    SLO_CLASS_HEADER: str,
}
"""The headers that are read, and what returns the part of one that is passed on."""
_READ_BYTES: Final = frozenset(name.encode() for name in _READ)
_CLASS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""The valid names of a class. Text of a network becomes an attribute, a label, a line, so no other is accepted."""
_SERVER_INSTRUMENTATIONS: Final = ("opentelemetry.instrumentation.asgi", "opentelemetry.instrumentation.wsgi")
"""The module behind OpenTelemetry's web framework instrumentations: if loaded, they set the current span."""

_trace_context: Final = TraceContextTextMapPropagator()
_baggage: Final = W3CBaggagePropagator()


def inject(recording: Recording, headers: MutableMapping[str, str]) -> None:
    """Put the recording's request span, and its SLO class, into a request's headers; never raises.

    A trace context that is there already, in any case of letters, stays, and so does a class.
    """
    try:
        running = runtime.running()
        if running is None or not running.propagate or recording.done:
            return
        there = {name.lower() for name in headers}
        if recording.context is not None and TRACEPARENT not in there:
            context = trace.set_span_in_context(NonRecordingSpan(recording.context), otel_context.Context())
            _trace_context.inject(headers, context)
        if recording.slo_class is not None and SLO_CLASS_HEADER not in there and is_class(recording.slo_class):
            headers[SLO_CLASS_HEADER] = recording.slo_class
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)


def attach(recording: Recording) -> Attached | None:
    """Make the recording's request span the current one, for the library's call alone; never raises.

    An HTTP instrumentation beneath writes its own span into the headers: it becomes a child of ours, and the server
    joins our trace. `detach` it when that call returns. None if the span is current already, or nothing is
    propagated.
    """
    try:
        running = runtime.running()
        span = recording.context
        if running is None or not running.propagate or span is None:
            return None
        if trace.get_current_span().get_span_context().span_id == span.span_id:
            return None
        ours = trace.set_span_in_context(NonRecordingSpan(span))
        return ours, otel_context.attach(ours)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None


def detach(attached: Attached | None) -> None:
    """Restore the span that was current before.

    Not where another context is current by now: a dropped coroutine is closed in the context of the garbage collector.
    """
    if attached is not None and otel_context.get_current() is attached[0]:
        otel_context.detach(attached[1])


def extract(headers: Iterable[tuple[bytes, bytes]], running: Runtime | None = None) -> Context:
    """Return the context of a request from its headers: its span, its baggage, its SLO class.

    A current span stays the parent: a server's instrumentation read the headers already. A class in `x-slo-class` wins
    over the baggage's; one that is not known to `running`, by default the process's runtime, is dropped, and counted.
    Never raises.
    """
    current = otel_context.get_current()
    running = running or runtime.running()
    try:
        carrier: dict[str, str] = {}
        for key, value in headers:
            name = key.decode("latin-1").lower()
            if name in _READ:
                text = value.decode("latin-1")
                carrier[name] = f"{carrier[name]},{text}" if name in carrier else text
        carrier = {name: part for name, text in carrier.items() if (part := _READ[name](text))}
        context = current
        if not trace.get_current_span(current).get_span_context().is_valid:
            context = _trace_context.extract(carrier, current)
        context = _baggage.extract(carrier, context)
        stated = admitted(running, carrier.get(SLO_CLASS_HEADER))
        if stated is not None:
            context = baggage.set_baggage(semconv.SLO_CLASS, stated, context)
    except Exception as bug:  # noqa: BLE001
        if running is not None:
            running.warn(bug)
        return current
    return context


def carries(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request's headers (names in lower case) have anything that `extract` reads."""
    return any(name in _READ_BYTES for name, _ in headers)


def around(context: Context, span: Span) -> Context | None:
    """Return the context for an application that serves a request; None if nothing is propagated.

    That is the request's baggage and SLO class from `context`, with `span` as the current span. A span that is current
    already stays, and none is set if OpenTelemetry instruments the server: its span would become INTERNAL. Never
    raises.
    """
    try:
        running = runtime.running()
        if running is None or not running.propagate:
            return None
        present = trace.get_current_span()
        theirs = present.get_span_context().is_valid or any(name in sys.modules for name in _SERVER_INSTRUMENTATIONS)
        return trace.set_span_in_context(present if theirs else span, context)
    except Exception as bug:  # noqa: BLE001
        runtime.warn(bug)
        return None


def enter(context: Context | None) -> Attached | None:
    """Make a context current; `detach` the result in the same frame. None changes nothing."""
    return None if context is None else (context, otel_context.attach(context))


def admitted(running: Runtime | None, stated: object) -> str | None:
    """Return a received SLO class, None if there is none, or an unknown one."""
    if not stated:
        return None
    text = str(stated).strip()
    known = None if running is None else running.slo_classes
    if is_class(text) and (known is None or text in known):
        return text
    if running is not None:
        running.refuse_class()
    return None


def is_class(text: str) -> bool:
    """Return whether a text can be the name of an SLO class on the wire."""
    return _CLASS.fullmatch(text) is not None
