"""Recognise events that differ from an earlier one in their text alone, by their bytes, far faster than a parse.

Most chunks of a body are one event each, and most events of a reply are the same but for one string.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.segments.chunks import FRAMING, sized_mark
from otel_llm.instrumentation.segments.text_size import size_of_utf8

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.instrumentation.parse.sse import Event, Parser
    from otel_llm.instrumentation.segments.chunks import Reading

TEXT_STRING: Final = rb'"(?!")([^"\\]*+(?:\\.[^"\\]*+)*+)"'
"""A JSON string that is not empty. It gives no byte back: a pattern that may, keeps 130 bytes for each."""
_TEXT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|partial_json)": ?' + TEXT_STRING, re.DOTALL
)
"""A text that is not empty. Quotation marks inside strings have backslashes, so a match of a key is a key."""
_LINE_FEED, _CARRIAGE_RETURN, _QUOTE, _BACKSLASH = b'\n\r"\\'
LEARNS: Final = 8
"""How often a reply may change what its events look like; one with another look each time is not worth learning."""


class EventTemplate:
    """A template of the newest event of one text that the server did not count; it matches if only the text is another.

    Exact for JSON bodies: the bytes before and after the text are those of a parsed event, and between them is a string
    that is not empty, has no escapes and does not end early. A chunk that `of` does not match goes to the parser, and
    then to `learn`.
    """

    __slots__ = ("_after", "_between", "_head", "_kind", "_learns", "_line", "_parser", "_start", "_tail")

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._between = False  # whether a new chunk begins a new event
        self._head: bytes | tuple[()] = ()  # which nothing starts with
        self._tail = b""
        self._start = self._after = self._line = 0  # bytes before the text, after it, and from its end to its line's
        self._kind = CONTENT
        self._learns = LEARNS

    def of(self, chunk: bytes) -> int | Reading | None:
        """Return what a chunk of the body carries that is one event like the template's, None for any other.

        It is the size of a text of content, or the reading of another kind. A blank line between events has no tokens:
        a client that reads line by line passes one for each event.
        """
        if not self._between:
            return None
        if chunk == b"\n":
            return FRAMING
        if chunk.startswith(self._head) and chunk.endswith(self._tail):
            end = len(chunk) - self._after
            if (
                self._start < end == chunk.find(_QUOTE, self._start)
                and chunk.find(_BACKSLASH, self._start, end) < 0
                and chunk.find(_LINE_FEED, self._start) == end + self._line
                and chunk.find(_CARRIAGE_RETURN) < 0
            ):
                size = end - self._start if chunk.isascii() else size_of_utf8(chunk[self._start : end])
                return size if self._kind == CONTENT else sized_mark(self._kind, size)
        return None

    def learn(self, chunk: bytes, events: Sequence[Event], reading: Reading | None) -> None:
        """Note the parser's events of a chunk, and the reading of its single event; None: of no use."""
        between, self._between = self._between, self._parser.between
        if not between or not self._between or not reading or len(events) != 1 or not self._learns:
            return
        [mark, *others] = reading
        if others or mark[0] or mark[2] >= 0 or mark[3]:
            return
        data = events[0].data
        texts = list(_TEXT.finditer(data))
        at = chunk.find(data)
        if len(texts) == 1 and at >= 0:
            self._learns -= 1
            end = at + texts[0].end(1)
            self._start = at + texts[0].start(1)
            self._after = len(chunk) - end
            self._head, self._tail = chunk[: self._start], chunk[end:]
            self._line = self._tail.find(_LINE_FEED)
            self._kind = mark[1]
