"""The context of a request that is being served: it joins the HTTP side of a server with the engine or model calls.

The middleware knows how a reply ended for its reader; an engine's plugin knows when each token was made. If both are
active there is one recording: the middleware's, with the engine's tokens. In a gateway the handler's model calls belong
to the request: they join its trace, and end when its client leaves.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.core.serving import current
from otel_llm.instrumentation.segments.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.core.serving import ModelCall
    from otel_llm.instrumentation.segments.choices import Reader
    from otel_llm.instrumentation.segments.chunks import Reading

MAX_CALLS: Final = 256
"""The most model calls of one request that end when its client leaves: the newest."""


class ServerReader:
    """The server's reading of its reply: by the sent text, and by the engine if one counts the tokens.

    `adopted`: an engine counts them, one by one; `doubted`: it stated more than are believed. `input_tokens`,
    `output_tokens` are the engine's counts.
    """

    plain = False

    def __init__(self, text: Reader | None) -> None:
        self._text = text
        self._reported = Statements() if text is None else text.reported
        self.adopted = self.doubted = False
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None

    @property
    def reported(self) -> Statements:
        """Return the reply's statements; the engine's counts come before those of the text."""
        reported = self._reported
        if self.input_tokens is not None:
            reported.input_tokens = self.input_tokens
        if self.output_tokens is not None:
            reported.output_tokens = self.output_tokens
        return reported

    def plain_size(self, chunk: object) -> int:  # noqa: ARG002
        """Return 0: nothing is known of a piece before it is read."""
        return 0

    def __call__(self, chunk: Any) -> Reading:
        """Return what one event of the reply carries."""
        return () if self._text is None else self._text(chunk)

    def basis(self, choice: int) -> str:
        """Return the basis of a choice's token counts."""
        if self.adopted or self._text is None:
            return "estimated" if self.doubted else "exact"
        return self._text.basis(choice)


class ServerContext:
    """One request on its way through a server.

    `context` holds the trace, baggage and SLO class of the request's headers. `recording` is None until the request's
    body asks for a stream. `kinds` has the kind of the last sent text, by choice: only there is known what an engine's
    tokens are. `prompts` is how many prompts the request has, each with choices of its own.
    """

    __slots__ = (
        "_beginning",
        "_begun",
        "_calls",
        "_facts",
        "context",
        "kinds",
        "prompts",
        "reader",
        "recording",
        "span",
    )

    def __init__(self, reader: ServerReader, context: Context) -> None:
        self.reader = reader
        self.context = context
        self.recording: Recording | None = None
        self.prompts = 1
        self.kinds: dict[int, int] = {}
        self.span = ServerSpan(self)
        self._beginning: threading.RLock | None = None
        self._begun = False
        self._facts: list[Callable[[], Mapping[str, AttributeValue]]] = []
        self._calls: deque[weakref.ref[ModelCall]] = deque(maxlen=MAX_CALLS)

    @property
    def open(self) -> bool:
        """Return whether there is an active recording."""
        return self.recording is not None and not self.recording.done

    @property
    def kind(self) -> int:
        """Return the kind of the last sent text of choice 0."""
        return self.kinds.get(0, CONTENT)

    def adopt(self) -> None:
        """Take the tokens from the engine from now on; called before the first token."""
        self.reader.adopted = True

    def add_facts(self, source: Callable[[], Mapping[str, AttributeValue]]) -> None:
        """Call `source` once, at the end of the recording, for further attributes of the request span."""
        self._facts.append(source)

    def record_facts(self) -> None:
        """Add the engine's facts to the recording, which is about to end."""
        facts, self._facts = self._facts, []
        if self.recording is None:
            return
        for source in facts:
            with contextlib.suppress(Exception):  # one engine's failure is not the recording's
                self.recording.attributes(source())

    def hold(self, recording: Recording) -> None:
        """Hold a recording that may be announced later; its span begins when a parent is needed."""
        self.recording = recording
        self._beginning = threading.RLock()

    def announce(self, late: Mapping[str, AttributeValue] | None = None) -> None:
        """Announce the recording that is held; `late`: attributes learned since the commit."""
        if self.recording is not None and self._beginning is not None:
            with self._beginning:
                self._begun = True
                self.recording.announce(self.surroundings(), late)

    def join(self, call: ModelCall) -> None:
        """Remember a model call of this request, by a weak reference."""
        self._calls.append(weakref.ref(call))

    def leave(self) -> None:
        """End the recordings of the model calls so far: this request's client left."""
        for found in list(self._calls):
            if (call := found()) is not None:
                call.left()

    def surroundings(self) -> Context:
        """Return the context in which the request's span begins: that of a span opened around us, else the headers'.

        A server instrumentation beneath the middleware opens its span after the headers were read here.
        """
        current = trace.get_current_span()
        if current is self.span or not current.get_span_context().is_valid:
            return self.context
        return otel_context.get_current()

    def span_context(self) -> SpanContext:
        """Return the request span's context; before there is one, that of the span in the headers."""
        recording = self.recording
        own = None if recording is None else recording.context
        if own is None and recording is not None and self._beginning is not None:
            with self._beginning:  # handlers ask from several threads; a span processor may ask while it begins
                if not self._begun:
                    self._begun = True
                    recording.begin(self.surroundings())
            own = recording.context
        return trace.get_current_span(self.context).get_span_context() if own is None else own


class ServerSpan(NonRecordingSpan):
    """The current span around an application: the request's own as soon as there is one, the client's until then."""

    def __init__(self, request: ServerContext) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self._request = request

    def get_span_context(self) -> SpanContext:
        """Return the context of the represented span."""
        return self._request.span_context()


def current_server_context() -> ServerContext | None:
    """Return the context of the request that this task serves, None if it serves none."""
    serving = current.get()
    return serving if isinstance(serving, ServerContext) else None
