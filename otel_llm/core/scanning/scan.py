"""The scan of an OTLP trace export request: one pass over its fields, in any order, into columns.

Segments are read completely, with the times of their tokens. For otel-llm's request spans, the fixed fields are read
and the positions of attributes recorded. Any other span, and one with fields that are not read here, is a row with its
position: protobuf reads it, or only checks it if nothing uses such a span. The scan gives the values that protobuf
would. If the fields around spans are inconsistent the answer is UNREADABLE, and protobuf finds the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm import semconv
from otel_llm.core.kernel import kernel
from otel_llm.core.limits import MAX_TIME_NS, MAX_TOKENS
from otel_llm.core.loads import byte, word
from otel_llm.core.scanning import tags
from otel_llm.core.scanning.protobuf import LENGTH, is_same, is_text, length, skip, tag, varint
from otel_llm.core.scanning.span_columns import (
    ALL_ATTRIBUTES,
    ALL_EVENTS,
    ATTRIBUTES,
    BEGIN,
    CHOICE,
    CLASS,
    END_NS,
    ERROR,
    EVENTS,
    FIRST_TOKEN,
    FOREIGN,
    KIND,
    LAST_BYTE_NS,
    LATE,
    MORE_ROOM,
    MORE_TOKENS,
    NAME_AT,
    NAME_END,
    OTHER,
    PARENT_AT,
    PIECES,
    PLAIN,
    PLAIN_SPANS,
    READ,
    REQUEST,
    RESOURCE,
    RESOURCE_PIECE,
    RESOURCES,
    SCOPE_PIECE,
    SEGMENT,
    SEQ,
    SPANS,
    START_NS,
    STOP,
    TOKENS,
    TRACE,
    UNREADABLE,
)
from otel_llm.core.scanning.token_event import constant, int_value, is_short_token, pair, read_token

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.core.loads import Bytes

    Ints = npt.NDArray[np.int64]

_SEGMENT_NAME: Final = constant(semconv.SEGMENT_SPAN)
_SEQ_KEY: Final = constant(semconv.SEGMENT_SEQ)
_FIRST_TOKEN_KEY: Final = constant(semconv.SEGMENT_FIRST_TOKEN)
_CHOICE_KEY: Final = constant(semconv.CHOICE)
_LAST_BYTE_KEY: Final = constant(semconv.SEGMENT_LAST_BYTE)
_SEGMENTS_KEY: Final = constant(semconv.SEGMENTS)
STATUS_ERROR: Final = 2
_INT32: Final = 0xFFFFFFFF
_PREFIX: Final = 4
MODEL_NAMES: Final = (
    semconv.GEN_AI_OPERATION_NAME,
    semconv.OPENINFERENCE_SPAN_KIND,
    semconv.LANGFUSE_COMPLETION_START,
    semconv.SEGMENTS,
    semconv.OLD_CHUNK_EVENT,
    *semconv.FIRST_CHUNK_UNITS,
)
"""A span of a model's reply has an attribute or event whose name begins with the first letters of one of these."""
_BEGINNINGS: Final = np.array(
    sorted({int.from_bytes(name[:_PREFIX].encode(), "big") for name in MODEL_NAMES}), np.int64
)


@kernel()
def _status(data: Bytes, at: int, end: int, code: int) -> int:
    """Return the code of a status, `code` if it has none; -1: protobuf must read it."""
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return -1
        if found == tags.STATUS_CODE:
            code, at = varint(data, at, end)
            if code < 0:
                return -1
            code &= _INT32  # protobuf reads 32 bits of an enum
        elif found == tags.STATUS_MESSAGE:
            begin, at = length(data, at, end)
            if at >= 0 and not is_text(data, begin, at):
                return -1
        else:
            at = skip(data, at, end, found & 7)
        if at < 0:
            return -1
    return code


