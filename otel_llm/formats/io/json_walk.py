"""Read a JSON file larger than memory: its keys one by one, the elements of chosen arrays one by one.

Python's own decoder parses the pieces; one piece is held, never the document. Also: the keys in a file's first bytes,
to sniff its form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.formats.io.json_pieces import CLOSING, Bad, Cut, PieceLimits, Reader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from otel_llm.formats.io.skipped import Skipped

LOOK_DEPTH: Final = 6
END: Final = object()
"""The value of the item after the last key of an entered object."""

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)


def key_paths(head: bytes, depth: int = LOOK_DEPTH) -> frozenset[str]:
    """Return the paths of the keys in the first JSON value of `head`, which may be cut anywhere.

    `a` is a key of the object, `a.b` one of the object in it, `a[].b` one of the elements of an array, `[].b` where
    the value itself is an array. Keys deeper than `depth` brackets are left out.
    """
    found: set[str] = set()
    # For each open container: its path, and whether it is an object.
    stack: list[tuple[str, bool]] = []
    key = ""
    is_key = False
    for match in _TOKEN.finditer(head):
        token = match[0]
        first = token[:1]
        if first in (b"{", b"["):
            is_key = first == b"{"
            # A path that is too deep is not built: it would be as long as the nesting is deep.
            key = "" if len(stack) > depth else key if is_key else f"{key}[]"
            stack.append((key, is_key))
        elif first in (b"}", b"]"):
            if stack:
                stack.pop()
            is_key = False
            if not stack:
                break
        elif first == b",":
            if not stack:
                break
            key, is_key = stack[-1]
        elif is_key and first == b'"' and stack:
            if len(stack) <= depth:
                key = _below(stack[-1][0], token[1:-1].decode("utf-8", "replace"))
                found.add(key)
            is_key = False
        else:
            is_key = False
    return frozenset(found)


class Item(NamedTuple):
    """One piece of a JSON file: its path as in `key_paths` (`data[]` is an element of `data`), and its position.

    `offset` is in bytes of the file, decompressed.
    """

    path: str
    value: Any
    offset: int


def items(
    path: Path,
    chunks: Iterable[bytes],
    skipped: Skipped,
    streamed: Collection[str] = (),
    limits: PieceLimits | None = None,
) -> Iterator[Item]:
    """Yield the pieces of a JSON file, or of a file of several JSON values in a row.

    `streamed` are the paths of the objects and arrays that are entered instead of parsed whole: "" is the file's value
    itself, `data` the value of its key. After an entered object's last key an item has END for a value. A broken piece
    is counted in `skipped` with its offset and skipped; a cut end is counted as torn.
    """
    reader = Reader(chunks, limits)
    entered: list[tuple[str, str]] = []  # of each open container its path and its closing bracket
    at, due = "", True  # the path of the next piece, and whether one is due here
    while reader.peek() or entered:
        try:
            reader.begin()
            if due:
                if entered and entered[-1][1] == "}":
                    at = _below(entered[-1][0], reader.key())
                opening = reader.peek()
                if at in streamed and opening in CLOSING:
                    entered.append((at, CLOSING[opening]))
                    reader.position += 1
                    due = reader.peek() != CLOSING[opening]
                    at = f"{at}[]"
                    continue
                offset = reader.offset()
                yield Item(at, reader.value(), offset)
                due = False
            elif not entered:
                at, due = "", True
            elif (mark := reader.peek()) == ",":
                reader.position += 1
                at, due = f"{entered[-1][0]}[]", True
            elif mark in ("}", "]"):
                inner, closing = entered.pop()
                offset = reader.offset()
                reader.position += 1
                if closing == "}":
                    yield Item(inner, END, offset)
            else:
                raise Cut if not mark else Bad(reader.position, "expected a comma or a closing bracket")
        except Cut:
            skipped.torn(path, f"byte {reader.offset()}")
            return
        except Bad as bad:
            skipped.bad(path, f"byte {reader.offset(bad.at)}", bad)
            due = False
            if not entered:
                reader.pass_line()
            elif not reader.pass_over():
                return


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
