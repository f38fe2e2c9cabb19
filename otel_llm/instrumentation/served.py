"""A request that is being served: where the HTTP side of a server and the engine under it meet.

The ASGI middleware knows how a reply ended for its reader; an engine's plugin knows when each token was made. Where
both are active there is one recording: the middleware's, whose tokens the engine tells.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.export.records import CONTENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.choices import Reader
    from otel_llm.instrumentation.chunks import Reading
    from otel_llm.instrumentation.recording import Recording


class ServedReader:
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


class Served:
    """One request on its way through a server.

    `recording` is None until the request's body says that it is a stream. `kinds` has the kind of the text that was
    sent last, by choice: what an engine's tokens are is only known there. `prompts` is how many prompts the request
    has, each with choices of its own.
    """

    __slots__ = ("_facts", "kinds", "prompts", "reader", "recording")

    def __init__(self, reader: ServedReader) -> None:
        self.reader = reader
        self.recording: Recording | None = None
        self.prompts = 1
        self.kinds: dict[int, int] = {}
        self._facts: list[Callable[[], Mapping[str, AttributeValue]]] = []

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


current: Final[ContextVar[Served | None]] = ContextVar("otel_llm_served", default=None)
"""The request that this task serves; set and reset in one frame, around the application."""
