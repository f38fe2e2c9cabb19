"""The wire format of protobuf: varints, fields, texts.

An index of -1 marks bytes that are not read here: malformed, or in a form that no encoder writes (a group, a length of
more than five bytes). Protobuf then reads them, so that its rules are not repeated here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.core.kernel import kernel
from otel_llm.core.loads import byte

if TYPE_CHECKING:
    from otel_llm.core.loads import Bytes

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
"""Wire types."""
_TAG_BYTES: Final = 5
"""Protobuf refuses longer tags and lengths."""
_VARINT_BYTES: Final = 10


@kernel()
def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at an index, and the index after it; a varint of ten bytes gives the value -1."""
    value = shift = 0
    limit = min(end, at + _VARINT_BYTES)
    while at < limit:
        one = byte(data, at)
        at += 1
        if shift == 63:
            return -1, at if one < 2 else -1
        value |= (one & 127) << shift
        if one < 128:
            return value, at
        shift += 7
    return -1, -1


@kernel()
def length(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the begin and end of a field's content, whose length is at an index; both are within `end`."""
    if at < end and byte(data, at) < 128:
        size, begin = byte(data, at), at + 1
    else:
        size, begin = varint(data, at, min(end, at + _TAG_BYTES))
    if begin < 0 or size > end - begin:
        return -1, -1
    return begin, begin + size


@kernel()
def tag(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the tag at an index, and the index after it."""
    if at < end and byte(data, at) < 128:
        found, behind = byte(data, at), at + 1
    else:
        found, behind = varint(data, at, min(end, at + _TAG_BYTES))
    if found < 8 or found > 0xFFFFFFFF:  # there is no field of number 0
        return -1, -1
    return found, behind


@kernel()
def skip(data: Bytes, at: int, end: int, wire_type: int) -> int:
    """Return the index after a field's content, which begins at `at`."""
    if wire_type == LENGTH:
        return length(data, at, end)[1]
    if wire_type == VARINT:
        return varint(data, at, end)[1]
    if wire_type == FIXED64:
        return at + 8 if end - at >= 8 else -1
    if wire_type == FIXED32:
        return at + 4 if end - at >= 4 else -1
    return -1


@kernel()
def is_text(data: Bytes, at: int, end: int) -> bool:
    """Return whether bytes are UTF-8: protobuf refuses a message with a text that is not."""
    while at < end:
        one = byte(data, at)
        at += 1
        if one < 0x80:
            continue
        if one < 0xC2 or one > 0xF4:
            return False
        more = 1 + (one >= 0xE0) + (one >= 0xF0)
        if end - at < more:
            return False
        second = byte(data, at)
        low, high = 0x80, 0xBF
        if one == 0xE0:
            low = 0xA0  # else overlong
        elif one == 0xED:
            high = 0x9F  # else a surrogate
        elif one == 0xF0:
            low = 0x90
        elif one == 0xF4:
            high = 0x8F  # else beyond U+10FFFF
        if second < low or second > high:
            return False
        for index in range(at + 1, at + more):
            if byte(data, index) & 0xC0 != 0x80:
                return False
        at += more
    return True


@kernel()
def is_same(data: Bytes, at: int, end: int, text: Bytes) -> bool:
    """Return whether bytes equal a text."""
    if end - at != len(text):
        return False
    for index in range(len(text)):
        if byte(data, at + index) != text[index]:
            return False
    return True
