"""Read the token events of one span: the hot loop of every evaluation.

Making a Python object of each event is what costs (some 0.4 us with the look at its name and attributes, where the
parse itself takes 0.03 us). A segment's events are nearly always name-only, and such an event is 18 bytes that differ
in the time alone; so the span is put back into bytes and its events are matched there, at 0.1 us each.
Anything else on the span (an attribute, another name) falls back to the objects.
"""

from __future__ import annotations

import re
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.slo.classes import CONTENT, KINDS

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

_KIND_CODES: Final = {name: code for code, name in enumerate(KINDS)}
MAX_TOKENS: Final = 1_000_000
"""Tokens on one span at most: ten times the longest context of today."""

# Field 11 of Span, length 16; field 1 fixed64, the time; field 2, five bytes: the name.
_NAME_ONLY_BYTES: Final = 18
_NAME_ONLY_EVENTS: Final = re.compile(rb"(?:\x5a\x10\x09.{8}\x12\x05token)*+", re.DOTALL)
_EVENTS_TAG: Final = 0x5A
_FEW: Final = 3
"""Up to so many events, looking at them one by one is quicker."""
_RUN: Final = 128


class TokenEventError(ValueError):
    """Say, in one reason word, why a span's tokens cannot be placed."""


def read_tokens(
    span: Span, names: Collection[str], anomalies: Counter[str], budget: int = MAX_TOKENS
) -> tuple[list[int], bytes | None]:
    """Return the times of the span's token events in their order, and their kinds (None: all content).

    An event named in `names` that stood for k tokens (`otel_llm.token.count`) appears k times. Other events are left
    out and counted in `anomalies`, as are kinds of token that we do not know (they are read as content).

    Raises:
        TokenEventError: a count is no positive integer, or there are more tokens than `budget`.
    """
    events = span.events
    count = len(events)
    if count > budget:
        raise TokenEventError("too_many_tokens")
    if count > _FEW and semconv.TOKEN_EVENT in names:
        times = _name_only_times(span.SerializePartialToString(), count)
        if times is not None:
            return times, None
    return _one_by_one(span, names, anomalies, budget)


def _one_by_one(
    span: Span, names: Collection[str], anomalies: Counter[str], budget: int
) -> tuple[list[int], bytes | None]:
    times: list[int] = []
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
                if tokens > budget:
                    raise TokenEventError("too_many_tokens")
            elif attribute.key == semconv.TOKEN_KIND:
                code = _KIND_CODES.get(attribute.value.string_value)
                if code is None:
                    anomalies["token_kind_unknown"] += 1
                else:
                    kind = code
        budget -= tokens
        if budget < 0:
            raise TokenEventError("too_many_tokens")
        if tokens == 1:
            times.append(event.time_unix_nano)
            kinds.append(kind)
        else:
            times += [event.time_unix_nano] * tokens
            kinds += bytes((kind,)) * tokens
    return times, bytes(kinds) if any(kinds) else None


def _name_only_times(blob: bytes, count: int) -> list[int] | None:
    """Return the times of `count` name-only token events in a serialised span; None if it has any other event."""
    start = _first_event(blob)
    match = _NAME_ONLY_EVENTS.match(blob, start)
    if match is None or match.end() - start != count * _NAME_ONLY_BYTES:
        return None
    if count <= _RUN:
        return list(_times_struct(count).unpack_from(blob, start))
    times: list[int] = []
    for first in range(0, count, _RUN):
        run = min(_RUN, count - first)
        times += _times_struct(run).unpack_from(blob, start + first * _NAME_ONLY_BYTES)
    return times


@lru_cache(maxsize=_RUN)
def _times_struct(count: int) -> Struct:
    return Struct("<" + "3xQ7x" * count)


def _first_event(blob: bytes) -> int:
    """Return where the first event of a serialised span begins, or where the walk over the fields before it ends.

    The span has events and was written by protobuf itself, fields in order of their numbers, so that events come
    before any tag of two bytes; nothing else is relied on, since what stands there is then matched as a whole.
    """
    position, end = 0, len(blob)
    while position < end:
        tag = blob[position]
        wire_type = tag & 7
        if wire_type == 2:
            if tag == _EVENTS_TAG:
                break
            position += 1
            length, shift = 0, 0
            while (byte := blob[position]) > 127:
                length |= (byte & 127) << shift
                shift += 7
                position += 1
            position += 1 + (length | byte << shift)
        elif wire_type == 1:
            position += 9
        elif wire_type == 0:
            position += 1
            while blob[position] > 127:
                position += 1
            position += 1
        else:
            break
    return position
