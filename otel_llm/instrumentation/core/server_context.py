"""A request that is being served: where the HTTP side of a server meets the engine or the model calls under it.

The middleware knows how a reply ended for its reader; an engine's plugin knows when each token was made. Where both are
active there is one recording: the middleware's, whose tokens the engine tells. In a gateway the calls that the handler
makes belong to the request: they join its trace, and end when its client leaves.
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

from otel_llm import semconv
from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.core.serving import current

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
"""Model calls of one request that end when its client leaves: the newest."""


class ServerReader:
    """What the server says of its reply: by the text that it sends, and by the engine where one tells the tokens.

    `adopted`: an engine tells them, one by one. `input_tokens`, `output_tokens` are the engine's counts.
    """

    plain = False

    def __init__(self, text: Reader | None) -> None:
        self._text = text
        self.adopted = False
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None

    def is_plain(self, chunk: object) -> bool:  # noqa: ARG002
        """Return that nothing is known of a piece before it is read."""
        return False

    def __call__(self, chunk: Any) -> Reading:
        """Return what one event of the reply carries."""
        return () if self._text is None else self._text(chunk)

    def basis(self, choice: int) -> str:
        """Return where the token counts of a choice come from."""
        if self.adopted or self._text is None:
            return "exact"
        return self._text.basis(choice)

    def segment_attributes(self) -> dict[str, AttributeValue]:
        """Return what the last segment can say that segment 0 could not."""
        attributes = {} if self._text is None else self._text.segment_attributes()
        if self.input_tokens is not None:
            attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] = self.input_tokens
        return attributes

    def span_attributes(self) -> dict[str, AttributeValue]:
        """Return what the reply says about itself, for the request span."""
        attributes = {} if self._text is None else self._text.span_attributes()
        attributes.update(self.segment_attributes())
        if self.output_tokens is not None:
            attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = self.output_tokens
        return attributes


class ServerContext:
    """One request on its way through a server.

    `context` holds the trace, baggage and SLO class that the request's headers carry. `recording` is None until the
    request's body says that it is a stream. `kinds` has the kind of the text that was sent last, by choice: only there
    is known what an engine's tokens are. `prompts` is how many prompts the request has, each with choices of its own.
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
        """Return whether there is a recording that goes on."""
        return self.recording is not None and not self.recording.done

    @property
    def kind(self) -> int:
        """Return the kind of the text of choice 0 that was sent last."""
        return self.kinds.get(0, CONTENT)

    def adopt(self) -> None:
        """Take the tokens from the engine from now on, which must be before the first."""
        self.reader.adopted = True

    def add_facts(self, source: Callable[[], Mapping[str, AttributeValue]]) -> None:
        """Ask `source` once, when the recording ends, what else is to be said on the request span."""
        self._facts.append(source)

    def tell_facts(self) -> None:
        """Put what the engine knows on the recording, which is about to end."""
        facts, self._facts = self._facts, []
        if self.recording is None:
            return
        for source in facts:
            with contextlib.suppress(Exception):  # one engine's failure is not the recording's
                self.recording.attributes(source())

    def hold(self, recording: Recording) -> None:
        """Have a recording that is announced later, if ever; its span begins when something asks for a parent."""
        self.recording = recording
        self._beginning = threading.RLock()

    def announce(self) -> None:
        """Announce the recording that is held."""
        if self.recording is not None and self._beginning is not None:
            with self._beginning:
                self._begun = True
                self.recording.announce(self.surroundings())

    def join(self, call: ModelCall) -> None:
        """Remember a model call that is made for this request, weakly."""
        self._calls.append(weakref.ref(call))

    def leave(self) -> None:
        """End the recordings of the model calls made so far: the client of this request left."""
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
        """Return the request span's context; while there is none, that of the span that the headers carry."""
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
        """Return the context of the span that this one stands for."""
        return self._request.span_context()


def served_now() -> ServerContext | None:
    """Return the request that this task serves, None where it serves none."""
    serving = current.get()
    return serving if isinstance(serving, ServerContext) else None
