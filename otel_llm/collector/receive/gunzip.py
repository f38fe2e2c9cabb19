"""Decompression of gzip bodies, with limits against decompression bombs."""

from __future__ import annotations

import zlib
from threading import BoundedSemaphore
from typing import Final

from otel_llm.collector.receive.errors import BadRequestError
from otel_llm.shared.errors import TooLargeError
from otel_llm.shared.memory import HEAP_TRIMMER

GZIP_MAGIC: Final = b"\x1f\x8b"
"""No export request begins with these bytes: protobuf has no wire type 7."""
MAX_RATIO: Final = 400
"""Decompressed bytes for each compressed byte: a run of one byte reaches 1,030; exports of applications reach a quarter
of this limit at most."""
FREE_BYTES: Final = 2**20
"""A body may expand to this size whatever its ratio."""
MOST_MEMBERS: Final = 64
"""The most gzip members of a body: each costs a copy of what follows it."""
_large: Final = BoundedSemaphore(1)
"""Bodies of more than FREE_BYTES are decompressed one at a time; smaller bodies do not wait for them."""


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """Return the decompressed body, of one gzip member or several; it never holds more than its limits.

    These are `max_bytes`, and MAX_RATIO times the body.

    Raises:
        TooLargeError: it would be larger.
        BadRequestError: it is no gzip, or truncated, or other bytes follow.
    """
    most = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(body)))
    raw, rest = bytearray(), body
    try:
        for _ in range(MOST_MEMBERS):
            member = zlib.decompressobj(wbits=31)
            raw += member.decompress(rest, max(1, min(most + 1, FREE_BYTES) - len(raw)))
            if member.unconsumed_tail and len(raw) <= most:
                with _large:
                    raw += member.decompress(member.unconsumed_tail, most + 1 - len(raw))
                HEAP_TRIMMER.note_large(len(raw))
            rest = member.unused_data
            if not rest or len(raw) > most:
                break
    except zlib.error as error:
        raise BadRequestError(f"broken gzip: {error}") from error
    if len(raw) > max_bytes:
        raise TooLargeError(f"the body is larger than {max_bytes} bytes once decompressed")
    if len(raw) > most:
        raise TooLargeError(f"the body is larger than {MAX_RATIO} times its size once decompressed")
    if not member.eof or rest:
        raise BadRequestError(f"broken gzip: truncated, or more than {MOST_MEMBERS} members")
    return bytes(raw)
