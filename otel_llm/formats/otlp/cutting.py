"""Cut a large export request into several with the same contents, each a message by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.formats.otlp.length_delimited import RESOURCE_SPANS, SCOPE_SPANS, SPAN, length_delimited

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_REPEATED = 8
"""The repeated resource and scope take at most one in so many of a part's bytes."""


class _Odd(Exception):  # noqa: N818 - never leaves this module
    """Something that no encoder writes."""


def cut_export(raw: bytes, part_bytes: int) -> list[bytes]:
    """Return export requests of about `part_bytes` with the spans of `raw`, in their order.

    A span is never cut. A request that is not written as encoders write is returned whole, and so is one that would
    repeat much in each part.
    """
    if len(raw) <= part_bytes:
        return [raw]
    parts: list[bytes] = []
    pending: list[bytes] = []
    size = 0
    try:
        for unit in _units(raw, part_bytes):
            if size and size + len(unit) > part_bytes:
                parts.append(b"".join(pending))
                pending, size = [], 0
            pending.append(unit)
            size += len(unit)
    except (_Odd, IndexError):
        return [raw]
    parts.append(b"".join(pending))
    return parts


def _units(raw: bytes, part_bytes: int) -> Iterator[bytes]:
    """Yield fields of an export request, each a message by itself."""
    for tag, field, begin, end in _fields(raw, 0, len(raw)):
        if tag != RESOURCE_SPANS or end - field <= part_bytes:
            yield raw[field:end]
            continue
        around, scopes = _apart(raw, begin, end, SCOPE_SPANS)
        if len(around) * _MOST_REPEATED > part_bytes:
            raise _Odd
        if not scopes:
            yield raw[field:end]
        for scope_field, scope_begin, scope_end in scopes:
            if scope_end - scope_field <= part_bytes:
                yield length_delimited(RESOURCE_SPANS, around + raw[scope_field:scope_end])
                continue
            scope, spans = _apart(raw, scope_begin, scope_end, SPAN)
            if len(scope) * _MOST_REPEATED > part_bytes:
                raise _Odd
            for some in _some(raw, spans, part_bytes):
                yield length_delimited(RESOURCE_SPANS, around + length_delimited(SCOPE_SPANS, scope + some))


def _some(raw: bytes, spans: list[tuple[int, int, int]], part_bytes: int) -> Iterator[bytes]:
    """Yield the fields of spans, as many as fit a part at a time."""
    pending: list[bytes] = []
    size = 0
    for field, _, end in spans:
        if pending and size + end - field > part_bytes // 2:
            yield b"".join(pending)
            pending, size = [], 0
        pending.append(raw[field:end])
        size += end - field
    yield b"".join(pending)


def _apart(raw: bytes, begin: int, end: int, wanted: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Return the other fields of a message unchanged, and the begin, content and end of each wanted field."""
    others: list[bytes] = []
    found: list[tuple[int, int, int]] = []
    for tag, field, content, behind in _fields(raw, begin, end):
        if tag == wanted:
            found.append((field, content, behind))
        else:
            others.append(raw[field:behind])
    return b"".join(others), found


def _fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield tag, begin, begin of the content and end of each field of a message."""
    while at < end:
        field = at
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _LENGTH:
            size, begin = _varint(raw, at)
            at = begin + size
        elif kind == _VARINT:
            begin = at
            _, at = _varint(raw, at)
        elif kind in (_FIXED64, _FIXED32):
            begin = at
            at += 8 if kind == _FIXED64 else 4
        else:
            raise _Odd
        if at > end or tag < 8:
            raise _Odd
        yield tag, field, begin, at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    one = raw[at]
    if one < 128:
        return one, at + 1
    value, shift = one & 127, 7
    for size in range(1, 10):
        one = raw[at + size]
        value |= (one & 127) << shift
        if one < 128:
            return value, at + size + 1
        shift += 7
    raise _Odd
