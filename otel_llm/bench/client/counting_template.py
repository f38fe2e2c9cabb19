"""Recognise the events of a reply that the server counts by their bytes: the last one, with another text, one token on.

With running usage every event has other numbers, so that `EventTemplate` never matches. Nearly all of them are the one
before with another text and `completion_tokens` and `total_tokens` one higher. To compare bytes costs a fifth of a
parse.
"""

from __future__ import annotations

import re
from typing import Final

from otel_llm.instrumentation.parse.event_template import TEXT_STRING

_TEXT: Final = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?' + TEXT_STRING, re.DOTALL)
"""A text that is not empty. Quotation marks inside strings have backslashes, so a match of a key is a key."""
_COUNTS: Final = re.compile(rb'"(completion_tokens|total_tokens)": ?(\d{1,15})(?=[,}])')
_COUNTED: Final = b"completion_tokens"
_ENDINGS: Final = (b"\n\n", b"\r\n\r\n")
_UNSAFE: Final = (b"\\", b"\n", b"\r")


class CountingTemplate:
    """The template of the event that would follow the newest one.

    Exact: the bytes before and after the text are those that a parse of this event would see, and between them is a
    string that is not empty, has no escapes and does not end early. A chunk that `of` does not match is parsed, and is
    then passed to `learn`.
    """

    __slots__ = ("_head", "_numbers", "_parts", "_tail")

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self._parts: list[bytes] = []  # the tail without its numbers
        self._numbers: list[int] = []

    def of(self, chunk: bytes) -> bool:
        """Return whether a chunk of the body, which begins an event, is the next: one token more of the same kind."""
        head, tail = self._head, self._tail
        if not head or not chunk.startswith(head) or not chunk.endswith(tail):
            return False
        start, end = len(head), len(chunk) - len(tail)
        if not start < end == chunk.find(b'"', start) or any(chunk.find(one, start, end) >= 0 for one in _UNSAFE):
            return False
        self._expect_next()
        return True

    def learn(self, chunk: bytes, tokens: int) -> None:
        """Note a chunk that was one event of one token, the reply's number `tokens`; or forget."""
        self._head = b""
        texts = list(_TEXT.finditer(chunk))
        if (
            len(texts) != 1
            or chunk.count(b"data:") != 1
            or not chunk.startswith(b"data:")
            or not chunk.endswith(_ENDINGS)
        ):
            return
        end = texts[0].end(1)
        counts = list(_COUNTS.finditer(chunk, end))
        counted = [int(one[2]) for one in counts if one[1] == _COUNTED]
        if counted != [tokens] or chunk.count(_COUNTED) != 1:
            return
        self._parts, at = [], end
        for one in counts:
            self._parts.append(chunk[at : one.start(2)])
            at = one.end(2)
        self._parts.append(chunk[at:])
        self._numbers = [int(one[2]) for one in counts]
        self._head = chunk[: texts[0].start(1)]
        self._expect_next()

    def forget(self) -> None:
        """Match nothing until something is learned."""
        self._head = b""

    def _expect_next(self) -> None:
        self._numbers = [number + 1 for number in self._numbers]
        filled = [b"%b%d" % pair for pair in zip(self._parts, self._numbers, strict=False)]
        self._tail = b"".join(filled) + self._parts[-1]
