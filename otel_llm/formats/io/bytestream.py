"""Read a file as chunks of bytes, decompressed if it is gzip or zstd; a cut end of either is counted.

Nothing here holds more than a chunk, however far a small file expands.
"""

from __future__ import annotations

import sys
import zlib
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import zstandard

from otel_llm.formats.io.open_input import open_input
from otel_llm.formats.records import DecodeError, InputError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from io import BufferedReader

STDIN: Final = Path("-")
"""Standard input; a file of that name can be given with its folder."""
CHUNK_BYTES: Final = 2**20
GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
MOST_EXPANSION: Final = 1000
"""The most bytes for a byte of a compressed file, once there are FREE_BYTES: recordings reach 10 to 100,
gzip 1,032, zstd 30,000."""
FREE_BYTES: Final = 16 * 2**20
_ZSTD_INPUT_BYTES: Final = 2048
"""Compressed bytes given to zstd at once: a run of one value expands 30,000 times, its output has no other bound."""


def open_chunks(
    path: Path,
    skipped: Counter[str],
    lost: Callable[[str, int], None] | None = None,
    *,
    most_expansion: int | None = MOST_EXPANSION,
) -> Iterator[bytes]:
    """Yield the bytes of `path`, decompressed; a cut or broken end is counted as `torn_tail` or `bad_record`.

    `-` is standard input. `lost` is called with each reason and its offset in the compressed file. `most_expansion` is
    None for a journal's file, which we compressed ourselves: it may expand as much as it likes.

    Raises:
        InputError: the file cannot be read, or expands to more than `most_expansion` times its size and FREE_BYTES.
    """

    def count(reason: str, offset: int) -> None:
        skipped[reason] += 1
        if lost is not None:
            lost(reason, offset)

    packed_bytes = 0

    def counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal packed_bytes
        for chunk in chunks:
            packed_bytes += len(chunk)
            yield chunk

    def bounded(blocks: Iterator[bytes]) -> Iterator[bytes]:
        size = 0
        for block in blocks:
            size += len(block)
            if most_expansion is not None and size > max(FREE_BYTES, most_expansion * packed_bytes):
                raise InputError(
                    f"{path}: expands to more than {most_expansion} times its size: if that is meant, unpack it first"
                )
            for begin in range(0, len(block), CHUNK_BYTES):
                yield block[begin : begin + CHUNK_BYTES]

    chunks = counted(_file_chunks(path))
    first = next(chunks, b"")
    while 0 < len(first) < len(ZSTD_MAGIC) and (more := next(chunks, b"")):  # a pipe may give a byte at a time
        first += more
    whole = chain([first], chunks)
    if first.startswith(GZIP_MAGIC):
        yield from bounded(_gunzip(whole, count))
    elif first.startswith(ZSTD_MAGIC):
        yield from bounded(_unzstd(whole, count))
    else:
        yield from whole


def _file_chunks(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as file:
            # Read what a pipe has now, without waiting for a full chunk.
            while chunk := file.read1(CHUNK_BYTES):
                yield chunk
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _open(path: Path) -> AbstractContextManager[BufferedReader]:
    """Open a file, or its compressed format: a collector may have closed and compressed it since it was listed."""
    if path == STDIN:
        return nullcontext(cast("BufferedReader", sys.stdin.buffer))  # ours to read, not to close
    try:
        return open_input(path)
    except FileNotFoundError:
        return open_input(path.with_name(path.name + ".zst"))


def _gunzip(chunks: Iterable[bytes], lost: Callable[[str, int], None]) -> Iterator[bytes]:
    member = zlib.decompressobj(wbits=31)
    offset = 0
    try:
        for chunk in chunks:
            offset += len(chunk)
            rest = chunk
            while rest:
                if member.eof:
                    if not rest.startswith(GZIP_MAGIC[: len(rest)]):
                        return  # padding after the last member is usual, and not on tapes only
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(rest, CHUNK_BYTES)
                rest = member.unused_data if member.eof else member.unconsumed_tail
    except zlib.error:
        lost("bad_record", offset - len(rest))
        return
    if not member.eof:
        lost("torn_tail", offset)


def _unzstd(chunks: Iterable[bytes], lost: Callable[[str, int], None]) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    offset = before = 0
    try:
        for chunk in chunks:
            before, offset = offset, offset + len(chunk)
            for first in range(0, len(chunk), _ZSTD_INPUT_BYTES):
                rest = chunk[first : first + _ZSTD_INPUT_BYTES]
                while rest:
                    if frame.eof:
                        frame = decompressor.decompressobj()
                    yield frame.decompress(rest)
                    rest = frame.unused_data if frame.eof else b""
    except zstandard.ZstdError:
        lost("bad_record", before + first)
        return
    if not frame.eof:
        lost("torn_tail", offset)


def unzstd_bytes(data: bytes, max_bytes: int) -> bytes:
    """Return one decompressed zstd frame.

    Raises:
        DecodeError: it is broken, cut, or expands to more than `max_bytes`.
    """
    frame = zstandard.ZstdDecompressor().decompressobj()
    blocks: list[bytes] = []
    size = 0
    try:
        for first in range(0, len(data), _ZSTD_INPUT_BYTES):
            blocks.append(frame.decompress(data[first : first + _ZSTD_INPUT_BYTES]))
            size += len(blocks[-1])
            if size > max_bytes or frame.eof:
                break
    except zstandard.ZstdError as error:
        raise DecodeError(f"broken zstd: {error}") from error
    if size > max_bytes:
        raise DecodeError(f"zstd that expands to more than {max_bytes} bytes")
    if not frame.eof:
        raise DecodeError("cut zstd")
    return b"".join(blocks)


class Line(NamedTuple):
    """One line that is not blank, its number from 1, and whether it ended with a newline."""

    number: int
    text: bytes
    ended: bool


def split_lines(chunks: Iterable[bytes], max_bytes: int) -> Iterator[Line]:
    """Yield the lines that are not blank; a line longer than `max_bytes` is cut there."""
    number, kept = 1, bytearray()
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        kept += first[: max(0, max_bytes - len(kept))]
        for block in others:
            if kept.strip():
                yield Line(number, bytes(kept), ended=True)
            number += 1
            kept = bytearray(block[:max_bytes])
    if kept.strip():
        yield Line(number, bytes(kept), ended=False)
