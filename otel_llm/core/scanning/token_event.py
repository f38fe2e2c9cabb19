"""The parser of token events, and of otel-llm's attributes: one key, one value, no other field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.core.kernel import kernel
from otel_llm.core.limits import MAX_COUNT, MAX_EVENT_TOKENS, MAX_TIME_NS
from otel_llm.core.loads import byte, word
from otel_llm.core.scanning import tags
from otel_llm.core.scanning.protobuf import is_same, length, skip, tag, varint

if TYPE_CHECKING:
    from otel_llm.core.loads import Bytes

KIND_NAMES: Final = ("content", "reasoning", "tool")
"""Kinds of token, by their code."""


def constant(text: str) -> Bytes:
    """Return a text as bytes, (B,) uint8, for comparisons in kernels."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


_TOKEN_NAME: Final = constant(semconv.TOKEN_EVENT)
_COUNT_KEY: Final = constant(semconv.TOKEN_COUNT)
_KIND_KEY: Final = constant(semconv.TOKEN_KIND)
_CONTENT, _REASONING, _TOOL = (constant(name) for name in KIND_NAMES)
_SHORT_EVENT: Final = 16
"""The size of a token event with a time and its name only, in this order: the form of nearly all."""
_SHORT_EVENT_END: Final = int.from_bytes(b"\0\x12\x05token", "little")


@kernel()
def is_short_token(data: Bytes, at: int, end: int) -> bool:
    """Return whether an event has the short form of a token; its time is then at its second byte."""
    return (
        end - at == _SHORT_EVENT
        and byte(data, at) == tags.EVENT_TIME
        and word(data, at + 8) & ~0xFF == _SHORT_EVENT_END
    )


@kernel()
def pair(data: Bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Return begin and end of an attribute's key, and of its value; -1 unless it has one of each and no other field."""
    key = key_end = value = value_end = -1
    while at < end:
        found = byte(data, at)
        begin, behind = length(data, at + 1, end)
        if begin < 0:
            return -1, -1, -1, -1
        if found == tags.KEY and key < 0:
            key, key_end = begin, behind
        elif found == tags.VALUE and value < 0:
            value, value_end = begin, behind
        else:
            return -1, -1, -1, -1
        at = behind
    if key < 0 or value < 0:
        return -1, -1, -1, -1
    return key, key_end, value, value_end


@kernel()
def int_value(data: Bytes, at: int, end: int, most: int = MAX_COUNT) -> int:
    """Return the integer of a value; -1 for another type, a negative integer and one beyond `most`."""
    if end - at < 2 or byte(data, at) != tags.INT_VALUE:
        return -1
    value, behind = varint(data, at + 1, end)
    return value if behind == end and value <= most else -1


@kernel()
def _token_kind(data: Bytes, at: int, end: int) -> int:
    """Return the code of the kind that a value names; -1 for any other value."""
    if end - at < 2 or byte(data, at) != tags.TEXT_VALUE:
        return -1
    begin, behind = length(data, at + 1, end)
    if begin < 0 or behind != end:
        return -1
    if is_same(data, begin, end, _REASONING):
        return 1
    if is_same(data, begin, end, _TOOL):
        return 2
    return 0 if is_same(data, begin, end, _CONTENT) else -1


@kernel()
def read_token(data: Bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the time (unix ns), the number of tokens and their kind of a token event; -1: protobuf must read it."""
    time_ns, count, kind, named = 0, 1, 0, False
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return -1, 0, 0
        if found == tags.EVENT_TIME:
            if end - at < 8:
                return -1, 0, 0
            time_ns = word(data, at)
            at += 8
            continue
        if found != tags.EVENT_NAME and found != tags.EVENT_ATTRIBUTE:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return -1, 0, 0
            continue
        begin, at = length(data, at, end)
        if at < 0:
            return -1, 0, 0
        if found == tags.EVENT_NAME:
            named = is_same(data, begin, at, _TOKEN_NAME)
            if not named:
                return -1, 0, 0
            continue
        key, key_end, value, value_end = pair(data, begin, at)
        if key < 0:
            return -1, 0, 0
        if is_same(data, key, key_end, _COUNT_KEY):
            count = int_value(data, value, value_end, MAX_EVENT_TOKENS)
        elif is_same(data, key, key_end, _KIND_KEY):
            kind = _token_kind(data, value, value_end)
        else:
            return -1, 0, 0
        if count < 1 or kind < 0:
            return -1, 0, 0
    if not named or time_ns < 1 or time_ns > MAX_TIME_NS:
        return -1, 0, 0
    return time_ns, count, kind
