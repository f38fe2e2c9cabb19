"""Read the request spans of our own recorder out of an export request's bytes, without an object of protobuf's each.

Such a span is written by `otel_llm.export.wire` or by the SDK's exporter: fields in order of number, attributes, a
status, flags, and no events, for its segments say when tokens came. Its fields are walked here, and an attribute is
looked up by its bytes, for most say what others have said: 6 us a span where protobuf's objects take 23. Whatever
stands in another form, and whatever is refused or counted as odd, is left to protobuf: nothing is read that it would
not have read the same.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is one
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.readers.attributes import AttributeLimits, fits
from otel_llm.readers.checks import NO_SPAN_ID, NO_TRACE_ID
from otel_llm.readers.records import Attributes, RequestSpan
from otel_llm.readers.saying import MOST_BYTES, said
from otel_llm.readers.token_events import MAX_TIME_NS

if TYPE_CHECKING:
    from otel_llm.readers.records import Scalar

SEGMENTS_KEY: Final = b"\x0a" + bytes((len(semconv.SEGMENTS),)) + semconv.SEGMENTS.encode()
"""The key that says that segments tell when tokens came, as it stands in an attribute."""
_SEGMENT_NAME: Final = semconv.SEGMENT_SPAN.encode()
_IDS: Final = Struct("<2s16s2s8s")
_TRACE_ID, _SPAN_ID = b"\x0a\x10", b"\x12\x08"
_TRACE_STATE, _NAME, _ATTRIBUTE, _STATUS = 0x1A, 0x2A, 0x4A, 0x7A
_PARENT_ID: Final = b"\x22\x08"
_KIND_AND_TIMES: Final = Struct("<BBBQBQ")
_KIND, _START, _END = 0x30, 0x39, 0x41
_FLAGS: Final = b"\x85\x01"
_FLAGS_BYTES: Final = 6
_STATUS_CODES: Final = {b"": False, b"\x18\x01": False, b"\x18\x02": True}
"""What stands behind a status's message, and whether it is that of an error."""

_KEY, _VALUE, _TEXT, _INT, _DOUBLE = 0x0A, 0x12, 0x0A, 0x18, 0x21
_DOUBLE_FORM: Final = Struct("<d")
_MOST_DIGITS: Final = 9
"""Of an int that is not negative."""
_MOST_ASKED: Final = 4
"""Attributes of one span that protobuf is asked about, one by one, where that is slow; the next span knows these."""
_REMEMBERED: Final = 4096

Placed = tuple[RequestSpan, int, int]
"""A request span of a message, the number of its resource, and how many of the spans that were left come before it."""

_Pair = tuple[str, "Scalar"] | tuple[()]
"""An attribute's key and value; nothing of one whose value is none of ours."""


