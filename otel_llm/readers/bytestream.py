"""Read a file as chunks of bytes, decompressed where it is gzip or zstd, with the cut end of either counted.

Nothing here holds more than a chunk: what a small file expands to is bounded for whoever reads it, not by trust.
"""

from __future__ import annotations

import zlib
from itertools import chain
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import zstandard

from otel_llm.readers.records import DecodeError, InputError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CHUNK_BYTES: Final = 2**20
GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_INPUT_BYTES: Final = 2048
"""Compressed bytes given to zstd at once: a run of one value expands 30,000 times, its output has no other bound."""


def open_chunks(path: Path, skipped: Counter[str]) -> Iterator[bytes]:
    """Yield the bytes of `path`, decompressed; a cut or broken end is counted as `torn_tail` or `bad_record`.

    Raises:
        InputError: the file cannot be read.
    """
    chunks = _file_chunks(path)
    first = next(chunks, b"")
    whole = chain([first], chunks)
    if first.startswith(GZIP_MAGIC):
        yield from _gunzip(whole, skipped)
    elif first.startswith(ZSTD_MAGIC):
        yield from _unzstd(whole, skipped)
    else:
        yield from whole


def _file_chunks(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open(path: Path) -> BinaryIO:
    """Open a file, or its compressed form: a collector may have closed and compressed it since it was listed."""
    try:
        return path.open("rb")
    except FileNotFoundError:
        return path.with_name(path.name + ".zst").open("rb")


def _gunzip(chunks: Iterable[bytes], skipped: Counter[str]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            rest = chunk
            while rest:
                if member.eof:
                    if not rest.startswith(GZIP_MAGIC[: len(rest)]):
                        return  # padding behind the last member is usual (tapes, and not only those)
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(rest, CHUNK_BYTES)
                rest = member.unused_data if member.eof else member.unconsumed_tail
    except zlib.error:
        skipped["bad_record"] += 1
        return
    if not member.eof:
        skipped["torn_tail"] += 1


def _unzstd(chunks: Iterable[bytes], skipped: Counter[str]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    try:
        for chunk in chunks:
            for first in range(0, len(chunk), _ZSTD_INPUT_BYTES):
                rest = chunk[first : first + _ZSTD_INPUT_BYTES]
                while rest:
                    if frame.eof:
                        frame = decompressor.decompressobj()
                    yield frame.decompress(rest)
                    rest = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError:
        skipped["bad_record"] += 1
        return
    if not frame.eof:
        skipped["torn_tail"] += 1


def unzstd_bytes(data: bytes, max_bytes: int) -> bytes:
    """Return one decompressed zstd frame.

    Raises:
        DecodeError: it is broken, cut, or expands to more than `max_bytes`.
    """
    frame = zstandard.ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    size = 0
    try:
        for first in range(0, len(data), _ZSTD_INPUT_BYTES):
            pieces.append(frame.decompress(data[first : first + _ZSTD_INPUT_BYTES]))
            size += len(pieces[-1])
            if size > max_bytes or frame.eof:
                break
    except zstandard.ZstdError as error:
        raise DecodeError(f"broken zstd: {error}") from error
    if size > max_bytes:
        raise DecodeError(f"zstd that expands to more than {max_bytes} bytes")
    if not frame.eof:
        raise DecodeError("cut zstd")
    return b"".join(pieces)


class Line(NamedTuple):
    """One line that is not blank, its number from 1, and whether it ended with a newline."""

    number: int
    text: bytes
    ended: bool


def split_lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[Line]:
    """Yield the lines that are not blank; of one longer than `max_bytes` the first so many bytes."""
    number, kept = 1, bytearray()
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        kept += first[: max(0, max_bytes - len(kept))]
        for piece in others:
            if kept.strip():
                yield Line(number, bytes(kept), ended=True)
            number += 1
            kept = bytearray(piece[:max_bytes])
    if kept.strip():
        yield Line(number, bytes(kept), ended=False)
