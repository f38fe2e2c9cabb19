"""Read the token events of one span: the hot loop of every evaluation.

The cost is making a Python object of each event (0.4 us with reading its name and attributes, 1.6 us with an
attribute, where the parse itself takes 0.03 us). But the events of a segment nearly always have one of three shapes,
each a fixed run of bytes around the time: name-only, and the same with a kind. So the span is serialised again and runs
of these shapes are matched there, at 0.1 us a token. Any other event makes the span fall back to the objects.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv
from otel_llm.core.limits import MAX_EVENT_TOKENS, MAX_TOKENS
from otel_llm.formats.spans.span_checks import time_fault
from otel_llm.slo.classes import CONTENT, KINDS
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection

_KIND_CODES: Final = {name: code for code, name in enumerate(KINDS)}
_EVENTS_TAG: Final = 0x5A  # field 11 of Span, with a length
_FEW: Final = 3
"""Up to so many events, reading them one by one is faster."""
_RUN: Final = 128


class TokenEventError(ValueError):
    """A span's tokens cannot be placed; the text is one reason word."""


def read_tokens(span: Span, names: Collection[str], anomalies: Counter[str], budget: int = MAX_TOKENS) -> TokenEvents:
    """Return the span's token events, those named in `names`.

    Other events are left out and counted in `anomalies`, as are kinds of token that we do not know (they are read as
    content).

    Raises:
        TokenEventError: a time is missing or beyond MAX_TIME_NS, a count is no positive integer, or there are more
            tokens than `budget`, or than MAX_EVENT_TOKENS in one event.
    """
    count = len(span.events)
    if count > budget:
        raise TokenEventError("too_many_tokens")
    if count > _FEW and semconv.TOKEN_EVENT in names:
        found = read_alike(span.SerializePartialToString(), count)
        if found is not None:
            return found
    return read_one_by_one(span, names, anomalies, budget)


def read_one_by_one(span: Span, names: Collection[str], anomalies: Counter[str], budget: int) -> TokenEvents:
    """Return what `read_tokens` does, of any events."""
    times: list[int] = []
    counts: list[int] = []
    kinds = bytearray()
    for event in span.events:
        if event.name not in names:
            anomalies["event_ignored"] += 1
            continue
        tokens, kind = 1, CONTENT
        for attribute in event.attributes:
            if attribute.key == semconv.TOKEN_COUNT:
                value = attribute.value
                if value.WhichOneof("value") != "int_value" or value.int_value < 1:
                    raise TokenEventError("bad_token_count")
                tokens = value.int_value
            elif attribute.key == semconv.TOKEN_KIND:
                code = _KIND_CODES.get(attribute.value.string_value)
                if code is None:
                    anomalies["token_kind_unknown"] += 1
                else:
                    kind = code
        time_ns = event.time_unix_nano
        fault = time_fault(time_ns, time_ns)
        if fault is not None:
            raise TokenEventError(fault)
        budget -= tokens
        if budget < 0 or tokens > MAX_EVENT_TOKENS:
            raise TokenEventError("too_many_tokens")
        times.append(time_ns)
        kinds.append(kind)
        counts.append(tokens)
    one_each = sum(counts) == len(counts)
    return TokenEvents(times, bytes(kinds) if any(kinds) else None, None if one_each else counts)


class _Shape(NamedTuple):
    """Token events of one kind, as serialised in a span: each `size` bytes, the same but for the time."""

    kind: int
    size: int
    run: re.Pattern[bytes]
    tail: int


def _shape(kind: int) -> _Shape:
    event = Span.Event(name=semconv.TOKEN_EVENT, time_unix_nano=1)
    if kind != CONTENT:
        event.attributes.append(KeyValue(key=semconv.TOKEN_KIND, value=AnyValue(string_value=KINDS[kind])))
    body = event.SerializeToString()
    head, tail = bytes((_EVENTS_TAG, len(body), body[0])), body[9:]
    # A top byte of 1..63: neither missing nor too far off (nor before 1972, which can take the slow way). No possessive
    # repetition: before Python 3.11.5 it may end in the middle of an item that matches in part.
    run = re.compile(b"(?:%b.{7}[\\x01-\\x3f]%b){1,%d}" % (re.escape(head), re.escape(tail), _RUN), re.DOTALL)
    return _Shape(kind, 1 + 1 + len(body), run, len(tail))


_SHAPES: Final = tuple(_shape(kind) for kind in range(len(KINDS)))


def read_alike(blob: bytes, count: int) -> TokenEvents | None:
    """Return the result of `read_tokens` for the `count` events of a serialised span; None if one has another shape."""
    position = _first_event(blob)
    times: list[int] = []
    kinds = bytearray()
    while len(times) < count:
        for shape in _SHAPES:
            match = shape.run.match(blob, position)
            if match is not None:
                break
        else:
            return None
        tokens = (match.end() - position) // shape.size
        kinds += bytes((shape.kind,)) * tokens
        times += _times(tokens, shape.tail).unpack_from(blob, position)
        position = match.end()
    return TokenEvents(times, bytes(kinds) if any(kinds) else None)


@lru_cache(maxsize=3 * _RUN)
def _times(count: int, tail: int) -> Struct:
    return Struct("<" + f"3xQ{tail}x" * count)


def _first_event(blob: bytes) -> int:
    """Return the begin of the first event of a serialised span, or the end of the walk over the fields before it.

    The span has events and was written by protobuf itself, fields in order of their numbers, so that events come
    before any tag of two bytes; nothing else is assumed, since the bytes there are then matched as a whole.
    """
    position, end = 0, len(blob)
    while position < end:
        tag = blob[position]
        wire_type = tag & 7
        if wire_type == 2:  # length, and so many bytes
            if tag == _EVENTS_TAG:
                break
            position += 1
            length, shift = 0, 0
            while (byte := blob[position]) > 127:  # the varint goes on
                length |= (byte & 127) << shift
                shift += 7
                position += 1
            position += 1 + (length | byte << shift)
        elif wire_type == 1:
            position += 9
        elif wire_type == 0:
            position += 1
            while blob[position] > 127:  # the varint goes on
                position += 1
            position += 1
        else:
            break
    return position