@kernel()
def read_span(
    data: Bytes, at: int, end: int, row: Ints, times: Ints, counts: Ints, kinds: Bytes, attributes: Ints, filled: Ints
) -> int:
    """Read a span's fields into its row; return its class, -1 if an array is full."""
    trace = span_id = parent = name = name_end = -1
    start_ns = end_ns = latest_ns = 0
    span_kind = code = 0
    seq = first_token = -1
    choice = last_byte_ns = 0
    events = counted = placed = False
    event, attribute = filled[ALL_EVENTS], filled[ALL_ATTRIBUTES]
    first, others = event, attribute
    tokens = 0
    kind, mixed = 0, False
    while at < end:
        field = at
        found, at = tag(data, at, end)
        if at < 0:
            return OTHER
        if found == tags.EVENT:
            begin, at = length(data, at, end)
            if at < 0:
                return OTHER
            if is_short_token(data, begin, at):
                time_ns, number, code_of_kind = word(data, begin + 1), 1, 0
                if time_ns < 1 or time_ns > MAX_TIME_NS:
                    return OTHER
            else:
                time_ns, number, code_of_kind = read_token(data, begin, at)
                if time_ns < 0:
                    return OTHER
            tokens += number
            if tokens > MAX_TOKENS:
                return OTHER
            if event == len(times):
                filled[ALL_EVENTS] = event
                return -1
            if event == first:
                kind = code_of_kind
            mixed |= kind != code_of_kind
            times[event], counts[event], kinds[event] = time_ns, number, code_of_kind
            event += 1
            latest_ns = max(latest_ns, time_ns)
            events = True
        elif found == tags.ATTRIBUTE:
            begin, at = length(data, at, end)
            if at < 0:
                return OTHER
            key, key_end, value, value_end = pair(data, begin, at)
            if key < 0:
                return OTHER
            placing = True
            number = int_value(data, value, value_end)
            if is_same(data, key, key_end, _SEQ_KEY):
                seq = number
            elif is_same(data, key, key_end, _FIRST_TOKEN_KEY):
                first_token = number
            elif is_same(data, key, key_end, _CHOICE_KEY):
                choice = number
            elif is_same(data, key, key_end, _LAST_BYTE_KEY):
                last_byte_ns = number = int_value(data, value, value_end, MAX_TIME_NS)
            else:
                placing = False
                counted |= is_same(data, key, key_end, _SEGMENTS_KEY)
                if attribute == len(attributes):
                    filled[ALL_ATTRIBUTES] = attribute
                    return -1
                attributes[attribute, 0], attributes[attribute, 1] = field, at
                attribute += 1
            if placing and number < 0:
                return OTHER
            placed |= placing
        elif found == tags.START or found == tags.END:
            if end - at < 8:
                return OTHER
            if found == tags.START:
                start_ns = word(data, at)
            else:
                end_ns = word(data, at)
            at += 8
        elif found & 7 == LENGTH:
            begin, at = length(data, at, end)
            if at < 0:
                return OTHER
            size = at - begin
            if found == tags.TRACE_ID:
                trace = begin if size == 16 else -1
            elif found == tags.SPAN_ID:
                span_id = begin if size == 8 else -1
            elif found == tags.PARENT_ID:
                parent = begin
                if size != 8:
                    return OTHER
            elif found == tags.NAME:
                name, name_end = begin, at
                if not is_text(data, begin, at):
                    return OTHER
            elif found == tags.TRACE_STATE:
                if not is_text(data, begin, at):
                    return OTHER
            elif found == tags.STATUS:
                code = _status(data, begin, at, code)
                if code < 0:
                    return OTHER
            elif found == tags.LINK:
                return OTHER
        elif found == tags.SPAN_KIND:
            span_kind, at = varint(data, at, end)
            if span_kind < 0 or span_kind > 127:
                return OTHER
        elif found == tags.DROPPED_EVENTS:
            dropped, at = varint(data, at, end)
            if at < 0:
                return OTHER
            events |= dropped != 0
        else:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return OTHER

    if trace < 0 or start_ns < 1 or end_ns < start_ns or end_ns > MAX_TIME_NS or name < 0:
        return OTHER
    if word(data, trace) == 0 and word(data, trace + 8) == 0:
        return OTHER
    if is_same(data, name, name_end, _SEGMENT_NAME):
        owner = parent
        if owner < 0 or seq < 0 or first_token < 0:
            return OTHER
        late = event > first and latest_ns > end_ns
        plain = seq > 0 and choice == 0 and others == attribute and not mixed and not late
        found = PLAIN if plain else SEGMENT
        row[SEQ], row[FIRST_TOKEN], row[CHOICE] = seq, first_token, choice
        row[KIND], row[LATE], row[LAST_BYTE_NS] = kind, late, min(last_byte_ns, end_ns)
    else:
        owner = span_id
        if owner < 0 or events or placed or not counted:
            return OTHER
        found = REQUEST
        row[PARENT_AT], row[KIND], row[ERROR] = parent, span_kind, code == STATUS_ERROR
        row[NAME_AT], row[NAME_END] = name, name_end
    if word(data, owner) == 0:
        return OTHER
    row[TRACE], row[TRACE + 1], row[TRACE + 2] = word(data, trace), word(data, trace + 8), word(data, owner)
    row[START_NS], row[END_NS] = start_ns, end_ns
    row[EVENTS], row[EVENTS + 1], row[TOKENS] = first, event, tokens
    row[ATTRIBUTES], row[ATTRIBUTES + 1] = others, attribute
    filled[ALL_EVENTS], filled[ALL_ATTRIBUTES] = event, attribute
    filled[MORE_TOKENS] += tokens - (event - first)
    return found


@kernel()
def _has_model_name(data: Bytes, at: int, end: int, name: int) -> bool:
    """Return whether the name of an attribute or event, with the tag `name`, marks a model's reply; True in doubt."""
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return True
        if found != name:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return True
            continue
        begin, at = length(data, at, end)
        if at < 0:
            return True
        if at - begin < _PREFIX:
            continue
        beginning = 0
        for index in range(begin, begin + _PREFIX):
            beginning = beginning << 8 | byte(data, index)
        for one in _BEGINNINGS:
            if one == beginning:
                return True
    return False


@kernel()
def is_foreign(data: Bytes, at: int, end: int) -> bool:
    """Return whether a span is neither a segment nor of a model's reply, by its names; False in doubt."""
    while at < end:
        found, at = tag(data, at, end)
        if at < 0:
            return False
        if found & 7 != LENGTH:
            at = skip(data, at, end, found & 7)
            if at < 0:
                return False
            continue
        begin, at = length(data, at, end)
        if at < 0:
            return False
        if found == tags.NAME and is_same(data, begin, at, _SEGMENT_NAME):
            return False
        if found == tags.ATTRIBUTE and _has_model_name(data, begin, at, tags.KEY):
            return False
        if found == tags.EVENT and _has_model_name(data, begin, at, tags.EVENT_NAME):
            return False
    return True


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
