"""The forms of a streamed reply at an application's own endpoint: events, lines, or pieces of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.instrumentation.parse.json_bodies import JsonLines
from otel_llm.instrumentation.parse.sse import SseParser
from otel_llm.instrumentation.parse.sse_chunks import DONE
from otel_llm.instrumentation.server.exchange import EVENT_STREAM

if TYPE_CHECKING:
    from collections.abc import Callable

LINES: Final = frozenset(
    {
        "application/json-lines",
        "application/json-seq",
        "application/jsonl",
        "application/jsonlines",
        "application/ndjson",
        "application/stream+json",
        "application/x-json-stream",
        "application/x-jsonlines",
        "application/x-ndjson",
    }
)
"""Content types of JSON texts that follow each other, a line each."""

_AROUND_LINES: Final = b"\x1e\r"
"""The record separator before each text of a JSON sequence, and the rest of a line's end."""


class Form(Protocol):
    """A splitter of a reply's pieces into chunks."""

    def feed(self, data: bytes, /) -> list[bytes]:
        """Return the chunks that end in the next piece of the reply."""

    def end(self) -> list[bytes]:
        """Return the chunk that the reply's end left unfinished, if any."""


class Events(SseParser):
    """Server-sent events: the data of each; comments and `[DONE]` are none."""

    __slots__ = ()

    def _dispatch(self, events: list[bytes]) -> None:
        super()._dispatch(events)
        if events and events[-1].strip() == DONE:
            events.pop()


class Lines(JsonLines):
    """Lines that are not blank, without their framing."""

    __slots__ = ()

    def feed(self, data: bytes, /) -> list[bytes]:
        """Return the lines that end in the next piece of the reply."""
        stripped = (line.strip(_AROUND_LINES) for line in super().feed(data))
        return [line for line in stripped if line]


class Pieces:
    """Pieces of text, as sent by the application."""

    __slots__ = ()

    def feed(self, data: bytes, /) -> list[bytes]:
        """Return the piece, unless it is empty."""
        return [data] if data else []

    def end(self) -> list[bytes]:
        """Return nothing: every piece is complete."""
        return []


def form_of(content_type: str) -> Callable[[], Form] | None:
    """Return the form of a streamed reply with this content type, None for one JSON text."""
    if content_type == EVENT_STREAM:
        return Events
    if content_type in LINES:
        return Lines
    return None if content_type == "application/json" or content_type.endswith("+json") else Pieces
