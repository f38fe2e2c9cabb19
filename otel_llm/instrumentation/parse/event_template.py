"""Events that differ from one that was read in their text alone, told by their bytes at a small part of parsing's cost.

Most pieces of a body are one event each, and most events of a reply are the same but for one string.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from otel_llm.instrumentation.segments.chunks import FRAMING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.instrumentation.parse.sse import Parser
    from otel_llm.instrumentation.segments.chunks import Reading

_TEXT: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|thinking|partial_json)": ?"((?:[^"\\]|\\.)+)"', re.DOTALL
)
"""A text that is not empty. Where quotation marks inside of strings have backslashes, what looks like a key is one."""
_LINE_FEED, _CARRIAGE_RETURN, _QUOTE, _BACKSLASH = b'\n\r"\\'
LEARNS: Final = 8
"""How often a reply may change what its events look like; one with another look each time is not worth learning."""


class EventTemplate:
    """Knows the newest event of one text and one token again when only the text is another.

    Exact where bodies are JSON: the bytes before the text and after it are those of an event that was read, and between
    them is a string that is not empty, has no escapes and does not end early. What `of` does not know is for the
    parser, and then for `learn`.
    """

    __slots__ = ("_after", "_between", "_head", "_learns", "_line", "_parser", "_reading", "_start", "_tail")

    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._between = False  # whether a new piece begins a new event
        self._head: bytes | tuple[()] = ()  # which nothing starts with
        self._tail = b""
        self._start = self._after = self._line = 0  # bytes before the text, after it, and from its end to its line's
        self._reading: Reading = ()
        self._learns = LEARNS

    def of(self, piece: bytes) -> Reading | None:
        """Return what a piece of the body carries that is one event like the one that was learned, None of others.

        A blank line where no event has begun carries nothing: who reads line by line brings one for each event.
        """
        if not self._between:
            return None
        if piece == b"\n":
            return FRAMING
        if piece.startswith(self._head) and piece.endswith(self._tail):
            end = len(piece) - self._after
            if (
                self._start < end == piece.find(_QUOTE, self._start)
                and piece.find(_BACKSLASH, self._start, end) < 0
                and piece.find(_LINE_FEED, self._start) == end + self._line
                and piece.find(_CARRIAGE_RETURN) < 0
            ):
                return self._reading
        return None

    def learn(self, piece: bytes, events: Sequence[bytes], reading: Reading | None) -> None:
        """Take note of what the parser made of a piece, and what was read in its one event; None: of no use."""
        between, self._between = self._between, self._parser.between
        if not between or not self._between or not reading or len(events) != 1 or not self._learns:
            return
        [mark, *others] = reading
        if others or mark[0] or mark[2] != 1 or mark[3]:
            return
        texts = list(_TEXT.finditer(events[0]))
        at = piece.find(events[0])
        if len(texts) == 1 and at >= 0:
            self._learns -= 1
            end = at + texts[0].end(1)
            self._start = at + texts[0].start(1)
            self._after = len(piece) - end
            self._head, self._tail = piece[: self._start], piece[end:]
            self._line = self._tail.find(_LINE_FEED)
            self._reading = reading
