"""The price of the small parts of an OTLP trace export request, protobuf or JSON, before any object is created.

A part is a message for which protobuf creates an object, at any depth: a resource, scope or span, an event, link or
attribute, a value in a list. An empty part takes two bytes of the message, 60 to 800 bytes of memory and up to 4 us of
CPU time. The costs of small parts are added up, and compared with an allowance for each byte of the message. Parts of
usual size are not counted: the bytes of the message bound their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.core.kernel import kernel
from otel_llm.core.loads import byte
from otel_llm.core.scanning import tags
from otel_llm.core.scanning.protobuf import LENGTH, VARINT, length, skip, tag
from otel_llm.core.scanning.token_event import is_short_token

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.core.loads import Bytes

    Ints = npt.NDArray[np.int64]

_GROUP: Final = 3
_GROUP_END: Final = 4

# The contents of a field with a length.
_NOTHING: Final = 0
"""Not counted, and without parts that are."""
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
_KINDS: Final = 16
_TAGS: Final = 128
"""Fields with greater tags contain no parts."""

CHILDREN: Final[dict[int, dict[int, int]]] = {
    _EXPORT: {tags.RESOURCE_SPANS: _RESOURCE_SPANS},
    _RESOURCE_SPANS: {tags.RESOURCE: _RESOURCE, tags.SCOPE_SPANS: _SCOPE_SPANS},
    _RESOURCE: {tags.RESOURCE_ATTRIBUTE: _ATTRIBUTE, tags.ENTITY: _ENTITY},
    _ENTITY: {tags.ENTITY_ID_KEY: _TEXT, tags.ENTITY_DESCRIPTION_KEY: _TEXT},
    _SCOPE_SPANS: {tags.SCOPE: _SCOPE, tags.SPAN: _SPAN},
    _SCOPE: {tags.SCOPE_ATTRIBUTE: _ATTRIBUTE},
    _SPAN: {tags.ATTRIBUTE: _ATTRIBUTE, tags.EVENT: _EVENT, tags.LINK: _LINK},
    _EVENT: {tags.EVENT_ATTRIBUTE: _ATTRIBUTE},
    _LINK: {tags.LINK_ATTRIBUTE: _ATTRIBUTE},
    _ATTRIBUTE: {tags.VALUE: _VALUE},
    _VALUE: {tags.LIST_VALUE: _LIST, tags.MAP_VALUE: _MAP},
    _ITEM: {tags.LIST_VALUE: _LIST, tags.MAP_VALUE: _MAP},
    _LIST: {tags.ITEM: _ITEM},
    _MAP: {tags.PAIR: _ATTRIBUTE},
}
"""The contents of the fields of each message, by tag."""
EXPORT: Final = _EXPORT
_SMALL_GROUP: Final = 48
"""Bytes: the size of a span with both ids, a name of one letter and two times."""
_SMALL: Final = 16
"""Bytes: the size of a token's event; an attribute has about 30."""
_SMALL_ITEM: Final = 8
"""Bytes: a number with a fraction has 9."""
SMALL: Final = np.zeros(_KINDS, np.int64)
"""By contents: a part with fewer bytes is small."""
SMALL[[_RESOURCE_SPANS, _SCOPE_SPANS, _SPAN]] = _SMALL_GROUP
SMALL[[_TEXT, _ENTITY, _EVENT, _LINK, _ATTRIBUTE]] = _SMALL
SMALL[_ITEM] = _SMALL_ITEM
COST: Final = np.full(_KINDS, 280, np.int64)
"""By contents: the ns to read a small part, measured with compiled kernels; more for parts that are fast to read but
large in memory. An empty part costs twice as much."""
COST[[_RESOURCE_SPANS, _SCOPE_SPANS]] = 1_000
COST[_SPAN] = 4_500
COST[[_TEXT, _ITEM]] = 100
FREE_NS: Final = 1_000_000
"""The allowance of a message whatever its size."""
NS_PER_BYTE: Final = 64
"""The allowance for each byte: twice the densest message of an SDK, attributes with keys of one letter."""
MOST_DEPTH: Final = 128
"""The deepest nesting of messages; protobuf refuses more than 100."""

_HELD: Final = np.zeros((_KINDS, _TAGS), np.int64)
for _kind, _fields in CHILDREN.items():
    for _tag, _child in _fields.items():
        _HELD[_kind, _tag] = _child


@kernel()
def _skip_any(data: Bytes, at: int, end: int, wire_type: int) -> int:
    """Return the index after a field's content, also of groups and overlong varints, which protobuf skips; -1: none."""
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
    """Return a field's tag, the index of its content (if it has a length), and that of the next field; -1: none."""
    found, at = tag(data, at, end)
    if at < 0:
        return -1, -1, -1
    if found & 7 == LENGTH:
        begin, at = length(data, at, end)
        return found, begin, at
    return found, at, _skip_any(data, at, end, found & 7)


@kernel("int64(Array(uint8, 1, 'C', readonly=True), int64[::1], int64[::1], int64[:, ::1], int64)")
def count_parts(data: Bytes, small: Ints, cost: Ints, around: Ints, most: int) -> int:
    """Return the cost of the small parts that protobuf would read, up to the first beyond `most`.

    `data`: (B,) bytes. `small`: SMALL. `cost`: COST, in ns. `around`: (MOST_DEPTH, 2), working memory for the enclosing
    messages. It counts up to the first malformed field, where protobuf stops, too.
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
        if found >= _TAGS:
            continue
        child = _HELD[kind, found]
        if child == _NOTHING:
            continue
        if at - begin < small[child]:
            parts += cost[child] if begin < at else 2 * cost[child]
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
"""Bytes from bracket to bracket: the value of an attribute, `{"intValue":1}`, has more."""
_JSON_BYTES_SMALL: Final = 24
_JSON_BYTES_BRACKET: Final = 7
_JSON_BYTES_COMMA: Final = 7
"""Bytes of JSON for one of each: half of those in the densest useful text, a list of numbers with one digit, or events
with an empty list of attributes."""
JSON_FREE: Final = 4_096
"""The allowance of each, whatever the size."""


@kernel("boolean(Array(uint8, 1, 'C', readonly=True), int64)")
def has_more_json_parts(data: Bytes, most: int) -> bool:
    """Return whether a JSON text has too many small parts: `most` more than its bytes allow.

    Three kinds are counted, outside of strings: objects and arrays of a few bytes without others in them, all objects
    and arrays, and commas. `data`: (B,) bytes.
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
