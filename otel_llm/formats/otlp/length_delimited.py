"""Check and build the framing of export requests: refuse too many small parts, and wrap fields for protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.core.kernel import COMPILED
from otel_llm.formats.records import DecodeError

if TYPE_CHECKING:
    import numpy.typing as npt

RESOURCE_SPANS: Final = 0x0A
RESOURCE: Final = 0x0A
SCOPE_SPANS: Final = 0x12
SCOPE: Final = 0x0A
SPAN: Final = 0x12
_IS_TAG: Final = np.zeros(256, np.bool_)
_IS_TAG[[RESOURCE_SPANS, 0x1A, 0x22, 0x4A, 0x5A, 0x6A]] = True
"""Tags of possible parts, in any message; all but SPAN, which is SCOPE_SPANS too."""
_SMALL_LENGTHS: Final = 64
_TOKEN_NAME: Final = b"\x12\x05token"
"""No part begins so: the bytes after the length would be no fields."""


def length_delimited(tag: int, body: bytes) -> bytes:
    """Return a length-delimited field with this content."""
    length, head = len(body), bytearray((tag,))
    while length > 127:
        head.append(length & 127 | 128)
        length >>= 7
    head.append(length)
    return bytes(head) + body


def within_scope(fields: bytes) -> bytes:
    """Return an export request whose only ScopeSpans has these fields."""
    return length_delimited(RESOURCE_SPANS, length_delimited(SCOPE_SPANS, fields))


def within_span(fields: bytes) -> bytes:
    """Return an export request whose only span has these fields."""
    return within_scope(length_delimited(SPAN, fields))


def refuse_many_parts(raw: bytes, free_ns: int | None = None) -> None:
    """Refuse an export request in protobuf that has more small parts than its bytes justify.

    `free_ns`: the cost that is allowed however few bytes there are, `otel_llm.core.scanning.parts.FREE_NS` by default.

    Raises:
        DecodeError: it has.
    """
    from otel_llm.core.scanning import parts  # kernels, which few need here

    most = (parts.FREE_NS if free_ns is None else free_ns) + parts.NS_PER_BYTE * len(raw)
    if len(raw) * int(parts.COST.max()) <= most:
        return
    data = np.frombuffer(raw, np.uint8)
    if not COMPILED and _possible_cost(raw, data, parts.COST) <= most:
        return
    around = np.empty((parts.MOST_DEPTH, 2), np.int64)
    if parts.count_parts(data, parts.SMALL, parts.COST, around, most) > most:
        raise DecodeError(_MANY)


def refuse_many_json_parts(text: bytes, free: int | None = None) -> None:
    """Refuse an export request in JSON that has more small objects, arrays or values than its bytes justify.

    `free`: how many are allowed however few bytes there are; None: `otel_llm.core.scanning.parts.JSON_FREE`.

    Raises:
        DecodeError: it has.
    """
    from otel_llm.core.scanning.parts import JSON_FREE, has_more_json_parts

    most = JSON_FREE if free is None else free
    if len(text) <= 2 * most:
        return
    if not COMPILED and sum(map(text.count, (b",", b"{", b"["))) <= most:
        return
    if has_more_json_parts(np.frombuffer(text, np.uint8), most):
        raise DecodeError(_MANY)


_MANY: Final = (
    "more small or empty spans, events, attributes and other parts in one export request than its size allows"
)


def _possible_cost(raw: bytes, data: npt.NDArray[np.uint8], cost: npt.NDArray[np.int64]) -> int:
    """Return a bound on the cost of small parts, without a walk, which is slow in plain Python.

    Each has a tag and a length below 64, or one of both is written with more bytes than it needs: then it ends with a
    0.
    """
    before, behind = data[:-1], data[1:]
    dear, cheap = 2 * int(cost.max()), 2 * int(np.partition(cost, -2)[-2])
    small = behind < _SMALL_LENGTHS
    spans = int(np.count_nonzero((before == SPAN) & small)) - raw.count(_TOKEN_NAME)
    others = int(np.count_nonzero(_IS_TAG[before] & small))
    strange = int(np.count_nonzero((before > 127) & (behind == 0)))
    return (spans + strange) * dear + others * cheap
