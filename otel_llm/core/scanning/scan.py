"""The scan of an OTLP trace export request: one pass over its fields, in any order, into columns.

Segments are read completely, with the times of their tokens. For otel-llm's request spans, the fixed fields are read
and the positions of attributes recorded. Any other span, and one with fields that are not read here, is a row with its
position: protobuf reads it, or only checks it if no reader uses such a span. The scan gives the values that protobuf
would. Where the fields around spans are inconsistent the answer is UNREADABLE, and protobuf finds the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.core.kernel import kernel
from otel_llm.core.scanning import tags
from otel_llm.core.scanning.foreign_span import is_foreign
from otel_llm.core.scanning.protobuf import is_text, length, skip, tag
from otel_llm.core.scanning.span_columns import (
    BEGIN,
    CLASS,
    FOREIGN,
    MORE_ROOM,
    OTHER,
    PIECES,
    PLAIN,
    PLAIN_SPANS,
    READ,
    RESOURCE,
    RESOURCE_PIECE,
    RESOURCES,
    SCOPE_PIECE,
    SPANS,
    STOP,
    UNREADABLE,
)
from otel_llm.core.scanning.span_fields import read_span

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from otel_llm.core.loads import Bytes

    Ints = npt.NDArray[np.int64]


@kernel()
def _note_piece(pieces: Ints, filled: Ints, what: int, begin: int, end: int) -> bool:
    """Record a piece of the present ResourceSpans; return False if the array is full."""
    if filled[PIECES] == len(pieces):
        return False
    piece = pieces[filled[PIECES]]
    piece[0], piece[1], piece[2], piece[3] = what, filled[RESOURCES], begin, end
    filled[PIECES] += 1
    return True


@kernel()
def _scope_spans(
    data: Bytes,
    at: int,
    end: int,
    spans: Ints,
    times: Ints,
    counts: Ints,
    kinds: Bytes,
    attributes: Ints,
    pieces: Ints,
    filled: Ints,
) -> int:
    """Read a ScopeSpans; return READ, MORE_ROOM or UNREADABLE."""
    resource = filled[RESOURCES]
    seen = False
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return UNREADABLE
        if found != tags.SPAN and found != tags.SCOPE and found != tags.SCHEMA_URL:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return UNREADABLE
            continue
        begin, at = length(data, at, end)
        if at < 0:
            return UNREADABLE
        if found == tags.SPAN:
            number = filled[SPANS]
            if number == len(spans):
                return MORE_ROOM
            row = spans[number]
            what = read_span(data, begin, at, row, times, counts, kinds, attributes, filled)
            if what < 0:
                return MORE_ROOM
            if what == OTHER and is_foreign(data, begin, at):
                what = FOREIGN
            row[CLASS], row[BEGIN], row[STOP], row[RESOURCE] = what, begin, at, resource
            filled[SPANS] = number + 1
            if what == PLAIN:
                filled[PLAIN_SPANS] += 1
        elif found == tags.SCOPE:
            if seen:
                return UNREADABLE
            seen = True
            if not _note_piece(pieces, filled, SCOPE_PIECE, begin, at):
                return MORE_ROOM
        elif not is_text(data, begin, at):
            return UNREADABLE
    return READ


@kernel(
    "int64(Array(uint8, 1, 'C', readonly=True), int64[:, ::1], int64[::1], int64[::1], uint8[::1], int64[:, ::1],"
    " int64[:, ::1], int64[::1])"
)
def scan(
    data: Bytes,
    spans: Ints,
    times: Ints,
    counts: Ints,
    kinds: Bytes,
    attributes: Ints,
    pieces: Ints,
    filled: Ints,
) -> int:
    """Read an export request into arrays; return READ, MORE_ROOM or UNREADABLE.

    Args:
        data: (B,), its bytes.
        spans: (S, SPAN_COLUMNS), written.
        times: (N,), written: the times of all token events, unix ns.
        counts: (N,), written: how many tokens each stands for.
        kinds: (N,), written: their kinds.
        attributes: (A, 2), written: the begin and end of each attribute's field.
        pieces: (P, PIECE_COLUMNS), written.
        filled: (COUNTS,), all 0 before, written: the lengths of the written parts.
    """
    end = len(data)
    at = 0
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return UNREADABLE
        if found != tags.RESOURCE_SPANS:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return UNREADABLE
            continue
        inner, at = length(data, at, end)
        if at < 0:
            return UNREADABLE
        seen = False
        while inner < at:
            found, inner = tag(data, inner, at)
            if inner < 0:
                return UNREADABLE
            if found != tags.RESOURCE and found != tags.SCOPE_SPANS and found != tags.SCHEMA_URL:
                inner = skip(data, inner, at, found & 7)
                if inner < 0:
                    return UNREADABLE
                continue
            begin, inner = length(data, inner, at)
            if inner < 0:
                return UNREADABLE
            if found == tags.SCOPE_SPANS:
                answer = _scope_spans(data, begin, inner, spans, times, counts, kinds, attributes, pieces, filled)
                if answer != READ:
                    return answer
            elif found == tags.RESOURCE:
                if seen:
                    return UNREADABLE
                seen = True
                if not _note_piece(pieces, filled, RESOURCE_PIECE, begin, inner):
                    return MORE_ROOM
            elif not is_text(data, begin, inner):
                return UNREADABLE
        filled[RESOURCES] += 1
    return READ
