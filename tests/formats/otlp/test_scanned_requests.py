"""What the scan reads of our request spans is what protobuf reads of them: no more, no less, in the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from random import Random

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from support.collector.message_mutations import field_of, parse_fields, varint
from support.core import core_spans
from support.core.core_spans import sent_segment
from support.core.scan_messages import (
    ENDED,
    ENDED_SCALARS,
    FORMS,
    I32,
    I64,
    KEYS,
    LEN,
    ODD_REQUEST,
    VALUES,
    VARINT,
    message_of,
    overlong,
    sent_request,
)
from support.examples import SEED
from support.otlp import T0_NS, Value, attributes_of, export, nested, request_span, token

from otel_llm import semconv
from otel_llm.export.delivery import readable
from otel_llm.export.records import AttributeValue, Origin, Record, RequestRecord, Segment
from otel_llm.export.wire import export_request
from otel_llm.formats.otlp import export_request as otlp
from otel_llm.formats.otlp import scanned
from otel_llm.formats.records import DecodeError, RequestSpan
from otel_llm.formats.spans.attributes import DEFAULT_LIMITS, AttributeLimits


def agree(message: ExportTraceServiceRequest | bytes, limits: AttributeLimits = DEFAULT_LIMITS) -> int:
    """Check that both ways of reading say the same; return how many request spans the scan reads."""
    return core_spans.agree(message, limits)[1]


def taken(raw: bytes) -> list[RequestSpan]:
    return otlp.read(raw).requests


def records() -> Iterator[RequestRecord]:
    resource = Resource({"service.instance.id": "pod-1"})
    kinds = (SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.CLIENT)
    parents = (None, False, True)
    states = (TraceState(), TraceState([("vendor", "a=b"), ("other", "c")]))
    for number, (kind, remote, state, failure) in enumerate(product(kinds, parents, states, (None, "", "gone: ö")), 1):
        parent = None if remote is None else SpanContext(number, number + 1000, is_remote=remote)
        context = SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
        reported: dict[str, AttributeValue] = {
            **ENDED_SCALARS,
            semconv.GEN_AI_RESPONSE_FINISH_REASONS: ("stop",),
            semconv.TOKENS: 2**number % 2**31,
            "gen_ai.response.id": f"chatcmpl-{number}",
        }
        name, end_ns = f"chat {number}", T0_NS + number
        yield RequestRecord(context, parent, resource, name, T0_NS, end_ns, reported, failure, kind)


@pytest.mark.parametrize("encoder", ["ours", "the SDK's"])
def test_what_either_encoder_sends_is_read_whole(encoder: str) -> None:
    made = list(records())
    origin = Origin(SpanContext(1, 1, is_remote=False), made[0].resource)
    number = {semconv.SEGMENT_SEQ: 1, semconv.SEGMENT_FIRST_TOKEN: 0}
    everything: list[Record] = [Segment(origin, 9, T0_NS, T0_NS, [], None, number), *made]
    if encoder == "ours":
        raw = export_request(everything)
    else:
        raw = encode_spans([readable(one) for one in everything]).SerializeToString()
    assert agree(raw) == len(made)
    batch = otlp.read(raw)
    assert [request.name for request in batch.requests] == [record.name for record in made]
    assert {request.instance_id for request in batch.requests} == {"pod-1"}
    assert sum(request.error for request in batch.requests) == len(made) * 2 // 3
    reasons = {semconv.GEN_AI_RESPONSE_FINISH_REASONS: '["stop"]'}
    assert batch.requests[0].attributes == {**ENDED_SCALARS, **reasons, semconv.TOKENS: 2}


def test_a_request_span_has_attributes_of_its_own() -> None:
    raw = export(sent_request(request=1), sent_request(request=2)).SerializeToString()
    first, second = taken(raw)
    first.attributes["x"] = 1
    assert "x" not in second.attributes
    assert "x" not in taken(raw)[0].attributes


MADE: tuple[Callable[[int], Span], ...] = (
    lambda number: sent_request(request=number),
    lambda number: sent_request(request=number),
    lambda number: request_span(request=number),
    lambda number: sent_segment(number, 0, request=number),
    lambda number: sent_segment(number, 0, [token(T0_NS, count=2)], request=number),
    lambda _: Span(name="GET"),
)


def test_their_order_is_that_of_the_message() -> None:
    random = Random(SEED)
    for _ in range(300):
        message = ExportTraceServiceRequest()
        number = 0
        for sender in range(random.randint(1, 3)):
            resource_spans = message.resource_spans.add()
            resource_spans.resource.attributes.extend(
                attributes_of({semconv.SERVICE_INSTANCE_ID: f"pod-{sender}"} if random.random() < 0.8 else {})
            )
            for _ in range(random.randint(0, 2)):
                scope_spans = resource_spans.scope_spans.add()
                for _ in range(random.randint(0, 6)):
                    number += 1
                    scope_spans.spans.append(random.choice(MADE)(number))
        agree(message)


def test_a_resource_behind_its_scopes_or_in_two_pieces_names_the_sender() -> None:
    def resource(**reported: Value) -> bytes:
        attributes = attributes_of({key.replace("_", "."): value for key, value in reported.items()})
        return field_of(1, LEN, b"".join(field_of(1, LEN, one.SerializeToString()).raw for one in attributes)).raw

    scope = field_of(2, LEN, field_of(2, LEN, sent_request().SerializeToString()).raw).raw
    other, one, two = resource(a="b"), resource(service_instance_id="one"), resource(service_instance_id="two")
    for parts in ((scope, one), (other, scope, one), (one, scope, two), (scope,), (two, scope, scope), (scope, other)):
        alone = field_of(1, LEN, b"".join(parts)).raw
        pieces = sum(part != scope for part in parts)
        assert (agree(alone) >= 1) is (pieces < 2)
        assert (agree(alone + field_of(1, LEN, two + scope).raw + message_of()) >= 2) is (pieces < 2)
    names = [request.instance_id for request in otlp.read(field_of(1, LEN, scope + one + scope).raw).requests]
    assert names == ["one", "one"]


def test_pieces_that_are_no_resource_or_scope_alone_are_none_together() -> None:
    cut, rest = field_of(1, LEN, b"\x0a\x03").raw, field_of(1, LEN, b"\x0a\x01x").raw
    whole = field_of(2, LEN, sent_request().SerializeToString()).raw
    for raw in (
        field_of(1, LEN, cut + rest + field_of(2, LEN, whole).raw).raw,
        field_of(1, LEN, field_of(2, LEN, cut + rest + whole).raw).raw,
    ):
        agree(raw)
        with pytest.raises(DecodeError):
            otlp.read(raw)


@pytest.mark.parametrize("code", [2, 2**31, 2**32 - 1, 2**32, 2**32 + 2, 2**35 + 2, 2**62 + 2, 2**63 + 2, 2**64 - 1])
def test_a_status_code_is_the_lower_half_of_its_varint(code: int) -> None:
    status = field_of(15, LEN, varint(3 << 3) + varint(code)).raw
    agree(message_of(sent_request().SerializeToString() + status))


def test_what_is_left_is_refused_where_it_was() -> None:
    span = sent_request().SerializeToString()
    scope = field_of(2, LEN, field_of(2, LEN, span).raw).raw
    bad = field_of(1, LEN, field_of(1, LEN, field_of(1, LEN, b"\xff").raw).raw).raw
    for raw in (
        field_of(1, LEN, bad + scope).raw,
        field_of(1, LEN, scope + field_of(3, LEN, b"\xff").raw).raw,
        message_of(span) + bad,
        field_of(1, LEN, field_of(2, LEN, field_of(1, LEN, b"\xff").raw + field_of(2, LEN, span).raw).raw).raw,
    ):
        for _ in range(2):
            agree(raw)
            with pytest.raises(DecodeError):
                otlp.read(raw)


def test_a_long_resource_is_read_with_its_message() -> None:
    message = export(sent_request(), resource={"long": "x" * 5000, semconv.SERVICE_INSTANCE_ID: "far"})
    remembered = scanned.known_sender.cache_info().currsize
    assert agree(message) == 1
    assert scanned.known_sender.cache_info().currsize == remembered
    assert otlp.read(message.SerializeToString()).requests[0].instance_id == "far"


@pytest.mark.parametrize("key", KEYS)
def test_every_key_with_every_value(key: str) -> None:
    found = Counter[int]()
    for value in VALUES:
        span = sent_request()
        span.attributes.extend(attributes_of({key: value}))
        found[agree(export(span))] += 1
        span.attributes.insert(0, span.attributes.pop())
        agree(export(span, span))
    assert found[1] or key in ("", semconv.SEGMENT_SEQ, semconv.CHOICE)  # some are read, or nothing was tried


def test_a_span_that_ends_with_its_attributes() -> None:
    span = sent_request()
    span.ClearField("status")
    span.ClearField("flags")
    agree(export(span))
    agree(export(span, sent_request(request=2)))


def test_attributes_without_a_value_or_a_key() -> None:
    for odd in (KeyValue(key="x"), KeyValue(), KeyValue(key="x", value=AnyValue()), KeyValue(value=AnyValue())):
        span = sent_request()
        span.attributes.append(odd)
        agree(export(span))


def attribute_bytes(*parts: bytes) -> bytes:
    return field_of(9, LEN, b"".join(parts)).raw


def test_attributes_that_no_encoder_writes() -> None:
    key, other_key = field_of(1, LEN, b"x").raw, field_of(1, LEN, b"y").raw
    text, number = field_of(1, LEN, b"text").raw, field_of(3, VARINT, 5).raw
    more = (b"", field_of(3, VARINT, 1).raw, field_of(1001, LEN, b"abc").raw, field_of(2, LEN, b"").raw, key)
    values = [text, number, text + number, number + text, text + text, text + b"\x1b\x1c", number + b"\x07", b"\x18"]
    values += [b"\x18" + b"\x80" * long + b"\x01" for long in range(12)] + [b"\x18\x85\x00", b"\x10\x05", b"\x0a\x00"]
    values += [
        b"\x1d1234",
        b"\x21" + bytes(7),
        b"\x21" + bytes(9),
        b"\x25" + bytes(8),
        b"\x0a\x84\x00text",
        b"\x0a\x05t",
    ]
    head = parse_fields(sent_request().SerializeToString()) or ()
    for value, extra in product(values, more):
        held = field_of(2, LEN, value).raw
        for parts in ((key, held, extra), (key, extra, held), (extra, key, held), (held, key), (key, held, other_key)):
            fields = [*(field.raw for field in head[:-3]), attribute_bytes(*parts), *(field.raw for field in head[-3:])]
            agree(message_of(b"".join(fields)))


def test_texts_that_are_no_utf8() -> None:
    for bad in (
        b"\xff",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\xef\xbf\xbe",
        b"\xf0\x9f\x99\x82",
    ):
        for mark in (b"chat m", b"chatcmpl", b"stop", b"server.port", b"why it f", b"vendor=a"):
            span = sent_request(parent=2)
            span.trace_state = "vendor=a"
            span.status.message = "why it f"
            raw = export(span).SerializeToString()
            assert mark in raw
            agree(raw.replace(mark, bad.ljust(len(mark), b"x")))
            agree(raw.replace(mark, bad.rjust(len(mark), b"x")))


@pytest.mark.parametrize("depth", range(40, 50))
def test_values_nested_as_deep_as_protobuf_lets_them(depth: int) -> None:
    span = sent_request()
    span.attributes.append(nested(depth))
    agree(export(span))
    agree(export(span, sent_request(request=2)))


@pytest.mark.parametrize("more", range(1, 11))
def test_tags_and_lengths_spelt_with_more_digits_than_they_need(more: int) -> None:
    fields = [field.raw for field in parse_fields(sent_request(parent=3).SerializeToString()) or ()]
    for at, field in enumerate(fields):
        first = 2 if field[0] == 0x85 else 1
        tag, behind = field[:first], field[first:]
        held_in_length = tag[0] & 7 == LEN
        size = 2 if held_in_length and behind[0] > 127 else 1
        respelt = [overlong(tag, more) + behind, tag + overlong(behind[:size], more) + behind[size:]]
        for spelt in respelt[: 2 if held_in_length or tag == b"\x30" else 1]:
            agree(message_of(b"".join([*fields[:at], spelt, *fields[at + 1 :]])))
    span = sent_request().SerializeToString()
    tag, length = b"\x12", varint(len(span))
    for spelt in (overlong(tag, more) + length + span, tag + overlong(length, more) + span):
        agree(field_of(1, LEN, field_of(2, LEN, spelt).raw).raw)
        agree(field_of(1, LEN, field_of(2, LEN, field_of(2, LEN, span).raw + spelt).raw).raw)


def test_fields_twice_in_another_order_and_unknown_ones() -> None:
    fields = parse_fields(sent_request(parent=3).SerializeToString()) or ()
    group = varint(7 << 3 | 3) + varint(7 << 3 | 4)
    strange = (field_of(1001, LEN, b"xyz").raw, field_of(3, LEN, b"a=b").raw, field_of(16, I32, b"abcd").raw, group)
    for at in range(len(fields) + 1):
        for field in (*(one.raw for one in fields), *strange, field_of(15, LEN, b"\x18\x02").raw, b"\x07", b"\x4a"):
            before, behind = [one.raw for one in fields[:at]], [one.raw for one in fields[at:]]
            agree(message_of(b"".join([*before, field, *behind]), sent_request(request=2).SerializeToString()))
            agree(message_of(b"".join([*before, field, *behind[1:]]), sent_request(request=2).SerializeToString()))


WHOLE = field_of(2, LEN, sent_request(request=7).SerializeToString()).raw


def test_a_request_span_within_anything_else_is_not_read() -> None:
    held = WHOLE[: len(WHOLE) // 2].decode("latin-1")
    message = export(
        sent_segment(1, 0, attributes={"blob": WHOLE}),
        sent_request(request=2, attributes={**ENDED, "b": WHOLE, "c": held}),
    )
    message.resource_spans[0].resource.attributes.extend(attributes_of({"blob": WHOLE * 3}))
    message.resource_spans[0].scope_spans[0].scope.attributes.extend(attributes_of({"blob": WHOLE}))
    assert agree(message) <= 1
    span = sent_request().SerializeToString()
    for depth in range(5):
        agree(field_of(1, LEN, span).raw)
        agree(field_of(1, LEN, span + field_of(2, LEN, WHOLE).raw).raw)
        agree(span)
        span = field_of(2, LEN, span).raw
        assert depth < 5
    for number in (1, 3, 4, 99, 2**29 - 1):
        scope = field_of(number, LEN, WHOLE).raw + WHOLE
        agree(field_of(1, LEN, field_of(2, LEN, scope).raw).raw)
        agree(field_of(1, LEN, field_of(number, LEN, scope).raw + field_of(2, LEN, scope).raw).raw)
        agree(
            field_of(number, LEN, field_of(2, LEN, scope).raw).raw + field_of(1, LEN, field_of(2, LEN, scope).raw).raw
        )


@pytest.mark.parametrize("cut", [-3, -2, -1, 0, 1, 2, 3, 100])
def test_lengths_around_spans_that_do_not_add_up(cut: int) -> None:
    span = sent_request().SerializeToString()
    whole = field_of(2, LEN, span).raw
    own = b"\x12" + varint(len(span) + cut) + span
    for spans in (own, own + whole, whole + own, whole + own + whole):
        agree(field_of(1, LEN, field_of(2, LEN, spans).raw).raw)
        agree(field_of(1, LEN, field_of(2, LEN, spans).raw).raw + message_of(span))
    for scope_cut, resource_cut in ((0, cut), (cut, 0), (cut, cut)):
        scope = b"\x12" + varint(len(whole) * 2 + scope_cut) + whole * 2
        raw = b"\x0a" + varint(len(scope) + resource_cut) + scope
        agree(raw)
        agree(raw + message_of(span))


@pytest.mark.parametrize("room", [*range(60, 75), *range(16_290, 16_410, 7)])
def test_spans_on_both_sides_of_every_length_of_a_length(room: int) -> None:
    span = sent_request(attributes={semconv.SEGMENTS: 1})
    size = 0
    while len(span.SerializeToString()) < room + 60 and room > 1000:
        size += 1
        span.attributes.extend(attributes_of({f"{size}": "x" * 1000}))
    span.attributes.extend(attributes_of({"x": "x" * (room % 100)}))
    agree(export(span, sent_request()))


def test_lengths_of_two_bytes_where_one_is_read() -> None:
    # What another reading of the length would skip or take in is a field that says something.
    hidden = attribute_bytes(field_of(1, LEN, b"x").raw, field_of(2, LEN, field_of(3, VARINT, 1).raw).raw)
    unknown = field_of(14, LEN, b"y" * (131 - 4 - len(hidden) - 2)).raw
    inside = b"\x00abc" + hidden + unknown
    assert len(inside) == 131
    head, name, tail = sent_request().SerializeToString().partition(field_of(5, LEN, b"chat m").raw)
    for raw in (head + b"\x1a\x83" + inside + name + tail, head + b"\x2a\x83" + inside + tail):
        agree(message_of(raw))
    status = field_of(2, LEN, b"z" * 127).raw + field_of(3, VARINT, 2).raw
    head, _, tail = sent_request().SerializeToString().partition(b"\x7a\x00")
    agree(message_of(head + b"\x7a\x83" + status + tail))


@pytest.mark.parametrize("field", [7, 8])
def test_times_that_are_spelt_and_are_none(field: int) -> None:
    fields = parse_fields(sent_request().SerializeToString()) or ()
    zero = field_of(field, I64, bytes(8)).raw
    raw = b"".join(zero if one.number == field else one.raw for one in fields)
    assert agree(message_of(raw)) == 0


def test_a_span_that_is_too_short_for_its_form() -> None:
    raw = attribute_bytes(
        field_of(1, LEN, semconv.SEGMENTS.encode()).raw, field_of(2, LEN, field_of(3, VARINT, 1).raw).raw
    )
    for length in range(len(raw) + 1):
        agree(message_of(raw[:length]))


def test_limits_are_those_that_are_asked_for() -> None:
    raw = export(sent_request()).SerializeToString()
    for limits in (AttributeLimits(value_chars=size) for size in range(1, 15)):
        agree(raw, limits)
    for limits in (AttributeLimits(count=count) for count in range(1, 15)):
        agree(raw, limits)


@pytest.mark.parametrize("what", ODD_REQUEST)
def test_a_span_that_is_odd_is_read_the_same(what: str) -> None:
    span = sent_request(request=2)
    ODD_REQUEST[what](span)
    agree(export(span))
    assert agree(export(sent_request(request=1), span, span, sent_segment(1, 0), sent_request(request=3), span)) >= 2


@pytest.mark.parametrize("what", FORMS)
def test_what_a_request_span_may_have_besides_makes_no_other_form(what: str) -> None:
    span = sent_request()
    FORMS[what](span)
    assert agree(export(span)) == (what not in LEFT)
    agree(export(sent_segment(1, 0), span, sent_request(request=2)))


LEFT = ("a segment's number",)
