"""Parse bodies of concatenated JSON values incrementally, and bodies whose kind only their content shows.

Each is an `sse.Parser`, and holds at most one unfinished value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from otel_llm.instrumentation.parse.sse import BOM, MAX_EVENT_BYTES, MOST_BLANK, SseParser, as_it_is

if TYPE_CHECKING:
    from otel_llm.instrumentation.parse.sse import Parser, Whole

_OUTSIDE: Final = re.compile(rb'[{}"]')
_INSIDE: Final = re.compile(rb'["\\]')
"""The significant bytes outside of a string, and inside of one."""
_OPEN, _CLOSE, _BACKSLASH = b"{}\\"
_BLANK: Final = b" \t\r\n" + BOM
"""Blanks, and the bytes of a byte order mark."""


class _JsonBody:
    """The common part of both parsers; `lost` counts the values that were dropped for their length."""

    __slots__ = ("_held", "_held_length", "_most", "_whole", "lost")

    def __init__(self, whole: Whole = as_it_is, *, most: int = MAX_EVENT_BYTES) -> None:
        self.lost = 0
        self._whole = whole
        self._most = most
        self._held = bytearray()  # the unfinished value, empty if it is too long
        self._held_length = 0

    def _hold(self, chunk: bytes) -> None:
        self._held_length += len(chunk)
        if self._held_length <= self._most:
            self._held += chunk
        else:
            self._held.clear()

    def _ended(self, last: bytes) -> list[Any]:
        """Return the held value with its last chunk, read; nothing if it is blank or, counted, too long."""
        if not self._held_length:
            value = last
        else:
            self._hold(last)
            value = bytes(self._held)
        length = self._held_length or len(last)
        self._held.clear()
        self._held_length = 0
        if length > self._most:
            self.lost += 1
            return []
        read = None if not value or value.isspace() else self._whole(value)
        return [] if read is None else [read]


class JsonLines(_JsonBody):
    """A parser of JSON lines (NDJSON): a value a line. Blank lines are skipped."""

    __slots__ = ()

    @property
    def between(self) -> bool:
        """Return whether nothing is held: the next byte begins a new line."""
        return not self._held_length

    def feed(self, data: bytes) -> list[Any]:
        """Apply the next bytes of the body; return the lines that end in them."""
        *lines, unfinished = data.split(b"\n")
        values = [value for line in lines for value in self._ended(line)]
        if unfinished:
            self._hold(unfinished)
        return values

    def end(self) -> list[Any]:
        """Return the line that the body's end left without its line feed."""
        return self.feed(b"\n")


class JsonArray(_JsonBody):
    """A parser of one array of objects, or of concatenated objects; each is complete with its last brace."""

    __slots__ = ("_depth", "_in_string", "_skip")

    def __init__(self, whole: Whole = as_it_is, *, most: int = MAX_EVENT_BYTES) -> None:
        super().__init__(whole, most=most)
        self._depth = 0  # of braces
        self._in_string = False
        self._skip = 0  # bytes of the next chunk that an escape took: 0 or 1

    @property
    def between(self) -> bool:
        """Return whether nothing is held: the next brace begins a new object."""
        return not (self._depth or self._in_string)

    def feed(self, data: bytes) -> list[Any]:
        """Apply the next bytes of the body; return the objects that end in them."""
        values: list[Any] = []
        start, at = 0, self._skip  # of the current object, and of the unread bytes
        while at <= len(data) and (found := (_INSIDE if self._in_string else _OUTSIDE).search(data, at)) is not None:
            at = found.end()
            byte = data[at - 1]
            if byte == _BACKSLASH:
                at += 1
            elif byte == _OPEN:
                if not self._depth:
                    start = at - 1
                self._depth += 1
            elif byte == _CLOSE:
                if self._depth == 1:
                    values += self._ended(data[start:at])
                self._depth = max(self._depth - 1, 0)
            else:
                self._in_string = not self._in_string
        self._skip = max(at - len(data), 0) if self._in_string else 0
        if self._depth and data:
            self._hold(data[start:])
        return values

    def end(self) -> list[Any]:
        """Return nothing: an object without its last brace is none."""
        return []


class SniffedBody:
    """A parser of JSON if the body's first byte is a brace or a bracket, else of events."""

    __slots__ = ("_begun", "_most", "_parser", "_whole")

    def __init__(self, whole: Whole = as_it_is, *, most: int = MAX_EVENT_BYTES) -> None:
        self._whole = whole
        self._most = most
        self._begun = b""  # blanks, and perhaps a part of a byte order mark
        self._parser: Parser | None = None

    @property
    def lost(self) -> int:
        """Return the number of chunks that were dropped for their length."""
        return 0 if self._parser is None else self._parser.lost

    @property
    def between(self) -> bool:
        """Return whether nothing is held."""
        return self._parser is not None and self._parser.between

    def feed(self, data: bytes) -> list[Any]:
        """Apply the next bytes of the body; return the chunks that end in them."""
        if self._parser is None:
            data = self._begun + data
            first = data.lstrip(_BLANK)[:1]
            if not first and len(data) <= MOST_BLANK:
                self._begun = data
                return []
            self._begun = b""
            if first in (b"{", b"["):
                self._parser = JsonArray(self._whole, most=self._most)
            else:
                self._parser = SseParser(self._whole, early=True, most=self._most)
        return self._parser.feed(data)

    def end(self) -> list[Any]:
        """Return the chunk that the body's end left unfinished."""
        return [] if self._parser is None else self._parser.end()
