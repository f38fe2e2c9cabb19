"""Limits hold in whatever way a message is read: of tokens, of parts, of memory."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.collector.message_mutations import field_of, varint
from support.core.core_spans import agree, needs_kernels, sent_segment
from support.core.scan_messages import END_NS, I32, LEN, VARINT, message_of, segment_bytes
from support.otlp import T0_NS, export, request_span, token

from otel_llm import semconv
from otel_llm.core.limits import FREE_MESSAGE_TOKENS, MAX_EVENT_TOKENS, MAX_MESSAGE_TOKENS, MAX_TOKENS
from otel_llm.core.scanning.parts import COST, FREE_NS, NS_PER_BYTE
from otel_llm.formats.otlp import export_request as otlp
from otel_llm.formats.otlp.export_json import parse_json
from otel_llm.formats.otlp.scanned import scan
from otel_llm.formats.records import DecodeError

MANY = 200_001
"""Parts of two bytes each."""
ODD = {"long": "x" * 1025}
"""Attributes; one of them is left out and counted."""


def claim(tokens: int, request: int, **reported: object) -> Span:
    """Return a segment span whose events stand for so many tokens."""
    counts = [min(MAX_EVENT_TOKENS, tokens - upto) for upto in range(0, tokens, MAX_EVENT_TOKENS)]
    return sent_segment(1, 0, [token(T0_NS, count=one) for one in counts], request=request, end_ns=END_NS, **reported)


def padded(*spans: Span, size: int = 1_000_000) -> bytes:
    """Return a message with an unknown field; the scan makes room for it as for tokens."""
    return export(*spans).SerializeToString() + field_of(1001, LEN, bytes(size)).raw


@pytest.mark.parametrize("size", [1_000_000, 7_000_000])
def test_tokens_beyond_those_of_a_message_are_refused(size: int) -> None:
    raw = padded(*(claim(900_000, request) for request in range(1, 6)), size=size)
    agree(raw)
    batch = otlp.read(raw)
    assert batch.refused == {"too_many_tokens": 1}
    assert batch.tokens == 3_600_000 <= MAX_MESSAGE_TOKENS


def test_a_message_of_few_bytes_may_not_claim_as_many_tokens() -> None:
    raw = padded(*(claim(100_000, request) for request in range(1, 6)), size=0)
    assert 2 * 100_000 <= FREE_MESSAGE_TOKENS < 3 * 100_000
    agree(raw)
    batch = otlp.read(raw)
    assert (batch.tokens, batch.refused) == (200_000, {"too_many_tokens": 3})


def test_tokens_of_a_span_that_protobuf_reads_after_all_count_once() -> None:
    raw = padded(*(claim(800_000, request, attributes=ODD) for request in range(1, 4)))
    agree(raw)
    assert otlp.read(raw).tokens == 2_400_000


def test_tokens_are_refused_in_the_order_of_the_message() -> None:
    left = [claim(MAX_TOKENS, request) for request in range(1, 4)]
    for span in left:
        span.links.add()  # protobuf reads it
    for at in range(3):
        one, other = claim(600_000, 7), claim(600_000, 8)
        agree(padded(*[one, other][:at], *left, *[one, other][at:]))


@needs_kernels
def test_a_span_that_is_there_many_times_is_read_once() -> None:
    odd = claim(50, 7, attributes=ODD)
    other = request_span(request=8, attributes={semconv.GEN_AI_OPERATION_NAME: "chat", "long": "x" * 1025})
    for spans in ([odd] * 9, [other] * 9, [odd, other] * 5, [odd, odd, other, other, odd]):
        agree(export(*spans))
    found = otlp.read(export(*[other] * 9).SerializeToString())
    assert len({id(span) for span in found.requests}) == 1
    assert found.anomalies == {"attribute_too_long": 9}


@needs_kernels
def test_a_small_message_with_spans_of_others_is_not_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "parse", lambda _: pytest.fail("protobuf reads all of it"))
    raw = export(request_span(attributes={semconv.GEN_AI_OPERATION_NAME: "chat"})).SerializeToString()
    assert len(otlp.read(raw).requests) == 1


def test_a_claim_takes_no_more_room_than_one_token() -> None:
    claims = [padded(*(claim(MAX_TOKENS // scale, request) for request in range(1, 5)), size=0) for scale in (1, 10**5)]
    peaks = []
    for raw in claims:
        tracemalloc.start()
        try:
            assert scan(raw) is not None
            peaks.append(tracemalloc.get_traced_memory()[1] / len(raw))
        finally:
            tracemalloc.stop()
    assert peaks[0] < 2 * peaks[1]


@pytest.mark.parametrize("count", [MAX_EVENT_TOKENS, MAX_EVENT_TOKENS + 1, 2**31 - 1, 2**63 - 1])
def test_the_claim_of_an_event_is_bounded(count: int) -> None:
    raw = export(sent_segment(1, 0, [T0_NS, token(T0_NS, count=count)], end_ns=END_NS)).SerializeToString()
    agree(raw)
    batch = otlp.read(raw)
    allowed = count <= MAX_EVENT_TOKENS
    assert (batch.tokens, batch.refused) == ((count + 1, {}) if allowed else (0, {"too_many_tokens": 1}))


def test_a_resource_or_scope_in_many_pieces_takes_no_room() -> None:
    parts = b"\x0a\x00" * 100_000
    for raw in (field_of(1, LEN, parts).raw, field_of(1, LEN, field_of(2, LEN, parts).raw).raw):
        assert scan(raw) is None
        agree(raw)


GROUP = varint(7 << 3 | 3) + field_of(1, VARINT, 5).raw + varint(8 << 3 | 3) + varint(8 << 3 | 4) + varint(7 << 3 | 4)
STRANGE = {
    "nothing": b"",
    "a group": GROUP,
    "a varint of ten bytes": varint(9 << 3) + b"\x80" * 9 + b"\x7f",
    "more tokens than are read": message_of(*(claim(900_000, n).SerializeToString() for n in range(1, 6))),
    "a resource in two parts": field_of(1, LEN, b"\x0a\x00" * 2).raw,
    "an unknown field of a fixed length": field_of(9, I32, b"abcd").raw,
}
"""The scan reads some of these, and leaves the others to protobuf with their whole message."""


@pytest.mark.parametrize("strange", STRANGE)
def test_parts_are_bounded_in_each_reader(strange: str) -> None:
    empty = {1: b"\x0a\x00", 2: b"\x12\x00", 3: b"\x12\x00"}
    for level, part in empty.items():
        parts = part * MANY
        if level == 3:
            parts = field_of(2, LEN, GROUP * (strange == "a group") + parts).raw
        if level > 1:
            parts = field_of(1, LEN, GROUP * (strange == "a group") + parts).raw
        with pytest.raises(DecodeError, match="more small or empty"):
            otlp.read(STRANGE[strange] + parts)


def test_as_many_parts_as_may_be_are_read() -> None:
    for strange in STRANGE.values():
        agree(strange + message_of(*[b""] * (FREE_NS // int(COST.max()) // 2 - 40)))


def test_parts_of_a_usual_size_are_not_counted() -> None:
    usual = message_of(*[segment_bytes()] * 8)
    assert otlp.read(usual, free_ns=-NS_PER_BYTE * len(usual)).spans == 8
    one_more = message_of(*[segment_bytes()] * 8, b"", b"")
    cost = 4 * int(COST.max())
    free = -NS_PER_BYTE * len(one_more)
    assert otlp.read(one_more, free_ns=free + cost).spans == 10
    with pytest.raises(DecodeError, match="more small or empty spans"):
        otlp.read(one_more, free_ns=free + cost - 1)


def within(*numbers: int, content: bytes) -> bytes:
    """Return content within fields of these numbers, the outermost first."""
    for number in reversed(numbers):
        content = field_of(number, LEN, content).raw
    return content


SMALL = {
    "attributes of a resource": ((1, 1), 1),
    "entities of a resource": ((1, 1), 3),
    "keys of an entity": ((1, 1, 3), 3),
    "attributes of a scope": ((1, 2, 1), 3),
    "attributes of a span": ((1, 2, 2), 9),
    "events": ((1, 2, 2), 11),
    "attributes of an event": ((1, 2, 2, 11), 3),
    "links": ((1, 2, 2), 13),
    "attributes of a link": ((1, 2, 2, 13), 4),
    "values of a list": ((1, 2, 2, 9, 2, 5), 1),
    "values of a list in a list": ((1, 2, 2, 9, 2, 5, 1, 5), 1),
    "pairs of a map": ((1, 2, 2, 9, 2, 6), 1),
}


@pytest.mark.parametrize("what", SMALL)
@pytest.mark.parametrize("segment", [b"", segment_bytes()], ids=["a span", "a segment"])
def test_parts_that_say_nothing_are_bounded_wherever_they_are(what: str, segment: bytes) -> None:
    numbers, number = SMALL[what]
    many = field_of(number, LEN, b"").raw * MANY
    if numbers[:3] == (1, 2, 2):
        raw = within(1, 2, 2, content=segment + within(*numbers[3:], content=many))
    else:
        raw = within(*numbers, content=many) + message_of(segment)
    with pytest.raises(DecodeError, match="more small or empty"):
        otlp.read(raw)


def test_a_reply_of_many_tokens_is_read_in_every_form() -> None:
    tokens = 400_000
    at = round(1.5e9)
    segment = sent_segment(1, 0, [token(T0_NS + at)] * tokens, end_ns=END_NS)
    offsets: Any = [0.25] * tokens
    packed = request_span(attributes={semconv.PER_TOKEN_GENERATION_TIME: offsets})
    assert otlp.read(export(segment).SerializeToString()).tokens == tokens
    (request,) = otlp.read(export(packed).SerializeToString()).requests
    assert len(request.events_ns) == tokens


@pytest.mark.parametrize("part", [b"{}", b"[]", b"{ }", b'{"a":{}}', b"0", b'""', b"null", b"[[]]", b'{"a":0}'])
@pytest.mark.parametrize("key", [b"resourceSpans", b"x"])
def test_json_of_small_parts_is_refused_before_an_object_of_each_is_made(key: bytes, part: bytes) -> None:
    def document(parts: int) -> bytes:
        return b'{"%b":[%b]}' % (key, b",".join([part] * parts))

    with pytest.raises(DecodeError, match="more small or empty"):
        parse_json(document(1000), free=100)
    if key == b"x":
        assert not parse_json(document(45), free=100).resource_spans


def test_json_of_usual_spans_is_read_however_many_there_are() -> None:
    span = {
        "traceId": "0" * 31 + "1",
        "spanId": "0" * 15 + "1",
        "parentSpanId": "0" * 15 + "2",
        "name": "otel_llm.segment",
        "events": [{"attributes": [], "name": "token", "timeUnixNano": str(T0_NS), "droppedAttributesCount": 0}] * 9,
        "attributes": [
            {"key": "otel_llm.segment.seq", "value": {"intValue": 1}},
            {"key": "text", "value": {"stringValue": "{},[]," * 999}},
        ],
        "links": [],
        "status": {},
    }
    text = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span] * 99}]}]}, separators=(",", ":"))
    assert len(parse_json(text, free=0).resource_spans[0].scope_spans[0].spans) == 99
