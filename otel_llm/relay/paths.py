"""Paths as a backend may read them: rights and ownership are decided by one normal form of all their spellings."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

MOST_DECODED: Final = 4
"""How often a path may be percent-encoded, one encoding within the other."""


def normal_path(path: str) -> str | None:
    """Return a path in lower case, decoded, with one slash between segments; a query and parameters are cut off.

    None for one that servers read differently: with `.` or `..` segments, backslashes, characters that do not print,
    or an encoding that does not end.
    """
    text = path.partition("?")[0]
    for _ in range(MOST_DECODED):
        try:
            decoded = unquote(text, errors="strict")
        except UnicodeDecodeError:
            return None
        if decoded == text:
            break
        text = decoded
    else:
        return None
    segments = [segment.partition(";")[0].strip().casefold() for segment in text.split("/")]
    if "\\" in text or not text.isprintable() or not {".", ".."}.isdisjoint(segments):
        return None
    return "/" + "/".join(segment for segment in segments if segment)
