"""The positions of the members of a JSON object in its text, so that an edit keeps every other character."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COLON: Final = re.compile(r"[ \t\n\r]*:[ \t\n\r]*")
_COMMA_OR_END: Final = re.compile(r"[ \t\n\r]*(?:(,)[ \t\n\r]*|})")


class Member(NamedTuple):
    """One member of an object: its key, its value, and the positions of both in the text."""

    key: str
    value: Any
    key_start: int
    start: int
    end: int


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


DECODER: Final = json.JSONDecoder(parse_constant=_refuse)
"""A decoder of strict JSON: NaN and infinities are refused."""


def _space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def members(text: str, at: int = 0) -> tuple[list[Member], int]:
    """Return the members of the object that begins at `at`, in order, duplicates too, and the position of its end.

    Raises: ValueError if it is not an object of JSON, RecursionError if it is too deep.
    """
    found: list[Member] = []
    return found, _read(text, at, found)


def begun_members(text: str) -> list[Member]:
    """Return the members at the beginning of a text that need not be whole, up to the first that is not."""
    found: list[Member] = []
    with suppress(ValueError, RecursionError):
        _read(text, 0, found)
    return found


def _read(text: str, at: int, found: list[Member]) -> int:
    """Add the members of an object to `found` one by one; return the position of its end."""
    at = _space(text, at)
    if text[at : at + 1] != "{":
        raise ValueError("not an object")
    at = _space(text, at + 1)
    if text[at : at + 1] == "}":
        return at + 1
    while True:
        key_start = at
        if text[at : at + 1] != '"':
            raise ValueError("a key must be a string")
        key, at = DECODER.raw_decode(text, at)
        colon = _COLON.match(text, at)
        if colon is None:
            raise ValueError("no colon behind a key")
        start = colon.end()
        value, end = DECODER.raw_decode(text, start)
        found.append(Member(key, value, key_start, start, end))
        behind = _COMMA_OR_END.match(text, end)
        if behind is None:
            raise ValueError("no comma behind a member")
        at = behind.end()
        if behind[1] is None:
            return at


def elements(text: str, at: int) -> Iterator[int]:
    """Yield the position of each element of the array that begins at `at`; nothing if it is no array."""
    at = _space(text, at)
    if text[at : at + 1] != "[":
        return
    at = _space(text, at + 1)
    while text[at : at + 1] not in ("]", ""):
        yield at
        _, end = DECODER.raw_decode(text, at)
        at = _space(text, end)
        if text[at : at + 1] == ",":
            at = _space(text, at + 1)


def only_object(text: str) -> list[Member]:
    """Return the members of a text that is one object and nothing else. Raises: as `members`."""
    found, end = members(text)
    if _space(text, end) != len(text):
        raise ValueError("something follows the object")
    return found


def removals(found: list[Member], doomed: set[int]) -> list[tuple[int, int, str]]:
    """Return the spans to replace so that the members at the indices `doomed` go, each with one comma."""
    spans = []
    kept_before = False
    for index, member in enumerate(found):
        if index not in doomed:
            kept_before = True
        elif kept_before:
            spans.append((found[index - 1].end, member.end, ""))
        else:
            last = index + 1 == len(found)
            spans.append((member.key_start, member.end if last else found[index + 1].key_start, ""))
    return spans


def replaced(text: str, spans: list[tuple[int, int, str]]) -> str:
    """Return the text with each span (start, end) replaced; the spans do not overlap."""
    parts: list[str] = []
    at = 0
    for start, end, new in sorted(spans):
        parts += text[at:start], new
        at = end
    return "".join([*parts, text[at:]])