class PlainRequests:
    """Reads request spans that have the form; remembers, by their bytes, what attributes said."""

    def __init__(self, limits: AttributeLimits) -> None:
        self._limits = limits
        self._known: dict[bytes, _Pair] = {}

    def read(self, raw: bytes, position: int, stop: int) -> tuple[RequestSpan, int] | None:
        """Return the request span whose tag stands at `position` and where it ends, not behind `stop`.

        None where protobuf is to read what stands there. The times of receipt and the sender are not set.
        """
        try:
            # Here one may read beyond a field, a span, the message: a span is given out only if its fields, each of
            # which begins where another ends, end where it does.
            size, at = raw[position + 1], position + 2
            if size > 127:
                size, at = size & 127 | raw[at] << 7, at + 1
            end = at + size
            if end > stop or size >= 1 << 14 or raw.rfind(SEGMENTS_KEY, at, end) < 0:
                return None
            return self._span(raw, at, end)
        except (IndexError, StructError, UnicodeDecodeError):
            return None

    def _span(self, raw: bytes, at: int, end: int) -> tuple[RequestSpan, int] | None:
        before_trace, trace_id, before_span, span_id = _IDS.unpack_from(raw, at)
        at += _IDS.size
        if before_trace != _TRACE_ID or before_span != _SPAN_ID or trace_id == NO_TRACE_ID or span_id == NO_SPAN_ID:
            return None
        if raw[at] == _TRACE_STATE:
            size, begin = raw[at + 1], at + 2
            at = begin + size
            if size > 127:
                return None
            raw[begin:at].decode()  # protobuf refuses what is no UTF-8
        parent_id = b""
        if raw[at : at + 2] == _PARENT_ID:
            parent_id = raw[at + 2 : at + 10]
            at += 10
        size, begin = raw[at + 1], at + 2
        if raw[at] != _NAME or size > 127:
            return None
        at = begin + size
        name = raw[begin:at]
        kind_tag, kind, start_tag, start_ns, end_tag, end_ns = _KIND_AND_TIMES.unpack_from(raw, at)
        at += _KIND_AND_TIMES.size
        if kind_tag != _KIND or kind > 127 or start_tag != _START or end_tag != _END or name == _SEGMENT_NAME:
            return None
        if not 0 < start_ns <= end_ns <= MAX_TIME_NS:
            return None

        attributes: Attributes = {}
        known = self._known
        asked = 0
        while raw[at] == _ATTRIBUTE:
            # What is known has a length of one byte, so that these are other bytes where there are two.
            following = at + 2 + raw[at + 1]
            attribute = raw[at:following]
            pair = known.get(attribute)
            if pair is None:
                if raw[at + 1] > 127:
                    following = at + 3 + (raw[at + 1] & 127 | raw[at + 2] << 7)
                    attribute = raw[at:following]
                pair = self._simple(attribute)
                if pair is None and asked < _MOST_ASKED:
                    asked += 1
                    pair = self._asked(attribute)
                if pair is None or len(attributes) >= self._limits.count:
                    return None
                if attribute[1] < 128:
                    self._remember(attribute, pair)
            if pair:
                key, value = pair
                attributes[key] = value
            at = following
        if len(attributes) >= self._limits.count or semconv.SEGMENTS not in attributes:
            return None

        error: bool | None = False
        if raw[at] == _STATUS:
            error, at = _failed(raw, at)
        if raw[at : at + 2] == _FLAGS:
            at += _FLAGS_BYTES
        if at != end or error is None:
            return None
        return RequestSpan(trace_id, span_id, parent_id, name.decode(), kind, start_ns, end_ns, error, attributes), end

    def _simple(self, attribute: bytes) -> _Pair | None:
        """Return what a short text or a number says; None of another attribute, or where it is odd."""
        pair = _read_simple(attribute)
        if pair is None:
            return None
        key, value = pair
        odd = len(value) > self._limits.value_chars if isinstance(value, str) else not isfinite(value)
        return None if odd or not fits(key, value) else pair

    def _asked(self, attribute: bytes) -> _Pair | None:
        """Return what protobuf says of an attribute; None where it is to say it of the whole span."""
        kept = said(attribute, self._limits) if len(attribute) <= MOST_BYTES else None
        return None if kept is None else next(iter(kept.items()), ())

    def _remember(self, attribute: bytes, pair: _Pair) -> None:
        if len(self._known) >= _REMEMBERED:
            # What only one said is in it too; what many say is soon there again.
            self._known.clear()
        self._known[attribute] = pair


@lru_cache(maxsize=8)
def plain_requests(limits: AttributeLimits) -> PlainRequests:
    """Return the reader that keeps attributes within these limits; each remembers for itself."""
    return PlainRequests(limits)


def _failed(raw: bytes, at: int) -> tuple[bool | None, int]:
    """Return whether the status whose tag stands there is that of an error (None: it has another form), and its end."""
    size = raw[at + 1]
    end = at + 2 + size
    if size == 0:
        return False, end
    status = raw[at + 2 : end]
    if size > 127 or len(status) < size:
        return None, end
    if status[0] == 0x12:
        behind = 2 + status[1]
        if behind > size:
            return None, end
        status[2:behind].decode()
        status = status[behind:]
    return _STATUS_CODES.get(status), end


def _read_simple(attribute: bytes) -> tuple[str, Scalar] | None:
    """Return the key and the value of an attribute that is a short text or a number; None of any other."""
    # Its tag and length, those of the key, the key, those of the value, the value: its tag and what follows that.
    if attribute[1] > 127 or attribute[2] != _KEY:
        return None
    at = 4 + attribute[3]
    size = attribute[at + 1]
    begin = at + 3
    if attribute[at] != _VALUE or at + 2 + size != len(attribute):
        return None
    kind = attribute[at + 2]
    value: Scalar
    if kind == _TEXT:
        if attribute[begin] != size - 2:
            return None
        value = attribute[begin + 1 :].decode()
    elif kind == _INT:
        digits = attribute[begin:]
        if digits[-1] > 127 or len(digits) > _MOST_DIGITS or min(digits[:-1], default=128) < 128:
            return None
        value = 0
        for place, digit in enumerate(digits):
            value |= (digit & 127) << 7 * place
    elif kind == _DOUBLE and size == 1 + _DOUBLE_FORM.size:
        (value,) = _DOUBLE_FORM.unpack_from(attribute, begin)
    else:
        return None
    return attribute[4:at].decode(), value
