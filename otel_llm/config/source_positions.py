"""Map characters of a scalar to lines and columns of its YAML file, across quotes and folds."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_llm.config.yaml_file import Mark

_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_WHITE: Final = " \t\r\n\x85\u2028\u2029"
_CODES: Final = {"x": 2, "u": 4, "U": 8}


def source_part(source: str, mark: Mark, value: str, start: int, end: int) -> tuple[int, int, int]:
    """Return line, column and length of `value[start:end]` in the source; the scalar's own start if it differs."""
    places = source_offsets(source, mark, value)
    if places is None:
        return mark.line, mark.column, 1
    first, last = places[min(start, len(value))], places[min(end, len(value))]
    line, column = _line_and_column(source, first)
    stop = _BREAK.search(source, first)
    return line, column, max(1, min(last, stop.start() if stop else len(source)) - first)


def source_offsets(source: str, mark: Mark, value: str) -> list[int] | None:
    """Map each character of a scalar's value, and its end, to its offset in the source; None if they differ.

    The value is followed through the source: line folds and indentation are skipped, escapes are counted.
    """
    at = _offset(source, mark)
    if mark.style is not None and mark.style in "'\"":
        at += 1
    elif mark.style is not None:
        header = _BREAK.search(source, at)
        if header is None:
            return None
        at = header.end()
    places: list[int] = []
    for char in value:
        found = _follow(source, at, char, mark.style)
        if found is None:
            return None
        places.append(found[0])
        at = found[1]
    places.append(at)
    return places


def source_line(source: str, line: int) -> str:
    """Return a line of the source, counted from 1, without its break."""
    starts = _line_starts(source)
    if not 0 < line <= len(starts):
        return ""
    stop = _BREAK.search(source, starts[line - 1])
    return source[starts[line - 1] : stop.start() if stop else len(source)]


def _follow(source: str, at: int, char: str, style: str | None) -> tuple[int, int] | None:
    """Find the next character of the value at or after an offset: its begin and end."""
    if char in _WHITE and style != '"':
        # Folding makes one space or break of many: surplus ones are skipped before the next visible character.
        return (at, at + 1) if source[at : at + 1] == char else (at, at)
    while True:
        here = source[at : at + 1]
        if style == '"' and here == "\\":
            end = at + 2 + _CODES.get(source[at + 1 : at + 2], 0)
            if _BREAK.match(source, at + 1):
                at = end
                continue
            return at, end
        if here == char:
            return at, at + (2 if style == "'" and char == "'" else 1)
        if char in _WHITE:
            return at, at
        if not here or here not in _WHITE:
            return None
        at += 1


def _offset(source: str, mark: Mark) -> int:
    starts = _line_starts(source)
    return starts[min(mark.line, len(starts)) - 1] + mark.column - 1


def _line_and_column(source: str, offset: int) -> tuple[int, int]:
    starts = _line_starts(source)
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1


@lru_cache(maxsize=4)
def _line_starts(source: str) -> list[int]:
    # A file full of errors has thousands of them: each must not scan the whole file again.
    return [0, *(found.end() for found in _BREAK.finditer(source))]
