"""Decode an HTTP/1.1 message body as it is read from the connection: remove framing and compression.

Source: RFC 9112, sections 6.3 (length) and 7.1 (chunked); RFC 9110, section 8.4.1 (codings).
"""

from __future__ import annotations

import zlib
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_PIECE_BYTES: Final = 1 << 16
"""The step in which a compressed piece is unpacked, so that a small piece cannot fill the memory."""
MAX_LINE_BYTES: Final = 1 << 16
"""A longer line between chunks is no framing; http.client has the same limit."""

_PLAIN: Final = frozenset({"", "identity"})
_ZLIB: Final = frozenset({"gzip", "x-gzip", "deflate"})
_GZIP_OR_ZLIB: Final = 47
"""`wbits` of zlib: either header, detected."""


class BodyError(ValueError):
    """The bytes do not match the response's headers."""


class HttpBody:
    """A parser of one body from its first byte on.

    `length` is that of the body in bytes, None where it ends with the connection; it means nothing where the body is
    `chunked`. `coding` is the value of Content-Encoding. Any way of cutting the bytes gives the same body.

    Raises:
        BodyError: by the constructor, for a coding that cannot be unpacked here.
    """

    __slots__ = ("_chunked", "_left", "_line", "_trailer", "_unpacker", "complete")

    def __init__(self, *, chunked: bool, length: int | None, coding: str) -> None:
        coding = coding.strip().lower()
        if coding not in _PLAIN and coding not in _ZLIB:
            raise BodyError(f"cannot unpack {coding}")
        self._unpacker = zlib.decompressobj(_GZIP_OR_ZLIB) if coding in _ZLIB else None
        self._chunked = chunked
        self._left = 0 if chunked else length  # bytes to come: of the chunk, or of the body
        self._line = b""  # the line between chunks that has not ended yet
        self._trailer = False
        self.complete = not chunked and length == 0

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Apply the next bytes of the connection; return their pieces of the body.

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
        pieces = self._chunks(data) if self._chunked else self._counted(data)
        # One unpacked piece is in memory at a time: the bytes of one read may expand a thousand times.
        return pieces if self._unpacker is None else chain.from_iterable(map(self._unpack, pieces))

    def _counted(self, data: bytes) -> list[bytes]:
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
            self.complete = not self._left
        return [data]

    def _chunks(self, data: bytes) -> list[bytes]:
        pieces = []
        at = 0
        while at < len(data) and not self.complete:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                pieces.append(piece)
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            at = end or len(data)
            if len(self._line) > MAX_LINE_BYTES:
                raise BodyError("a line of framing without an end")
            if end:
                line, self._line = self._line.strip(), b""
                self._between(line)
        return pieces

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
                piece = unpacker.decompress(data, MAX_PIECE_BYTES)
            except zlib.error:
                raise BodyError("not compressed as the headers say") from None
            data = unpacker.unconsumed_tail
            yield piece
