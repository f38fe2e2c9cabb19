"""Read the records of a JSON file, however they are laid out: one a line, indented over many lines, or in an array."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from otel_llm.formats.io.bytestream import split_lines
from otel_llm.formats.io.json_pieces import PieceLimits, load
from otel_llm.formats.io.json_walk import END, items
from otel_llm.formats.io.skipped import MAX_DOCUMENT_BYTES
from otel_llm.formats.records import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from otel_llm.formats.io.skipped import Skipped

_BOM: Final = b"\xef\xbb\xbf"


def json_records(
    path: Path, chunks: Iterable[bytes], skipped: Skipped, most_bytes: int = MAX_DOCUMENT_BYTES
) -> Iterator[tuple[int | str, Any]]:
    """Yield the place (a line, or `byte N`) and the value of each record.

    A file that begins with a JSON object on one line has a record a line. Any other has its values one after the other,
    as `jq` writes them. Of an array each element is a record. A broken record is counted and left out.
    """
    pieces = iter(chunks)
    begun = _first_line(pieces, most_bytes)
    every = chain([begun], pieces)
    first = begun.removeprefix(_BOM).lstrip()
    array = first.startswith(b"[")
    if array or not any(map(_is_object, first.split(b"\n", 2)[:2])):  # of lines the first may be broken
        for item in items(path, every, skipped, {""} if array else (), PieceLimits(chars=most_bytes)):
            if item.value is not END:
                yield f"byte {item.offset}", item.value
        return
    for line in split_lines(every, most_bytes):
        try:
            value = load(line.text)
        except DecodeError as error:
            skipped.bad_line(path, line, error)
        else:
            yield line.number, value


def _first_line(pieces: Iterator[bytes], most_bytes: int) -> bytes:
    """Return the bytes up to the end of the first line that is not blank, and what was read with it."""
    begun = bytearray()
    at = 0  # of the first byte that is not blank
    for piece in pieces:
        looked = len(begun)
        begun += piece
        if at == looked:
            at = len(begun) - len(begun.removeprefix(_BOM).lstrip())
        if begun[at : at + 1] == b"[" or begun.find(b"\n", max(at, looked)) >= 0 or len(begun) > most_bytes:
            break
    return bytes(begun)


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(load(line), dict)
    except DecodeError:
        return False
