"""Check and build the framing of export requests: refuse too many small parts, and wrap fields for protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.core.kernel import COMPILED
from otel_llm.readers.records import DecodeError

if TYPE_CHECKING:
    import numpy.typing as npt

RESOURCE_SPANS: Final = 0x0A
RESOURCE: Final = 0x0A
SCOPE_SPANS: Final = 0x12
SCOPE: Final = 0x0A
SPAN: Final = 0x12
MAX_PARTS: Final = 200_000
"""Small parts in one export request, as `otel_llm.core.parts` counts them."""


_IS_TAG: Final = np.zeros(256, np.bool_)
_IS_TAG[[RESOURCE_SPANS, SCOPE_SPANS, 0x1A, 0x22, 0x4A, 0x5A, 0x6A]] = True
"""Tags of what may be a part, whatever it is in."""
_SMALL_LENGTHS: Final = 64
_TOKEN_NAME: Final = b"\x12\x05token"
"""No part begins so: what stands behind the length would be no fields."""


def framed(tag: int, body: bytes) -> bytes:
    """Return a field with a length that holds this."""
    length, head = len(body), bytearray((tag,))
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return bytes(head) + body


def within_scope(fields: bytes) -> bytes:
    """Return an export request whose only ScopeSpans has these fields."""
    return framed(RESOURCE_SPANS, framed(SCOPE_SPANS, fields))


def within_span(fields: bytes) -> bytes:
    """Return an export request whose only span has these fields."""
    return within_scope(framed(SPAN, fields))


def refuse_many_parts(raw: bytes, most: int) -> None:
    """Refuse an export request in protobuf that has too many small parts.

    Raises:
        DecodeError: more than `most` small parts are in it.
    """
    if len(raw) <= 2 * most:
        return
    from otel_llm.core import parts  # kernels, which few need here

    data = np.frombuffer(raw, np.uint8)
    if not COMPILED and _possible_parts(raw, data) <= most:
        return
    around = np.empty((parts.MOST_DEPTH, 2), np.int64)
    if parts.count_parts(data, parts.SMALL, around, most) > most:
        raise _many_parts(most)


def refuse_many_json_parts(text: bytes, most: int) -> None:
    """Refuse an export request in JSON that has too many small objects, arrays or values.

    Raises:
        DecodeError: `most` more small objects, arrays or values are in it than its bytes would justify.
    """
    if len(text) <= 2 * most:
        return
    if not COMPILED and sum(map(text.count, (b",", b"{", b"["))) <= most:
        return
    from otel_llm.core.parts import has_more_json_parts

    if has_more_json_parts(np.frombuffer(text, np.uint8), most):
        raise _many_parts(most)


def _many_parts(most: int) -> DecodeError:
    return DecodeError(
        f"more than {most} small or empty spans, events, attributes and other parts in one export request"
    )


def _possible_parts(raw: bytes, data: npt.NDArray[np.uint8]) -> int:
    """Return a bound of how many small parts there can be, without a walk: that takes long as plain Python.

    Each has a tag and a length below 64, or one of both is spelt with more bytes than it needs: then it ends with a 0.
    """
    before, behind = data[:-1], data[1:]
    usual = np.count_nonzero(_IS_TAG[before] & (behind < _SMALL_LENGTHS))
    strange = np.count_nonzero((before > 127) & (behind == 0))
    return int(usual + strange) - raw.count(_TOKEN_NAME)
