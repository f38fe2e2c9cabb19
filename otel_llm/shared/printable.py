"""Escaping of untrusted strings for terminals and logs."""

from __future__ import annotations

from typing import Final

from otel_llm.export.host_log import escaped

MISSING: Final = "–"
"""The text of a null value, which is neither 0 nor good."""
LONGEST_LINE: Final = 6000
"""The most characters of a line; a condition of a rule has at most 4,096."""


def printable(text: str | None, limit: int = 80) -> str:
    """Return an untrusted string as `escaped` does; None gives MISSING."""
    return MISSING if text is None else escaped(text, limit)


def printable_lines(text: str) -> str:
    """Return text with each line escaped, and cut to LONGEST_LINE."""
    return "\n".join(printable(line, LONGEST_LINE) for line in text.split("\n"))


def one_line(value: object, limit: int = 200) -> str:
    """Return an answer of another host as one escaped line of at most `limit` characters; "" if it is no text."""
    return printable(" ".join(value.split()), limit) if isinstance(value, str) else ""
