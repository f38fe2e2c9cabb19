"""Count the small parts of an OTLP trace export request, protobuf or JSON, before an object of each is made.

A part is what protobuf makes an object of, at any depth: a resource, scope or span, an event, link or attribute, a
value in a list. An empty one takes two bytes of the message and 60 to 800 bytes of memory. A part of a usual size is
not counted: how many of those there can be, the bytes of the message bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.core.kernel import kernel
from otel_llm.core.loads import byte
from otel_llm.core.protobuf import LENGTH, VARINT, length, skip, tag
from otel_llm.core.token_event import is_short_token

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.core.loads import Bytes

    Ints = npt.NDArray[np.int64]

_GROUP: Final = 3
_GROUP_END: Final = 4

# What a field with a length holds.
_NOTHING: Final = 0
"""Nothing that is counted, nor has anything in it that is."""
_TEXT: Final = 1
_EXPORT: Final = 2
_RESOURCE_SPANS: Final = 3
_RESOURCE: Final = 4
_ENTITY: Final = 5
_SCOPE_SPANS: Final = 6
_SCOPE: Final = 7
_SPAN: Final = 8
_EVENT: Final = 9
_LINK: Final = 10
_ATTRIBUTE: Final = 11
_VALUE: Final = 12
_LIST: Final = 13
_MAP: Final = 14
_ITEM: Final = 15
_FIELDS: Final = 16
"""Fields of greater numbers hold nothing."""

CHILDREN: Final[dict[int, dict[int, int]]] = {
    _EXPORT: {1: _RESOURCE_SPANS},
    _RESOURCE_SPANS: {1: _RESOURCE, 2: _SCOPE_SPANS},
    _RESOURCE: {1: _ATTRIBUTE, 3: _ENTITY},
    _ENTITY: {3: _TEXT, 4: _TEXT},
    _SCOPE_SPANS: {1: _SCOPE, 2: _SPAN},
    _SCOPE: {3: _ATTRIBUTE},
    _SPAN: {9: _ATTRIBUTE, 11: _EVENT, 13: _LINK},
    _EVENT: {3: _ATTRIBUTE},
    _LINK: {4: _ATTRIBUTE},
    _ATTRIBUTE: {2: _VALUE},
    _VALUE: {5: _LIST, 6: _MAP},
    _ITEM: {5: _LIST, 6: _MAP},
    _LIST: {1: _ITEM},
    _MAP: {1: _ATTRIBUTE},
}
"""What each message holds, by number of the field."""
EXPORT: Final = _EXPORT
_SMALL_GROUP: Final = 64
"""Bytes: a span with both ids, a name and two times takes as many."""
_SMALL: Final = 16
"""Bytes: a token's event takes as many, an attribute about 30."""
_SMALL_ITEM: Final = 8
"""Bytes: a number with a fraction takes 9."""
SMALL: Final = np.zeros(_FIELDS, np.int64)
"""By what a field holds: it counts as a part with fewer bytes than that."""
SMALL[[_RESOURCE_SPANS, _SCOPE_SPANS, _SPAN]] = _SMALL_GROUP
SMALL[[_TEXT, _ENTITY, _EVENT, _LINK, _ATTRIBUTE]] = _SMALL
SMALL[_ITEM] = _SMALL_ITEM
MOST_DEPTH: Final = 128
"""Messages in messages; protobuf refuses more than 100."""

_HELD: Final = np.zeros((_FIELDS, _FIELDS), np.int64)
for _kind, _fields in CHILDREN.items():
    for _number, _child in _fields.items():
        _HELD[_kind, _number] = _child


@kernel()
def _behind(data: Bytes, at: int, end: int, wire_type: int) -> int:
    """Return the place behind a field's content, of all that protobuf skips: groups, too, and any varint."""
    depth = 0
    while True:
        if wire_type == _GROUP:
            depth += 1
        elif wire_type == _GROUP_END:
            depth -= 1
        elif wire_type == VARINT:
            last = min(end, at + 10) - 1
            while at < last and byte(data, at) > 127:
                at += 1
            if at > last or byte(data, at) > 127:
                return -1
            at += 1
        else:
            at = skip(data, at, end, wire_type)
        if at < 0 or depth <= 0:
            return at
        found, at = tag(data, at, end)
        if at < 0:
            return -1
        wire_type = found & 7


@kernel()
def _field(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return a field's tag, where its content begins (if it has a length), and where the next field does; -1: none."""
    found, at = tag(data, at, end)
    if at < 0:
        return -1, -1, -1
    if found & 7 == LENGTH:
        begin, at = length(data, at, end)
        return found, begin, at
    return found, at, _behind(data, at, end, found & 7)


@kernel("int64(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[:, ::1], int64)")
def count_parts(data: Bytes, small: Ints, around: Ints, most: int) -> int:
    """Return how many small parts protobuf would read, up to `most` + 1.

    `data`: (B,) bytes; `small`: SMALL; `around`: (MOST_DEPTH, 2), where what is around the present message is kept.
    It counts up to where the message is malformed: protobuf makes nothing behind that.
    """
    parts = at = depth = 0
    end, kind = len(data), _EXPORT
    while parts <= most:
        if at == end:
            if depth == 0:
                return parts
            depth -= 1
            end, kind = around[depth, 0], around[depth, 1]
            continue
        found, begin, at = _field(data, at, end)
        if at < 0:
            return parts
        if found & 7 != LENGTH or found >> 3 >= _FIELDS:
            continue
        child = _HELD[kind, found >> 3]
        if child == _NOTHING:
            continue
        if at - begin < small[child]:
            parts += 1
        if child == _TEXT or begin == at or (child == _EVENT and is_short_token(data, begin, at)):
            continue
        if depth == len(around):
            return parts
        around[depth, 0], around[depth, 1] = end, kind
        depth += 1
        at, end, kind = begin, at, child
    return parts


_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_COMMA: Final = ord(",")
_OPENING: Final = (ord("{"), ord("["))
_CLOSING: Final = (ord("}"), ord("]"))
_SMALL_JSON: Final = 12
"""Bytes from bracket to bracket: the value of an attribute, `{"intValue":1}`, takes more."""
_JSON_BYTES_SMALL: Final = 64
_JSON_BYTES_BRACKET: Final = 16
_JSON_BYTES_COMMA: Final = 8
"""Bytes of JSON for one of each: one that says anything takes more."""


@kernel("boolean(Array(uint8, 1, 'C', readonly=True), int64)")
def has_more_json_parts(data: Bytes, most: int) -> bool:
    """Tell whether a JSON text is made of small pieces: it has `most` more than its bytes would justify.

    Counted are objects and arrays of a few bytes without others in them, objects and arrays, and commas: each kind by
    itself, outside of strings. `data`: (B,) bytes.
    """
    size = len(data)
    most_small = most + size // _JSON_BYTES_SMALL
    most_brackets = most + size // _JSON_BYTES_BRACKET
    most_commas = most + size // _JSON_BYTES_COMMA
    small = brackets = commas = at = 0
    opened = -1
    while at < size:
        one = byte(data, at)
        if one == _QUOTE:
            at += 1
            while at < size and byte(data, at) != _QUOTE:
                at += 2 if byte(data, at) == _BACKSLASH else 1
        elif one == _COMMA:
            commas += 1
        elif one == _OPENING[0] or one == _OPENING[1]:
            opened = at
            brackets += 1
        elif one == _CLOSING[0] or one == _CLOSING[1]:
            small += opened >= 0 and at - opened <= _SMALL_JSON
            opened = -1
        if small > most_small or brackets > most_brackets or commas > most_commas:
            return True
        at += 1
    return False
