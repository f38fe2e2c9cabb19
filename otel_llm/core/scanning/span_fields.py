"""The reader of one span's fields, in any order, into its row of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.core.kernel import kernel
from otel_llm.core.limits import MAX_TIME_NS, MAX_TOKENS
from otel_llm.core.loads import word
from otel_llm.core.scanning import tags
from otel_llm.core.scanning.protobuf import LENGTH, is_same, is_text, length, skip, tag, varint
from otel_llm.core.scanning.span_columns import (
    ALL_ATTRIBUTES,
    ALL_EVENTS,
    ATTRIBUTES,
    CHOICE,
    END_NS,
    ERROR,
    EVENTS,
    FIRST_TOKEN,
    KIND,
    LAST_BYTE_NS,
    LATE,
    MORE_TOKENS,
    NAME_AT,
    NAME_END,
    OTHER,
    PARENT_AT,
    PLAIN,
    REQUEST,
    SEGMENT,
    SEQ,
    START_NS,
    TOKENS,
    TRACE,
)
from otel_llm.core.scanning.token_event import constant, int_value, is_short_token, pair, read_token

if TYPE_CHECKING:
    import numpy as np
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


@kernel()
def _status(data: Bytes, at: int, end: int, code: int) -> int:
    """Return the code of a status, `code` where it has none; -1: protobuf must read it."""
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
