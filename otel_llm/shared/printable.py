"""Strings from elsewhere as a terminal and a log may show them: nothing in them acts, and a line stays one line."""

from __future__ import annotations

import unicodedata
from typing import Final

MISSING: Final = "–"
"""What stands where a value is null: neither 0 nor good."""
LONGEST_LINE: Final = 6000
"""Characters of a line; a condition of a rule has at most 4,096."""
_ACTING: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode: controls, directions and other formats, surrogates, private use, unassigned, separators."""


def printable(text: str | None, limit: int = 80) -> str:
    """Make a string from telemetry safe to show: control and direction characters become visible, length is bounded.

    A model name may hold an escape sequence for the terminal, a line of its own or a right-to-left override; none may
    act. What is printable already stays as it is.
    """
    if text is None:
        return MISSING
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return shown if shown.isprintable() else "".join(map(_visible, shown))


def printable_lines(text: str) -> str:
    """Make text of our own lines safe to show, each bounded."""
    return "\n".join(printable(line, LONGEST_LINE) for line in text.split("\n"))


def one_line(value: object, limit: int = 200) -> str:
    """Return a bounded line of what the other side of a connection wrote, "" where that is no text."""
    return printable(" ".join(value.split()), limit) if isinstance(value, str) else ""


def _visible(character: str) -> str:
    return f"\\u{{{ord(character):x}}}" if unicodedata.category(character) in _ACTING else character
