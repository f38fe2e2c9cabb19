"""What an attacker sends: export requests of a few bytes that ask for much work, and some that are merely dense.

Each is made to decompress to `size` bytes at most. The field numbers are those of opentelemetry-proto 1.x.
"""

from __future__ import annotations

import gzip
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_EVENT_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGE_BYTES: Final = 16 * 2**20
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_SPANS: Final = (1, 2)
_IN_SPAN: Final = (1, 2, 2)


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of request: `raw(number)` are its bytes decompressed; the number makes one differ from another."""

    raw: Callable[[int], bytes]
    zipped: bool = True
    media_type: str = PROTOBUF

    def body(self, number: int) -> bytes:
        """Return what is sent."""
        raw = self.raw(number)
        return gzip.compress(raw, 9) if self.zipped else raw


def field(number: int, content: bytes) -> bytes:
    """Return a field with a length."""
    size, length = bytearray(((number << 3) | 2,)), len(content)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes(size) + bytes((length,)) + content


def within(numbers: tuple[int, ...], content: bytes) -> bytes:
    """Return content within fields of these numbers, the outermost first."""
    for number in reversed(numbers):
        content = field(number, content)
    return content


def full(numbers: tuple[int, ...], unit: bytes, *, size: int = MESSAGE_BYTES, before: bytes = b"") -> bytes:
    """Return as many units as fit `size` bytes, within fields of these numbers."""
    room = size - len(before) - 6 * len(numbers)
    return within(numbers, before + unit * (room // len(unit)))


def attribute(key: str, value: bytes) -> bytes:
    """Return an attribute of a span, its value encoded."""
    return field(9, field(1, key.encode()) + field(2, value))


def event(name: str, *attributes: bytes) -> bytes:
    """Return an event of a span, now."""
    return field(11, fixed64(1, time.time_ns()) + field(2, name.encode()) + b"".join(attributes))


def fixed64(number: int, value: int) -> bytes:
    """Return a field of eight bytes."""
    return bytes(((number << 3) | 1,)) + struct.pack("<Q", value)


def number_value(value: int) -> bytes:
    """Return the value of an attribute that is an int."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return b"\x18" + bytes(digits) + bytes((value,))


def text_value(text: str) -> bytes:
    """Return the value of an attribute that is text."""
    return field(1, text.encode())


def span(*parts: bytes, request: int = 1, name: str = "chat m", parent: bytes = b"") -> bytes:
    """Return a span as a field of its ScopeSpans."""
    now_ns = time.time_ns()
    ids = field(1, request.to_bytes(16, "big")) + field(2, request.to_bytes(8, "big")) + parent
    times = fixed64(7, now_ns - 10**9) + fixed64(8, now_ns)
    return field(2, ids + field(5, name.encode()) + times + b"".join(parts))


def segment(*parts: bytes, request: int = 1, seq: int = 0) -> bytes:
    """Return a segment of a stream."""
    placed = attribute(semconv.SEGMENT_SEQ, number_value(seq)) + attribute(semconv.SEGMENT_FIRST_TOKEN, number_value(0))
    parent = field(4, request.to_bytes(8, "big"))
    return span(placed, *parts, request=request, name=semconv.SEGMENT_SPAN, parent=parent)


_CHAT: Final = attribute(semconv.GEN_AI_OPERATION_NAME, text_value("chat"))


def packed_text(numbers: int) -> bytes:
    """Return the attribute of token times that are written as JSON."""
    return attribute(semconv.PER_TOKEN_GENERATION_TIME, text_value("[" + "0," * (numbers - 1) + "0]"))


def counted(tokens: int) -> bytes:
    """Return an event that claims so many tokens."""
    return event(semconv.TOKEN_EVENT, field(3, field(1, semconv.TOKEN_COUNT.encode()) + field(2, number_value(tokens))))


def distinct_streams(number: int, size: int = 2**16) -> bytes:
    """Return valid commits of new streams; the collector follows each until it is lost."""
    first = number * 1_000 + 1
    one = len(segment(_CHAT))
    return within(_SPANS, b"".join(segment(_CHAT, request=first + at) for at in range(size // one)))


def json_spans(_: int) -> bytes:
    """Return a JSON document as dense as a real one."""
    one = b'{"traceId":"%032x","spanId":"%016x","name":"x","startTimeUnixNano":"1","endTimeUnixNano":"2"}' % (1, 1)
    many = b",".join([one] * (MESSAGE_BYTES // 4 // len(one)))
    return b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + many + b"]}]}]}"


ATTACKS: Final = {
    "zeros": Attack(lambda _: bytes(MESSAGE_BYTES - 1)),
    "empty attributes": Attack(lambda _: full(_IN_SPAN, b"\x4a\x00")),
    "empty events": Attack(lambda _: full(_IN_SPAN, b"\x5a\x00")),
    "empty links": Attack(lambda _: full(_IN_SPAN, b"\x6a\x00")),
    "empty spans": Attack(lambda _: full(_SPANS, b"\x12\x00")),
    "empty resources": Attack(lambda _: full((), b"\x0a\x00")),
    "199,990 empty spans": Attack(lambda _: within(_SPANS, b"\x12\x00" * 199_990)),
    "JSON of empty objects": Attack(
        lambda _: b'{"resourceSpans":[' + b",".join([b"{}"] * 5_000_000) + b"]}", media_type=JSON
    ),
    "JSON of empty arrays": Attack(lambda _: b'{"x":[' + b",".join([b"[]"] * 5_000_000) + b"]}", media_type=JSON),
    "JSON of spans": Attack(json_spans, media_type=JSON),
    "lists as text": Attack(lambda _: full(_SPANS, span(_CHAT, packed_text(500_000)))),
    "short lists": Attack(lambda _: full(_SPANS, span(_CHAT, packed_text(3)))),
    "spans of others": Attack(lambda _: full(_SPANS, span(name="GET /"))),
    "spans of models": Attack(lambda _: full(_SPANS, span(_CHAT))),
    "claimed tokens": Attack(lambda _: full(_SPANS, segment(counted(MAX_EVENT_TOKENS), seq=1), size=700), zipped=False),
    "streams that never end": Attack(distinct_streams, zipped=False),
    "segments": Attack(
        lambda _: full(_SPANS, segment(event(semconv.TOKEN_EVENT) * 8, seq=1), size=2**18), zipped=False
    ),
}
