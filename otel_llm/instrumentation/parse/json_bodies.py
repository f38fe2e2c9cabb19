"""Parse bodies of concatenated JSON values incrementally: bytes in, the bytes of values out.

Both are an `sse.Parser`. Each holds at most one unfinished value.
"""

from __future__ import annotations

import re
from typing import Final

from otel_llm.instrumentation.parse.sse import MAX_EVENT_BYTES

_OUTSIDE: Final = re.compile(rb'[{}"]')
_INSIDE: Final = re.compile(rb'["\\]')
"""The significant bytes outside of a string, and inside of one."""
_OPEN, _CLOSE, _BACKSLASH = b"{}\\"


class _JsonBody:
    """The common part of both parsers; `lost` counts the values that were dropped for their length."""

    __slots__ = ("_held", "_held_length", "_max", "lost")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.lost = 0
        self._max = max_event_bytes
        self._held = bytearray()  # the unfinished value, empty where it is too long
        self._held_length = 0

    def pending(self) -> None:
        """Return None: no value is complete before its last byte."""

    def forget(self) -> None:
        """Do nothing: no value was pending."""

    def _hold(self, piece: bytes) -> None:
        self._held_length += len(piece)
        if self._held_length <= self._max:
            self._held += piece
        else:
            self._held.clear()

    def _whole(self, last: bytes) -> bytes | None:
        """Return the held value with its last piece; None, counted, if it is too long."""
        if not self._held_length:
            value = last
        else:
            self._hold(last)
            value = bytes(self._held)
        length = self._held_length or len(last)
        self._held.clear()
        self._held_length = 0
        if length > self._max:
            self.lost += 1
            return None
        return value


class JsonLines(_JsonBody):
    """A parser of JSON lines (NDJSON): a value a line. Blank lines are skipped."""

    __slots__ = ()

    @property
    def between(self) -> bool:
        """Return whether nothing is held: the next byte begins a new line."""
        return not self._held_length

    def feed(self, data: bytes) -> list[bytes]:
        """Apply the next bytes of the body; return the lines that end in them."""
        *lines, unfinished = data.split(b"\n")
        values = []
        for line in lines:
            value = self._whole(line)
            if value and not value.isspace():
                values.append(value)
        if unfinished:
            self._hold(unfinished)
        return values

    def end(self) -> list[bytes]:
        """Return the line that the body's end left without its line feed."""
        return self.feed(b"\n")


class JsonArray(_JsonBody):
    """A parser of one array of objects, or of concatenated objects; each is complete with its last brace."""

    __slots__ = ("_depth", "_in_string", "_skip")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(max_event_bytes)
        self._depth = 0  # of braces
        self._in_string = False
        self._skip = 0  # bytes of the next piece that an escape took: 0 or 1

    @property
    def between(self) -> bool:
        """Return whether nothing is held: the next brace begins a new object."""
        return not (self._depth or self._in_string)

    def feed(self, data: bytes) -> list[bytes]:
        """Apply the next bytes of the body; return the objects that end in them."""
        values = []
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
                if self._depth == 1 and (value := self._whole(data[start:at])) is not None:
                    values.append(value)
                self._depth = max(self._depth - 1, 0)
            else:
                self._in_string = not self._in_string
        self._skip = max(at - len(data), 0) if self._in_string else 0
        if self._depth and data:
            self._hold(data[start:])
        return values

    def end(self) -> list[bytes]:
        """Return nothing: an object without its last brace is none."""
        return []
