"""The positions of the members of a JSON object, or of the elements of an array, without reading their values.

A large document is not parsed for a few of its members: nothing is created for what it holds. Well-formed JSON is
divided right; of other text the parts need not make sense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.core.kernel import kernel
from otel_llm.core.loads import byte

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from otel_llm.core.loads import Bytes

    Ints = npt.NDArray[np.int64]

MOST_DEPTH: Final = 512
_QUOTE: Final = 34
_COMMA: Final = 44
_COLON: Final = 58
_BACKSLASH: Final = 92
_BRACE: Final = 123
_BRACKET: Final = 91
_TO_CLOSING: Final = 2
"""What a closing brace or bracket is behind its opening one."""


@kernel()
def _space(data: Bytes, at: int, end: int) -> int:
    """Return the index of the next byte that is no white space."""
    while at < end:
        found = byte(data, at)
        if found != 32 and found != 10 and found != 13 and found != 9:
            break
        at += 1
    return at


@kernel()
def _string(data: Bytes, at: int, end: int) -> int:
    """Return the index behind the string that begins at `at`; -1 if it does not end."""
    at += 1
    while at < end:
        found = byte(data, at)
        if found == _QUOTE:
            return at + 1
        at += 2 if found == _BACKSLASH else 1
    return -1


@kernel()
def _value(data: Bytes, at: int, end: int) -> int:
    """Return the index behind the value that begins at `at`; -1 if there is none, or it is too deep."""
    if at >= end:
        return -1
    first = byte(data, at)
    if first == _QUOTE:
        return _string(data, at, end)
    begin = at
    depth = 0
    while at < end:
        found = byte(data, at)
        if found == _QUOTE:
            at = _string(data, at, end)
            if at < 0 or depth == 0:
                return -1
            continue
        if found in (_BRACE, _BRACKET):
            depth += 1
            if depth > MOST_DEPTH or (depth == 1 and at > begin):
                return -1
        elif found in (_BRACE + _TO_CLOSING, _BRACKET + _TO_CLOSING):
            if depth == 0:
                break
            depth -= 1
            if depth == 0:
                return at + 1
        elif depth == 0 and (found in (_COMMA, 32, 10, 13, 9)):
            break
        at += 1
    return at if depth == 0 and at > begin else -1


@kernel("int64(Array(uint8, 1, 'C', readonly=True), int64, int64[:, ::1])")
def children(data: Bytes, at: int, found: Ints) -> int:
    """Find the members or elements of the object or array at `at`; return how many there are, -1 if it is neither.

    Row 0 of `found` gets the whole's begin and end, each further row a child's: begin and end of the key (of an element
    the value's begin, twice), begin and end of the value. Children beyond the rows are counted alone.
    """
    end = len(data)
    at = _space(data, at, end)
    if at >= end or (byte(data, at) != _BRACE and byte(data, at) != _BRACKET):
        return -1
    named = byte(data, at) == _BRACE
    closing = byte(data, at) + _TO_CLOSING
    found[0, 0] = at
    at = _space(data, at + 1, end)
    if at < end and byte(data, at) == closing:
        found[0, 1] = at + 1
        return 0
    count = 0
    while at < end:
        count += 1
        key = at
        key_end = at
        if named:
            if byte(data, at) != _QUOTE:
                return -1
            key_end = _string(data, at, end)
            if key_end < 0:
                return -1
            at = _space(data, key_end, end)
            if at >= end or byte(data, at) != _COLON:
                return -1
            at = _space(data, at + 1, end)
        begin = at
        at = _value(data, at, end)
        if at < 0:
            return -1
        if count < len(found):
            found[count, 0] = key
            found[count, 1] = key_end
            found[count, 2] = begin
            found[count, 3] = at
        at = _space(data, at, end)
        if at >= end:
            return -1
        if byte(data, at) == closing:
            found[0, 1] = at + 1
            return count
        if byte(data, at) != _COMMA:
            return -1
        at = _space(data, at + 1, end)
    return -1
