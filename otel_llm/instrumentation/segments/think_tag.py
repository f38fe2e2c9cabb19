"""Tell a model's thinking from its answer if both are in one text: `<think>` ... `</think>` before the answer.

A server without a parser for the model's reasoning sends them so. No text is kept, only how much of a tag has come.
"""

from __future__ import annotations

from typing import Final

from otel_llm.export.records import CONTENT, REASONING

OPENS: Final = "<think>"
CLOSES: Final = "</think>"
_BEGINS, _THINKS, _OVER = range(3)


class ThinkTag:
    """The state of one reply: it may still begin with the tag, it is thinking, or all further text is the answer."""

    __slots__ = ("_matched", "_state")

    def __init__(self) -> None:
        self._state = _BEGINS
        self._matched = 0  # characters of the tag at the end of the text so far

    @property
    def over(self) -> bool:
        """Return whether all further text is the answer."""
        return self._state == _OVER

    def end(self) -> None:
        """Take all further text for the answer: the reply's first text was another kind."""
        self._state = _OVER

    def parts(self, text: str) -> list[tuple[int, str]]:
        """Return a text in parts, each with its kind; the tags are thinking."""
        if self._state == _BEGINS:
            return self._begin(text)
        if self._state == _THINKS:
            return self._think(text, 0)
        return [(CONTENT, text)]

    def _begin(self, text: str) -> list[tuple[int, str]]:
        rest = text if self._matched else text.lstrip()
        here = rest[: len(OPENS) - self._matched]
        if not OPENS.startswith(here, self._matched):
            self._state = _OVER
            return [(CONTENT, text)]
        self._matched += len(here)
        if self._matched < len(OPENS):
            # A single `<` begins more answers than thoughts.
            return [(REASONING if self._matched > 1 else CONTENT, text)]
        self._state, self._matched = _THINKS, 0
        return self._think(text, len(text) - len(rest) + len(here))

    def _think(self, text: str, start: int) -> list[tuple[int, str]]:
        """Look for the closing tag from `start` on; its beginning may be the end of the texts before."""
        left = CLOSES[self._matched :]
        if self._matched and text.startswith(left, start):
            return self._answer(text, start + len(left))
        if self._matched and left.startswith(text[start:]):
            self._matched += len(text) - start
            return [(REASONING, text)]
        found = text.find(CLOSES, start)
        if found >= 0:
            return self._answer(text, found + len(CLOSES))
        ends = (size for size in range(len(CLOSES) - 1, 0, -1) if text.endswith(CLOSES[:size], start))
        self._matched = next(ends, 0)
        return [(REASONING, text)]

    def _answer(self, text: str, end: int) -> list[tuple[int, str]]:
        self._state = _OVER
        return [(REASONING, text[:end])] + ([(CONTENT, text[end:])] if end < len(text) else [])
