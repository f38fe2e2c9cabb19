"""The forms of a streamed reply at an application's own endpoint: events, lines, or pieces of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from otel_llm.instrumentation.parse.json_bodies import JsonLines
from otel_llm.instrumentation.parse.sse import SseParser
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


class Chunk(NamedTuple):
    """One chunk of a reply; `name` is that of a server-sent event, empty if it has none."""

    text: str
    name: str = ""


class Form(Protocol):
    """A splitter of a reply's pieces into chunks."""

    def feed(self, data: bytes, /) -> list[Chunk]:
        """Return the chunks that end in the next piece of the reply."""

    def end(self) -> list[Chunk]:
        """Return the chunk that the reply's end left unfinished, if any."""


class Events:
    """Server-sent events: the data and the name of each; comments are none."""

    __slots__ = ("_parser",)

    def __init__(self) -> None:
        self._parser = SseParser(self._chunk)

    def _chunk(self, data: bytes) -> Chunk:
        return Chunk(_text(data), self._parser.lines.name)

    def feed(self, data: bytes, /) -> list[Chunk]:
        """Return the events that end in the next piece of the reply."""
        return self._parser.feed(data)

    def end(self) -> list[Chunk]:
        """Return the event that the reply's end left without its blank line."""
        return self._parser.end()


class Lines(JsonLines):
    """Lines that are not blank, without their framing."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_line)


class Pieces:
    """Pieces of text, as sent by the application."""

    __slots__ = ()

    def feed(self, data: bytes, /) -> list[Chunk]:
        """Return the piece, unless it is empty."""
        return [Chunk(_text(data))] if data else []

    def end(self) -> list[Chunk]:
        """Return nothing: every piece is complete."""
        return []


def _line(data: bytes) -> Chunk | None:
    stripped = data.strip(_AROUND_LINES)
    return Chunk(_text(stripped)) if stripped else None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def form_of(content_type: str) -> Callable[[], Form] | None:
    """Return the form of a streamed reply with this content type, None for one JSON text."""
    if content_type == EVENT_STREAM:
        return Events
    if content_type in LINES:
        return Lines
    return None if content_type == "application/json" or content_type.endswith("+json") else Pieces
