"""Map characters of an expression to lines and columns of its YAML file, across quotes and folds."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_llm.rules.files.yamlfile import ConfigError, Mark, YamlFile, dotted

if TYPE_CHECKING:
    from otel_llm.rules.files.yamlfile import KeyPath
    from otel_llm.rules.language.tokens import ExpressionError

_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_WHITE: Final = " \t\r\n\x85\u2028\u2029"
_CODES: Final = {"x": 2, "u": 4, "U": 8}


class RuleError(ConfigError):
    """An expression was refused: a ConfigError with the number of characters that the caret underlines."""

    length: int = 1


def expression_error(file: YamlFile, path: KeyPath, text: str, error: ExpressionError) -> RuleError:
    """Return an expression's error with its position in the file: the exact character, or else the scalar's start."""
    mark = file.value_mark(path)
    line, column, length = mark.line, mark.column, 1
    places = source_offsets(file.text, mark, text)
    if places is not None:
        first, last = places[min(error.start, len(text))], places[min(error.end, len(text))]
        line, column = _line_and_column(file.text, first)
        stop = _BREAK.search(file.text, first)
        end = min(last, stop.start() if stop else len(file.text))
        length = max(1, end - first)
    refused = RuleError(file.file, line, column, dotted(path), error.message, error.advice)
    refused.length = length
    return refused


def source_offsets(source: str, mark: Mark, value: str) -> list[int] | None:
    """Map each character of a scalar's value, and its end, to its offset in the source; None where they differ.

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
