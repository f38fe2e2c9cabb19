"""Decode an HTTP/1.1 message body: remove framing as it is read from the connection, and compression.

Source: RFC 9112, sections 6.3 (length) and 7.1 (chunked); RFC 9110, section 8.4.1 (codings); RFC 8878 (zstd).
"""

from __future__ import annotations

import io
import zlib
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_BLOCK_BYTES: Final = 1 << 16
"""The step in which a compressed block is unpacked, so that a small block cannot fill the memory."""
MAX_LINE_BYTES: Final = 1 << 16
"""A longer line between chunks is no framing; http.client has the same limit."""

MAX_WINDOW_BYTES: Final = 1 << 23
"""The most memory that a zstd frame may claim for its window: what RFC 8878 asks decoders to support."""
MAX_CODINGS: Final = 2
"""The most codings of one body that are unpacked, one after another."""
MAX_MEMBERS: Final = 64
"""The most members of a gzip body: each costs a copy of all that follow."""

_COMPRESSIONS: Final = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress", "dcb", "dcz"})
"""The registered codings that change a body; servers also send words that mean none."""
_ZLIB: Final = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB: Final = 47
"""`wbits` of zlib: either header, detected."""
_HEADLESS: Final = -15
"""`wbits` of deflate without a header, which some clients send."""


class BodyError(ValueError):
    """The bytes do not match the response's headers."""


def coding_of(stated: str) -> str:
    """Return the codings in a Content-Encoding that change the body, in lower case; "" for none."""
    names = (name.strip().lower() for name in stated.split(","))
    return ", ".join(name for name in names if name in _COMPRESSIONS)


def unpacked(body: bytes, coding: str, limit: int) -> bytes | None:
    """Return a whole body without its compression; `coding` is the value of Content-Encoding.

    None if it is longer than `limit` bytes, damaged, cut off, or in a coding that cannot be unpacked here; a zstd body
    that was cut off gives its beginning. Memory: `limit` and one window, whatever the body claims.
    """
    names = [name for name in coding_of(coding).split(", ") if name]
    if len(names) > MAX_CODINGS:
        return None
    found: bytes | None = body
    for name in reversed(names):
        if found is not None:
            found = _inflated(found, limit) if name in _ZLIB else _of_zstd(found, limit) if name == "zstd" else None
    return None if found is None or len(found) > limit else found


def _inflated(body: bytes, limit: int) -> bytes | None:
    try:
        return _members(body, limit, _GZIP_OR_ZLIB)
    except zlib.error:
        try:
            return _members(body, limit, _HEADLESS)
        except zlib.error:
            return None


def _members(body: bytes, limit: int, wbits: int) -> bytes | None:
    """Return the members of a gzip body together, or the one deflate stream."""
    if not body:
        return b""
    found = bytearray()
    for _ in range(MAX_MEMBERS):
        unpacker = zlib.decompressobj(wbits)
        found += unpacker.decompress(body, limit + 1 - len(found))
        if len(found) > limit or not unpacker.eof:
            return None
        body = unpacker.unused_data.lstrip(b"\0")  # gzip allows zeros behind a member
        if not body:
            return bytes(found)
    return None


def _of_zstd(body: bytes, limit: int) -> bytes | None:
    try:
        import zstandard  # an application need not have it
    except ImportError:
        return None
    unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        with unpacker.stream_reader(io.BytesIO(body), read_across_frames=True) as frames:
            found: bytes = frames.read(limit + 1)
            return found
    except zstandard.ZstdError:
        return None


class HttpBody:
    """A parser of one body from its first byte on.

    `length` is that of the body in bytes, None if it ends with the connection; it means nothing if the body is
    `chunked`. `coding` is the value of Content-Encoding. Any way of cutting the bytes gives the same body.

    Raises:
        BodyError: by the constructor, for a coding that cannot be unpacked here.
    """

    __slots__ = ("_chunked", "_left", "_line", "_trailer", "_unpacker", "complete")

    def __init__(self, *, chunked: bool, length: int | None, coding: str) -> None:
        coding = coding_of(coding)
        if coding and coding not in _ZLIB:
            raise BodyError(f"cannot unpack {coding}")
        self._unpacker = zlib.decompressobj(_GZIP_OR_ZLIB) if coding in _ZLIB else None
        self._chunked = chunked
        self._left = 0 if chunked else length  # bytes to come: of the chunk, or of the body
        self._line = b""  # the line between chunks that has not ended yet
        self._trailer = False
        self.complete = not chunked and length == 0

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Apply the next bytes of the connection; return their blocks of the body.

        Raises:
            BodyError: for bytes that are no chunks, or not compressed as stated.
        """
        # First what clients read of a chunk: the line of its size, its bytes, the end of the line after it.
        left = self._left
        if left:
            if len(data) <= left:
                self._left = left = left - len(data)
                self.complete = not (left or self._chunked)
                return (data,) if self._unpacker is None else self._unpack(data)
        elif self._chunked and not (self._line or self.complete) and data.find(b"\n") == len(data) - 1:
            self._between(data.strip())
            return ()
        blocks = self._chunks(data) if self._chunked else self._counted(data)
        # One unpacked block is in memory at a time: the bytes of one read may expand a thousand times.
        return blocks if self._unpacker is None else chain.from_iterable(map(self._unpack, blocks))

    def _counted(self, data: bytes) -> list[bytes]:
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.complete = not self._left
        return [data]

    def _chunks(self, data: bytes) -> list[bytes]:
        blocks = []
        at = 0
        while at < len(data) and not self.complete:
            if self._left:
                block = data[at : at + self._left]
                at += len(block)
                self._left -= len(block)
                blocks.append(block)
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            at = end or len(data)
            if len(self._line) > MAX_LINE_BYTES:
                raise BodyError("a line of framing without an end")
            if end:
                line, self._line = self._line.strip(), b""
                self._between(line)
        return blocks

    def _between(self, line: bytes) -> None:
        """Apply a line between two chunks, or after the last: empty, a chunk's size, or a trailer."""
        if self._trailer:
            self.complete = not line
        elif line:
            try:
                self._left = int(line.partition(b";")[0], 16)
            except ValueError:
                raise BodyError("no size of a chunk") from None
            if self._left < 0:
                raise BodyError("no size of a chunk")
            self._trailer = not self._left

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        unpacker = self._unpacker
        while data and unpacker is not None:
            try:
                block = unpacker.decompress(data, MAX_BLOCK_BYTES)
            except zlib.error:
                raise BodyError("not compressed as the headers say") from None
            data = unpacker.unconsumed_tail
            yield block
