"""The forms of a streamed reply at an endpoint of the application's own: events, lines, or pieces of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.instrumentation.exchange import EVENT_STREAM
from otel_llm.instrumentation.sse import MAX_EVENT_BYTES, SseParser
from otel_llm.instrumentation.sse_chunks import DONE

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

_RECORD_SEPARATOR: Final = b"\x1e"
_BLANK: Final = b" \t\r"


class Form(Protocol):
    """Takes a reply's pieces and gives the chunks in them."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the chunks that end in the next piece of the reply."""

    def end(self) -> list[bytes]:
        """Return the chunk that the reply's end left unfinished, if any."""


class Events:
    """Server-sent events: the data of each; comments and `[DONE]` are none."""

    __slots__ = ("_parser",)

    def __init__(self) -> None:
        self._parser = SseParser()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that end in the next piece of the reply."""
        return _less_done(self._parser.feed(data))

    def end(self) -> list[bytes]:
        """Return the data of an event without its blank line, if any."""
        return _less_done(self._parser.end())


class Lines:
    """Lines that are not blank, without their end; a longer one than `max_bytes` is dropped."""

    __slots__ = ("_line", "_lost", "_max")

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._line = bytearray()
        self._lost = False
        self._max = max_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in the next piece of the reply."""
        *ended, rest = data.split(b"\n")
        lines = []
        for part in ended:
            self._hold(part)
            lines += self.end()
        self._hold(rest)
        return lines

    def end(self) -> list[bytes]:
        """Return the line that has not ended, if any."""
        line, lost = bytes(self._line).lstrip(_RECORD_SEPARATOR).strip(_BLANK), self._lost
        self._line.clear()
        self._lost = False
        return [line] if line and not lost else []

    def _hold(self, part: bytes) -> None:
        self._lost |= len(self._line) + len(part) > self._max
        if not self._lost:
            self._line += part


class Pieces:
    """Pieces of text, as the application sends them."""

    __slots__ = ()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the piece, unless it is empty."""
        return [data] if data else []

    def end(self) -> list[bytes]:
        """Return nothing: a piece is whole."""
        return []


def form_of(content_type: str) -> Callable[[], Form] | None:
    """Return the form in which a reply streams that states this content type, None where it is one JSON text."""
    if content_type == EVENT_STREAM:
        return Events
    if content_type in LINES:
        return Lines
    return None if content_type == "application/json" or content_type.endswith("+json") else Pieces


def _less_done(events: list[bytes]) -> list[bytes]:
    return [event for event in events if event.strip() != DONE]
