"""What is read of request spans out of the bytes is what protobuf reads of them: no more, no less, in the same order.

Many more mutations: `OTEL_LLM_CORE_EXAMPLES=50 OTEL_LLM_CORE_SEED=7 pytest tests/readers/test_plain_requests.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import inf, nan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from support.core_spans import SEED, TIMES_USUAL, as_sent, examples, sent_segment, told
from support.doors_mutations import field_of, mutate_bytes, mutate_fields, parse_fields, varint
from support.otlp import T0_NS, Value, attributes_of, export, nested, request_span, span_id, token

from otel_llm import semconv
from otel_llm.export.records import AttributeValue, Origin, Record, RequestRecord, Segment
from otel_llm.export.spans import readable
from otel_llm.export.wire import INT64_MAX, INT64_MIN, export_request
from otel_llm.readers import otlp, plain_requests
from otel_llm.readers.attributes import DEFAULT_LIMITS, MAX_KEY_CHARS, MAX_VALUE_CHARS, AttributeLimits
from otel_llm.readers.inference import read_request
from otel_llm.readers.plain_requests import SEGMENTS_KEY, PlainRequests
from otel_llm.readers.plain_segments import take
from otel_llm.readers.records import Batch, DecodeError, RequestSpan

LEN, VARINT, I64, I32 = 2, 0, 1, 5
ENDED_SCALARS: Mapping[str, str | int | float] = {
    semconv.GEN_AI_OPERATION_NAME: "chat",
    semconv.GEN_AI_REQUEST_MODEL: "m",
    semconv.MEASURED_AT: "client",
    "server.port": 8000,
    "gen_ai.response.id": "chatcmpl-1",
    semconv.GEN_AI_USAGE_INPUT_TOKENS: 300,
    semconv.GEN_AI_TIME_TO_FIRST_CHUNK: 0.25,
    semconv.EXACT_RESUME: True,
    semconv.OUTCOME: "completed",
    semconv.TOKENS: 512,
    semconv.SEGMENTS: 66,
}
ENDED: Mapping[str, Value] = {semconv.GEN_AI_RESPONSE_FINISH_REASONS: ["stop"], **ENDED_SCALARS}
"""What a request span of ours says."""


def sent_request(*, parent: int = 0, **said: object) -> Span:
    """Return a request span of ours as it is sent."""
    span = as_sent(request_span(**{"attributes": ENDED, **said}))  # type: ignore[arg-type]
    if parent:
        span.parent_span_id = span_id(parent)
    return span


def outcome(read: Callable[[], Batch]) -> object:
    """Return all that a batch says, told apart by type and order too, or that it is none."""
    try:
        batch = read()
    except DecodeError:
        return "no message"
    return told(batch), [repr(request) for request in batch.requests]


def taken(raw: bytes, limits: AttributeLimits = DEFAULT_LIMITS) -> list[RequestSpan]:
    return [request for request, _, _ in take([raw], few=1, limits=limits)[0].requests]


def agree(message: ExportTraceServiceRequest | bytes, limits: AttributeLimits = DEFAULT_LIMITS) -> int:
    """Check that both ways of reading say the same; return how many request spans were read out of the bytes."""
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    by_bytes = outcome(lambda: otlp.read(raw, few=1, limits=limits))
    by_protobuf = outcome(lambda: otlp.decode(otlp.parse(raw), limits=limits))
    assert by_bytes == by_protobuf, raw.hex()
    return len(taken(raw, limits))


def message_of(*spans: bytes) -> bytes:
    scope = b"".join(field_of(2, LEN, span).raw for span in spans)
    return field_of(1, LEN, field_of(2, LEN, scope).raw).raw


def bare(raw: bytes) -> bool:
    return take([raw], few=1)[0].bare


# What is read.


def records() -> Iterator[RequestRecord]:
    resource = Resource({"service.instance.id": "pod-1"})
    kinds = (SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.CLIENT)
    parents = (None, False, True)
    states = (TraceState(), TraceState([("vendor", "a=b"), ("other", "c")]))
    for number, (kind, remote, state, failure) in enumerate(product(kinds, parents, states, (None, "", "gone: ö")), 1):
        parent = None if remote is None else SpanContext(number, number + 1000, is_remote=remote)
        context = SpanContext(number, number, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
        said: dict[str, AttributeValue] = {
            **ENDED_SCALARS,
            semconv.GEN_AI_RESPONSE_FINISH_REASONS: ("stop",),
            semconv.TOKENS: 2**number % 2**31,
            "gen_ai.response.id": f"chatcmpl-{number}",
        }
        name, end_ns = f"chat {number}", T0_NS + number
        yield RequestRecord(context, parent, resource, name, T0_NS, end_ns, said, failure, kind)


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
    assert bare(raw)
    batch = otlp.read(raw, few=1)
    assert [request.name for request in batch.requests] == [record.name for record in made]
    assert {request.instance_id for request in batch.requests} == {"pod-1"}
    assert sum(request.error for request in batch.requests) == len(made) * 2 // 3
    assert batch.requests[0].attributes == {**ENDED_SCALARS, semconv.TOKENS: 2}


def test_request_spans_alone_are_read_too() -> None:
    raw = export(*[sent_request(request=number) for number in range(1, 5)]).SerializeToString()
    assert agree(raw) == 4
    assert len(take([raw], few=4)[0].requests) == 4
    assert not take([raw], few=5)[0].requests


def test_every_message_has_its_own_request_spans() -> None:
    raws = [
        export(*[sent_request(request=number) for number in numbers], *segments).SerializeToString()
        for numbers, segments in (
            ((1, 2), ()),
            ((), [sent_segment(1, 0)]),
            ((3,), [sent_segment(2, 0)]),
            ((), ()),
            ((4,), ()),
        )
    ]
    found = take(raws, few=1)
    assert [[int.from_bytes(request.trace_id) for request, _, _ in one.requests] for one in found] == [
        *([1, 2], [], [3], [], [4]),
    ]
    assert [0 if one.plain is None else len(one.plain) for one in found] == [0, 1, 1, 0, 0]


def test_the_time_of_receipt_is_set() -> None:
    (one,) = take([export(sent_request()).SerializeToString()], few=1)
    assert [request.receipt_ns for request in otlp.whole(one, 17).requests] == [17]
    mixed = export(sent_request(request=1), request_span(request=2), sent_request(request=3)).SerializeToString()
    assert [request.receipt_ns for request in otlp.whole(take([mixed], few=1)[0], 17).requests] == [17] * 3


def test_a_request_span_has_attributes_of_its_own() -> None:
    raw = export(sent_request(request=1), sent_request(request=2)).SerializeToString()
    first, second = taken(raw)
    first.attributes["x"] = 1
    assert "x" not in second.attributes
    assert "x" not in taken(raw)[0].attributes


# Where they stand.


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
    def resource(**said: Value) -> bytes:
        attributes = attributes_of({key.replace("_", "."): value for key, value in said.items()})
        return field_of(1, LEN, b"".join(field_of(1, LEN, one.SerializeToString()).raw for one in attributes)).raw

    scope = field_of(2, LEN, field_of(2, LEN, sent_request().SerializeToString()).raw).raw
    other, one, two = resource(a="b"), resource(service_instance_id="one"), resource(service_instance_id="two")
    for parts in ((scope, one), (other, scope, one), (one, scope, two), (scope,), (two, scope, scope), (scope, other)):
        alone = field_of(1, LEN, b"".join(parts)).raw
        assert agree(alone) >= 1
        assert agree(alone + field_of(1, LEN, two + scope).raw + message_of()) >= 2
    names = [request.instance_id for request in otlp.read(field_of(1, LEN, scope + one + scope).raw, few=1).requests]
    assert names == ["one", "one"]


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
            assert bare(raw)
            assert agree(raw) == 1
            with pytest.raises(DecodeError):
                otlp.read(raw, few=1)


def test_a_long_resource_is_read_with_its_message() -> None:
    message = export(sent_request(), resource={"long": "x" * 5000, semconv.SERVICE_INSTANCE_ID: "far"})
    remembered = otlp._senders.cache_info().currsize
    assert agree(message) == 1
    assert otlp._senders.cache_info().currsize == remembered
    assert otlp.read(message.SerializeToString(), few=1).requests[0].instance_id == "far"


def test_a_message_of_too_many_spans_is_refused_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_MUCH_BYTES", 0)
    raw = export(*[sent_request(request=number) for number in range(1, 6)]).SerializeToString()
    for most in range(2, 12):
        monkeypatch.setattr(otlp, "MOST_PARTS", most)
        found = [outcome(lambda few=few: otlp.read(raw, few=few)) for few in (1, 1000)]  # type: ignore[misc]
        assert found[0] == found[1]
        assert (found[0] == "no message") == (most < 9)  # a resource and what is in it, a scope and its five spans


# What is left to protobuf.

ODD: dict[str, Callable[[Span], object]] = {
    "an event": lambda span: span.events.add(name="exception"),
    "token events": lambda span: span.events.add(name=semconv.TOKEN_EVENT, time_unix_nano=T0_NS),
    "a link": lambda span: span.links.add(),
    "dropped attributes": lambda span: setattr(span, "dropped_attributes_count", 1),
    "dropped events": lambda span: setattr(span, "dropped_events_count", 1),
    "dropped links": lambda span: setattr(span, "dropped_links_count", 1),
    "no kind": lambda span: span.ClearField("kind"),
    "a segment's name": lambda span: setattr(span, "name", semconv.SEGMENT_SPAN),
    "no name": lambda span: span.ClearField("name"),
    "a long name": lambda span: setattr(span, "name", "x" * 2000),
    "an unknown status": lambda span: setattr(span.status, "code", 7),
    "no trace id": lambda span: span.ClearField("trace_id"),
    "a trace id of zeros": lambda span: setattr(span, "trace_id", bytes(16)),
    "a short trace id": lambda span: setattr(span, "trace_id", b"abc"),
    "no span id": lambda span: span.ClearField("span_id"),
    "a span id of zeros": lambda span: setattr(span, "span_id", bytes(8)),
    "a long parent": lambda span: setattr(span, "parent_span_id", b"123456789"),
    "no start": lambda span: setattr(span, "start_time_unix_nano", 0),
    "no end": lambda span: setattr(span, "end_time_unix_nano", 0),
    "an end before the start": lambda span: setattr(span, "end_time_unix_nano", T0_NS - 1),
    "an end beyond 63 bits": lambda span: setattr(span, "end_time_unix_nano", 2**63),
    "an end beyond what can be": lambda span: setattr(span, "end_time_unix_nano", 2**62),
    "no attributes": lambda span: span.ClearField("attributes"),
    "no segments": lambda span: span.attributes.pop(),
    "segments that are none": lambda span: setattr(span.attributes[-1].value, "int_value", -1),
    "segments that are a list": lambda span: span.attributes[-1].value.array_value.SetInParent(),
    "segments in a text": lambda span: span.attributes[-1].MergeFrom(attributes_of({"x": SEGMENTS_KEY.decode()})[0]),
    "segments in a text of others": lambda span: span.attributes[-1].MergeFrom(
        attributes_of({"llm.model_name": SEGMENTS_KEY.decode()})[0]
    ),
    "a long list": lambda span: span.attributes.extend(attributes_of({"x": ["y" * 1000] * 3})),
    "segments that are a text": lambda span: setattr(span.attributes[-1].value, "string_value", "66"),
    "an unknown outcome": lambda span: span.attributes.extend(attributes_of({semconv.OUTCOME: "perhaps"})),
    "a long text": lambda span: span.attributes.extend(attributes_of({"x": "y" * (MAX_VALUE_CHARS + 1)})),
    "a longer text": lambda span: span.attributes.extend(attributes_of({"x": "y" * 17_000})),
    "a long key": lambda span: span.attributes.extend(attributes_of({"x" * (MAX_KEY_CHARS + 1): 1})),
    "no number": lambda span: span.attributes.extend(attributes_of({"x": nan})),
    "no finite number": lambda span: span.attributes.extend(attributes_of({"x": -inf})),
    "too many attributes": lambda span: span.attributes.extend(attributes_of({f"{n}": n for n in range(130)})),
}


@pytest.mark.parametrize("what", ODD)
def test_a_span_of_another_form_is_left_to_protobuf(what: str) -> None:
    span = sent_request(request=2)
    ODD[what](span)
    assert agree(export(span)) == 0
    assert agree(export(sent_request(request=1), span, span, sent_segment(1, 0), sent_request(request=3), span)) == 2


FORMS: dict[str, Callable[[Span], object]] = {
    "a parent": lambda span: setattr(span, "parent_span_id", b"12345678"),
    "a parent of zeros": lambda span: setattr(span, "parent_span_id", bytes(8)),
    "a trace state": lambda span: setattr(span, "trace_state", "a=b,c=ö"),
    "no status": lambda span: span.ClearField("status"),
    "no flags": lambda span: span.ClearField("flags"),
    "a status that is well": lambda span: setattr(span.status, "code", 1),
    "a failure": lambda span: setattr(span.status, "code", 2),
    "a failure and why": lambda span: span.status.MergeFrom(Status(code=Status.STATUS_CODE_ERROR, message="gone: ö")),
    "a message without a failure": lambda span: setattr(span.status, "message", "x"),
    "a kind nobody knows": lambda span: setattr(span, "kind", 99),
    "letters of two bytes in its name": lambda span: setattr(span, "name", "ö" * 60),
    "an end at its start": lambda span: setattr(span, "end_time_unix_nano", T0_NS),
    "the last time there is": lambda span: setattr(span, "end_time_unix_nano", 2**62 - 1),
    "a text of some length": lambda span: span.attributes.extend(attributes_of({"x": "y" * MAX_VALUE_CHARS})),
    "a key of some length": lambda span: span.attributes.extend(attributes_of({"x" * MAX_KEY_CHARS: 1})),
    "the same attribute twice": lambda span: span.attributes.extend(attributes_of({semconv.SEGMENTS: 67})),
    "an attribute before": lambda span: span.attributes.insert(0, attributes_of({"x": -1})[0]),
    "a segment's number": lambda span: span.attributes.extend(attributes_of({semconv.SEGMENT_SEQ: 3})),
    "two lists": lambda span: span.attributes.extend(attributes_of({"x": ["a", "b"], "y": []})),
    "bytes": lambda span: span.attributes.extend(attributes_of({"x": b"\xff"})),
}


@pytest.mark.parametrize("what", FORMS)
def test_what_makes_no_other_form(what: str) -> None:
    span = sent_request()
    FORMS[what](span)
    assert agree(export(span)) == 1
    assert agree(export(sent_segment(1, 0), span, sent_request(request=2))) == 2


VALUES: tuple[Value, ...] = (
    *("", "x", "é", "漢字🙂", "\x00", "x" * 100, "x" * 109, "x" * 110, "x" * 111, "x" * 128, "é" * 1024, "x" * 1025),
    *(0, 1, 127, 128, 2**14 - 1, 2**14, 2**31 - 1, 2**31, 2**56, 2**62, INT64_MAX, -1, INT64_MIN),
    *(True, False, 0.0, -0.0, 0.5, -1.5, 1e308, inf, -inf, nan, b"", b"\xff", ["stop"], [], ["a", ""]),
)
KEYS = (
    *("x", "", "é", "k" * 127, "k" * 128, "k" * MAX_KEY_CHARS, "k" * 257),
    *(semconv.SEGMENTS, semconv.TOKENS, semconv.OUTCOME, semconv.TOKEN_BASIS, semconv.MEASURED_AT, semconv.INSTANCE),
    *(semconv.EXACT_RESUME, semconv.GEN_AI_TIME_TO_FIRST_CHUNK, semconv.GEN_AI_REQUEST_MODEL, semconv.CHOICE),
    *(semconv.SEGMENT_SEQ, semconv.GEN_AI_RESPONSE_FINISH_REASONS, semconv.GEN_AI_OPERATION_NAME),
)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_with_every_value(key: str) -> None:
    found = Counter[int]()
    for value in VALUES:
        span = sent_request()
        span.attributes.extend(attributes_of({key: value}))
        found[agree(export(span))] += 1
        span.attributes.insert(0, span.attributes.pop())
        agree(export(span, span))
    assert found[1]  # some are read, or nothing was tried


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


def overlong(digits: bytes, more: int) -> bytes:
    for _ in range(more):
        digits = digits[:-1] + bytes((digits[-1] | 128, 0))
    return digits


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
        assert agree(message_of(raw)) == 0
    status = field_of(2, LEN, b"z" * 127).raw + field_of(3, VARINT, 2).raw
    head, _, tail = sent_request().SerializeToString().partition(b"\x7a\x00")
    assert agree(message_of(head + b"\x7a\x83" + status + tail)) == 0


def test_a_length_of_three_bytes_is_no_shorter_one() -> None:
    # Its third byte is the tag of a trace id.
    span = sent_request()
    while (room := 16_384 - len(span.SerializeToString())) > 0:
        span.attributes.insert(0, attributes_of({"k": "x" * max(1, min(100, room - 9))})[0])
    held = span.SerializeToString()
    size = len(held)
    assert 16_384 <= size < 16_384 + 128
    raw = b"\x12" + bytes((size & 127 | 128, 128)) + held
    assert PlainRequests(DEFAULT_LIMITS).read(raw, 0, len(raw)) is None


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


# Limits, and what is remembered.


def test_limits_are_those_that_are_asked_for() -> None:
    raw = export(sent_request()).SerializeToString()
    kept = len(taken(raw)[0].attributes)
    for limits in (AttributeLimits(value_chars=size) for size in range(1, 15)):
        assert agree(raw, limits) == (limits.value_chars >= len("chatcmpl-1"))
    for limits in (AttributeLimits(count=count) for count in range(1, kept + 3)):
        assert agree(raw, limits) == (limits.count > kept)
    assert agree(raw) == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_requests, "_REMEMBERED", 20)
    reader = PlainRequests(DEFAULT_LIMITS)
    for number in range(1, 100):
        span = sent_request(attributes={**ENDED, "gen_ai.response.id": f"{number}", "long": "x" * (100 + number)})
        raw = field_of(2, LEN, span.SerializeToString()).raw
        found = reader.read(raw, 0, len(raw))
        assert found == (read_request(span, Batch(), 10, None, None), len(raw))
        assert len(reader._known) <= 20
        assert max(map(len, reader._known)) < 130


def test_a_span_of_many_attributes_that_are_slow_to_read_is_left_to_protobuf_once() -> None:
    reader = PlainRequests(DEFAULT_LIMITS)
    raw = field_of(
        2, LEN, sent_request(attributes={**ENDED, **{f"{n}": [f"{n}"] for n in range(9)}}).SerializeToString()
    ).raw
    found = [reader.read(raw, 0, len(raw)) is not None for _ in range(4)]
    assert found == [False, False, True, True]


# Messages of any shape, and what becomes of them on the way.

texts = st.text(st.characters(codec="utf-8"), max_size=30)
values: st.SearchStrategy[Value] = st.one_of(
    texts,
    st.integers(INT64_MIN, INT64_MAX),
    st.floats(),
    st.booleans(),
    st.binary(max_size=9),
    st.lists(texts, max_size=3),
) | st.sampled_from(VALUES)
pairs = st.tuples(st.sampled_from(KEYS) | texts, values)


@st.composite
def request_spans(draw: st.DrawFn) -> Span:
    span = sent_request(request=draw(st.integers(1, 5)), parent=draw(st.integers(0, 2)), name=draw(texts))
    for key, value in draw(st.lists(pairs, max_size=6)):
        place = draw(st.integers(0, len(span.attributes)))
        span.attributes.insert(place, attributes_of({key: value})[0])
    span.flags = draw(st.sampled_from([0x101, 0x301, 0, 1, 2**32 - 1]))
    for forms in (FORMS, ODD):
        if not draw(st.integers(0, 3)):
            forms[
                draw(st.sampled_from([name for name in forms if name not in ("no segments", "segments that are none")]))
            ](span)
    return span


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    message = ExportTraceServiceRequest()
    others = st.sampled_from([request_span(), Span(name="GET"), sent_segment(1, 0), sent_segment(0, 0), Span()])
    for number in range(draw(st.integers(1, 3))):
        resource_spans = message.resource_spans.add(schema_url=draw(st.sampled_from(["", "u"])))
        if draw(st.booleans()):
            names: st.SearchStrategy[Value] = st.sampled_from([f"pod-{number}", "", 7])
            resource_spans.resource.attributes.extend(attributes_of({semconv.SERVICE_INSTANCE_ID: draw(names)}))
        for _ in range(draw(st.integers(0, 2))):
            scope_spans = resource_spans.scope_spans.add(schema_url=draw(st.sampled_from(["", "u"])))
            scope_spans.spans.extend(draw(st.lists(request_spans() | others, max_size=5)))
    return message.SerializeToString()


@settings(max_examples=examples(300))
@given(messages())
def test_messages_of_any_shape_are_read_the_same(raw: bytes) -> None:
    agree(raw)


@settings(max_examples=examples(300))
@given(messages(), st.randoms(use_true_random=False))
def test_mutations_are_read_the_same(raw: bytes, random: Random) -> None:
    agree(mutate_bytes(raw, random))
    agree(mutate_fields(raw, random))


def random_message(random: Random) -> bytes:
    spans: list[Span] = []
    for number in range(1, random.randint(2, 5)):
        said: dict[str, Value] = dict(ENDED)
        for _ in range(random.randint(0, 3)):
            said[random.choice(KEYS)] = random.choice(VALUES)
        spans.append(sent_request(request=number, parent=random.randint(0, 1), attributes=said))
        for forms in (FORMS, ODD):
            if random.random() < 0.15:
                forms[random.choice([name for name in forms if "segments" not in name])](spans[-1])
        if random.random() < 0.2:
            spans.append(random.choice((request_span(), sent_segment(1, 0), sent_segment(0, 0), Span(name="GET"))))
    return export(*spans, resource={semconv.SERVICE_INSTANCE_ID: "a"}).SerializeToString()


def test_ten_thousand_mutations_are_read_the_same() -> None:
    random = Random(SEED)
    found = 0
    for _ in range(round(400 * TIMES_USUAL)):
        whole, other = random_message(random), random_message(random)
        for _ in range(25):
            match random.randrange(5):
                case 0:
                    raw = mutate_fields(whole, random)
                case 1:
                    at, begin = random.randrange(len(whole) + 1), random.randrange(len(other) + 1)
                    raw = whole[:at] + other[begin : begin + random.randrange(200)] + whole[at:]
                case 2:
                    raw = whole[: random.randrange(len(whole))]
                case 3:
                    flipped = bytearray(whole)
                    flipped[random.randrange(len(whole))] ^= 1 << random.randrange(8)
                    raw = bytes(flipped)
                case _:
                    raw = mutate_bytes(whole, random)
            found += agree(raw) + agree(raw + other)
    assert found > 4000 * TIMES_USUAL  # or nothing was tried


def test_messages_that_are_read_together_are_read_as_each_alone() -> None:
    random = Random(SEED)
    for _ in range(round(300 * TIMES_USUAL)):
        raws = [random_message(random) for _ in range(random.randint(2, 5))]
        raws = [mutate_bytes(raw, random) if random.random() < 0.3 else raw for raw in raws]
        raws = [raw[: random.randint(0, len(raw))] if random.random() < 0.2 else raw for raw in raws]
        for raw, found in zip(raws, otlp.read_all(raws, few=1), strict=True):
            alone = outcome(lambda raw=raw: otlp.decode(otlp.parse(raw)))  # type: ignore[misc]
            together = "no message" if isinstance(found, DecodeError) else outcome(lambda found=found: found)  # type: ignore[misc]
            assert together == alone, [r.hex() for r in raws]


def test_every_cut_and_every_flip_of_one_bit_of_a_message() -> None:
    failed = sent_request(request=2, parent=1, attributes={semconv.SEGMENTS: 3, "x": ["a"], "y": 1.5, "z": -1})
    failed.trace_state = "a=b"
    failed.status.code = Status.STATUS_CODE_ERROR
    failed.status.message = "why"
    raw = bytearray(export(failed, sent_segment(1, 0), resource={semconv.SERVICE_INSTANCE_ID: "a"}).SerializeToString())
    assert agree(bytes(raw)) == 1
    for at in range(len(raw)):
        agree(bytes(raw[:at]))
        for bit in range(8):
            raw[at] ^= 1 << bit
            agree(bytes(raw))
            raw[at] ^= 1 << bit
