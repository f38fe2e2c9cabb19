"""Decompress a body, refusing while it is decompressed what grows as only a bomb does."""

from __future__ import annotations

import zlib
from threading import BoundedSemaphore
from typing import Final

from otel_llm.collector.receive.errors import BadRequestError
from otel_llm.shared.errors import TooLargeError
from otel_llm.shared.memory import KEEPER

GZIP_MAGIC: Final = b"\x1f\x8b"
"""No export request begins so: there is no wire type 7."""
MAX_RATIO: Final = 400
"""Decompressed bytes for each compressed one: a run of one byte reaches 1,030, the best of what applications send a
quarter of this at most."""
FREE_BYTES: Final = 2**20
"""A body may expand to as much whatever its ratio."""
_large: Final = BoundedSemaphore(1)
"""Bodies of more than FREE_BYTES are decompressed one at a time; small ones do not wait for them."""


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """Return the decompressed body, never holding more than `max_bytes` of it, or than its size allows.

    Raises:
        TooLargeError: it is larger.
        BadRequestError: it is no gzip, or cut, or followed by something else.
    """
    most = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(body)))
    member = zlib.decompressobj(wbits=31)
    try:
        raw = member.decompress(body, min(most + 1, FREE_BYTES))
        if member.unconsumed_tail and len(raw) <= most:
            with _large:
                raw += member.decompress(member.unconsumed_tail, most + 1 - len(raw))
            KEEPER.note(len(raw))
    except zlib.error as error:
        raise BadRequestError(f"broken gzip: {error}") from error
    if len(raw) > max_bytes:
        raise TooLargeError(f"the body is larger than {max_bytes} bytes once decompressed")
    if len(raw) > most:
        raise TooLargeError(f"the body is larger than {MAX_RATIO} times its size once decompressed")
    if not member.eof or member.unused_data:
        raise BadRequestError("broken gzip: cut, or followed by something else")
    return raw
