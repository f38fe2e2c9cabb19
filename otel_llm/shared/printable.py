"""Escaping of untrusted strings for terminals and logs."""

from __future__ import annotations

import unicodedata
from typing import Final

MISSING: Final = "–"
"""The text of a null value, which is neither 0 nor good."""
LONGEST_LINE: Final = 6000
"""The most characters of a line; a condition of a rule has at most 4,096."""
_ESCAPED: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories: controls, directions and other formats, surrogates, private use, unassigned, separators."""


def printable(text: str | None, limit: int = 80) -> str:
    """Return an untrusted string with control and direction characters escaped, cut to `limit` characters.

    A model name may hold an escape sequence for the terminal, a line break or a right-to-left override. A printable
    string is unchanged; None gives MISSING.
    """
    if text is None:
        return MISSING
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return shown if shown.isprintable() else "".join(map(_visible, shown))


def printable_lines(text: str) -> str:
    """Return text with each line escaped, and cut to LONGEST_LINE."""
    return "\n".join(printable(line, LONGEST_LINE) for line in text.split("\n"))


def one_line(value: object, limit: int = 200) -> str:
    """Return an answer of another host as one escaped line of at most `limit` characters; "" where it is no text."""
    return printable(" ".join(value.split()), limit) if isinstance(value, str) else ""


def _visible(character: str) -> str:
    return f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _ESCAPED else character
