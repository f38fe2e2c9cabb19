"""What is read of a message as columns, together with the rest, is what protobuf reads of it: no more, no less.

Many more mutations: `OTEL_LLM_CORE_EXAMPLES=50 OTEL_LLM_CORE_SEED=7 pytest tests/readers/test_plain_segments.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, TraceFlags
from support.core_spans import REMOTE, SEED, TIMES_USUAL, as_sent, both_ways, examples, sent_segment, told
from support.doors_mutations import Field, field_of, mutate_bytes, mutate_fields, parse_fields, varint
from support.otlp import (
    IDENTITY,
    T0_NS,
    Event,
    Value,
    attributes_of,
    event_of,
    export,
    nested,
    request_span,
    segment_span,
    token,
)

from otel_llm import semconv
from otel_llm.export.records import Origin, Segment, mark
from otel_llm.export.wire import export_request
from otel_llm.readers import plain_segments
from otel_llm.readers.attributes import AttributeLimits
from otel_llm.readers.otlp import read_all
from otel_llm.readers.plain_segments import PlainSegments, Taken, joined, take
from otel_llm.readers.records import DecodeError
from otel_llm.slo.classes import KINDS

MS = 1_000_000
END_NS = T0_NS + 1_000 * MS
KIND_WORDS = (None, *KINDS[1:])
LEN, VARINT, I64, I32 = 2, 0, 1, 5


def agree(message: ExportTraceServiceRequest | bytes) -> PlainSegments | None:
    """Check that both ways of reading say the same; return what was read as columns."""
    raw = message if isinstance(message, bytes) else message.SerializeToString()
    columns, alone, plain = both_ways(raw)
    assert columns == alone, raw.hex()
    return plain


def count(plain: PlainSegments | None) -> int:
    return 0 if plain is None else len(plain)


def ticks(number: int) -> list[Event]:
    return [T0_NS + i * MS for i in range(number)]


# What is taken.


def test_what_our_encoder_sends_of_the_middle_of_a_stream_is_taken_whole() -> None:
    resource = Resource({"service.instance.id": "pod-1"})
    segments = []
    for number in range(20):
        parent = SpanContext(number + 1, number + 1, is_remote=number % 2 == 1, trace_flags=TraceFlags(1))
        times = [T0_NS + i * MS for i in range(number)]
        marks = None if number % 3 == 0 else [mark(number % 3, 1)] * number
        attributes = {semconv.SEGMENT_SEQ: 1 + number * 50, semconv.SEGMENT_FIRST_TOKEN: number * 40_000}
        segments.append(Segment(Origin(parent, resource), number + 7, T0_NS, END_NS, times, marks, attributes))
    raw = export_request(segments)
    plain = agree(raw)
    assert plain is not None
    assert len(plain) == len(segments)
    assert plain.seq.tolist() == [1 + number * 50 for number in range(20)]
    assert np.diff(plain.offsets).tolist() == list(range(20))
    assert plain.keys[3] == (4).to_bytes(16, "big") + (4).to_bytes(8, "big")


def test_fewer_than_asked_for_are_left_to_protobuf() -> None:
    raw = export(*[sent_segment(seq, 0) for seq in (1, 2, 3)]).SerializeToString()
    assert take([raw], few=4) == [Taken(None, (), raw)]
    assert [count(one.plain) for one in take([raw], few=3)] == [3]
    assert [count(one.plain) for one in take([raw, raw], few=6)] == [3, 3]


def test_nothing_is_taken_of_no_bytes() -> None:
    assert take([b"", b""], few=1) == [Taken(None, (), b""), Taken(None, (), b"")]


def test_what_is_taken_apart_and_joined_again_is_as_before() -> None:
    raws = [
        export(*[sent_segment(seq, seq, ticks(seq), end_ns=END_NS, request=at) for seq in range(1, 1 + at)])
        for at in range(1, 6)
    ]
    parts = [one.plain for one in take([raw.SerializeToString() for raw in raws], few=1) if one.plain is not None]
    assert list(map(len, parts)) == [1, 2, 3, 4, 5]
    for chosen in (parts, parts[1:4], parts[::-1], [parts[0], parts[2]], [parts[0], parts[1].part(1, 2)]):
        whole = joined(chosen)
        copied = joined([one.only(np.ones(len(one), dtype=bool)) for one in chosen])
        assert whole.keys == copied.keys == [key for one in chosen for key in one.keys]
        for name in ("seq", "first_token", "start_ns", "end_ns", "kind", "offsets", "times_ns"):
            assert getattr(whole, name).tolist() == getattr(copied, name).tolist()
    assert joined(parts[1:4]).seq.base is not None  # a view


@pytest.mark.parametrize("stars", [100, 20_000])
def test_a_message_full_of_what_names_begin_with_is_read_the_same(stars: int) -> None:
    segments = [sent_segment(seq, seq, ticks(3), end_ns=END_NS) for seq in range(1, 7)]
    segments[2] = sent_segment(0, 0, attributes={"note": "*" * stars})
    around = [*segments, segment_span(9, 9, attributes={"other": "*" * stars})]
    plain = agree(export(*around))
    assert count(plain) == 5


def test_only_keeps_those_that_are_chosen() -> None:
    raw = export(*[sent_segment(seq, seq, ticks(seq), end_ns=END_NS) for seq in range(1, 7)]).SerializeToString()
    ((plain, *_),) = take([raw], few=1)
    assert plain is not None
    even = plain.only(plain.seq % 2 == 0)
    assert even.seq.tolist() == [2, 4, 6]
    assert np.diff(even.offsets).tolist() == [2, 4, 6]
    assert even.times_ns.tolist() == [*ticks(2), *ticks(4), *ticks(6)]
    assert even.keys == plain.keys[1::2]


# Lengths and numbers.

EDGES = (0, 1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1)
"""The first and the last number of each length of a varint, as far as they are read as columns."""


LENGTHS = (range(150, 170), range(2**14 - 30, 2**14 + 6), range(2**21 - 30, 2**21 + 6))
"""Lengths of spans, the shortest and those around which the length of a length changes."""


def test_spans_on_both_sides_of_every_length_of_a_length() -> None:
    seen: set[tuple[int, int]] = set()
    for kind in KIND_WORDS:
        event = event_of(token(T0_NS, kind=kind)).SerializeToString()
        event = field_of(11, LEN, event).raw
        for length, seq, first in product(chain(*LENGTHS), EDGES[1::2], EDGES[::2]):
            room = length - len(segment_bytes(varint(seq), varint(first)))
            if room >= 0 and room % len(event) == 0 and (length, room) not in seen:
                seen.add((length, room))
                span = segment_bytes(varint(seq), varint(first), event * (room // len(event)))
                assert count(agree(message_of(span, segment_bytes()))) == 1 + (length < 2**21)
    lengths = {length for length, _ in seen}
    assert {150, 2**14, 2**21} <= lengths
    assert lengths & set(range(2**14 - 30, 2**14))
    assert lengths & set(range(2**21 - 30, 2**21))


@pytest.mark.parametrize("seq", [*EDGES, 2**28, 2**31 - 1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("first", [*EDGES, 2**28, 2**31 - 1, 2**31])
def test_numbers_of_any_length(seq: int, first: int) -> None:
    taken = count(agree(export(sent_segment(seq, first, ticks(2), end_ns=END_NS))))
    assert taken == (0 < seq < 2**28 and first < 2**28)


def number_attribute(key: str, digits: bytes) -> bytes:
    """Return an int attribute whose varint is spelt so, as a field of a span."""
    name = field_of(1, LEN, key.encode()).raw
    value = field_of(2, LEN, varint(3 << 3) + digits).raw
    return field_of(9, LEN, name + value).raw


def _set_all(span: Span, names: Sequence[str], value: int) -> None:
    for name in names:
        setattr(span, name, value)


def _mark_all(span: Span, attributes: Mapping[str, Value]) -> None:
    for event in span.events:
        event.attributes.extend(attributes_of(attributes))


def segment_bytes(
    seq: bytes = b"\x01", first: bytes = b"\x00", events: bytes = b"", tail: bytes | None = None
) -> bytes:
    """Return a plain segment span, its numbers spelt so."""
    parts = [
        field_of(1, LEN, bytes(15) + b"\x01").raw,
        field_of(2, LEN, b"spanspan").raw,
        field_of(4, LEN, bytes(7) + b"\x01").raw,
        field_of(5, LEN, semconv.SEGMENT_SPAN.encode()).raw,
        field_of(6, VARINT, 1).raw,
        field_of(7, I64, T0_NS.to_bytes(8, "little")).raw,
        field_of(8, I64, END_NS.to_bytes(8, "little")).raw,
        number_attribute(semconv.SEGMENT_SEQ, seq),
        number_attribute(semconv.SEGMENT_FIRST_TOKEN, first),
        events,
        field_of(15, LEN, b"").raw + field_of(16, I32, b"\x01\x01\x00\x00").raw if tail is None else tail,
    ]
    return b"".join(parts)


def message_of(*spans: bytes) -> bytes:
    scope = b"".join(field_of(2, LEN, span).raw for span in spans)
    return field_of(1, LEN, field_of(2, LEN, scope).raw).raw


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**21 - 1, 2**28 - 1])
@pytest.mark.parametrize("more", range(11))
def test_numbers_spelt_with_more_digits_than_they_need(number: int, more: int) -> None:
    digits = varint(number)
    for _ in range(more):
        digits = digits[:-1] + bytes((digits[-1] | 128, 0))
    for raw in (segment_bytes(seq=digits), segment_bytes(first=digits), segment_bytes(digits, digits)):
        agree(message_of(raw, segment_bytes()))


def overlong(digits: bytes, more: int) -> bytes:
    for _ in range(more):
        digits = digits[:-1] + bytes((digits[-1] | 128, 0))
    return digits


@pytest.mark.parametrize("more", range(11))
def test_lengths_and_tags_spelt_with_more_digits_than_they_need(more: int) -> None:
    span = segment_bytes()
    for long_tag in (False, True):
        tag, length = overlong(b"\x12", more * long_tag), overlong(varint(len(span)), more * (not long_tag))
        field = tag + length + span
        agree(field_of(1, LEN, field_of(2, LEN, field).raw).raw)
        scope = field_of(2, LEN, span).raw
        tag, length = overlong(b"\x12", more * long_tag), overlong(varint(len(scope)), more * (not long_tag))
        agree(field_of(1, LEN, tag + length + scope).raw)
        scopes = field_of(2, LEN, scope).raw
        tag, length = overlong(b"\x0a", more * long_tag), overlong(varint(len(scopes)), more * (not long_tag))
        agree(tag + length + scopes)


# What is none of it.


def changed(change: Callable[[Span], object]) -> Span:
    span = sent_segment(2, 5, ticks(6), end_ns=END_NS)
    change(span)
    return span


ODD: dict[str, Callable[[Span], object]] = {
    "a trace state": lambda span: setattr(span, "trace_state", "a=b"),
    "no status": lambda span: span.ClearField("status"),
    "a status that says something": lambda span: setattr(span.status, "code", 2),
    "a status message": lambda span: setattr(span.status, "message", "x"),
    "no flags": lambda span: span.ClearField("flags"),
    "a link": lambda span: span.links.add(),
    "dropped attributes": lambda span: setattr(span, "dropped_attributes_count", 1),
    "dropped events": lambda span: setattr(span, "dropped_events_count", 1),
    "another kind": lambda span: setattr(span, "kind", Span.SPAN_KIND_CLIENT),
    "no kind": lambda span: span.ClearField("kind"),
    "a name that goes on": lambda span: setattr(span, "name", semconv.SEGMENT_SPAN + "s"),
    "a third attribute": lambda span: span.attributes.extend(attributes_of({semconv.OUTCOME: "completed"})),
    "a choice": lambda span: span.attributes.extend(attributes_of({semconv.CHOICE: 1})),
    "an attribute before": lambda span: span.attributes.insert(0, attributes_of({"x": 1})[0]),
    "the same number twice": lambda span: span.attributes.extend(attributes_of({semconv.SEGMENT_SEQ: 9})),
    "numbers the other way round": lambda span: span.attributes.reverse(),
    "only one number": lambda span: span.attributes.pop(),
    "a number that is a text": lambda span: setattr(span.attributes[0].value, "string_value", "2"),
    "a number that is nothing": lambda span: span.attributes[0].ClearField("value"),
    "a negative number": lambda span: setattr(span.attributes[0].value, "int_value", -1),
    "no trace id": lambda span: setattr(span, "trace_id", bytes(16)),
    "a short trace id": lambda span: setattr(span, "trace_id", b"abc"),
    "no parent": lambda span: setattr(span, "parent_span_id", bytes(8)),
    "a long parent": lambda span: setattr(span, "parent_span_id", bytes(7) + b"\1\1"),
    "no span id": lambda span: span.ClearField("span_id"),
    "no start": lambda span: setattr(span, "start_time_unix_nano", 0),
    "no end": lambda span: setattr(span, "end_time_unix_nano", 0),
    "an end before the start": lambda span: setattr(span, "end_time_unix_nano", T0_NS - 1),
    "an end beyond 63 bits": lambda span: setattr(span, "end_time_unix_nano", 2**63),
    "times beyond 63 bits": lambda span: _set_all(span, ("start_time_unix_nano", "end_time_unix_nano"), 2**64 - 1),
    "a token after the end": lambda span: setattr(span.events[3], "time_unix_nano", END_NS + 1),
    "a token without a time": lambda span: setattr(span.events[3], "time_unix_nano", 0),
    "a token beyond 63 bits": lambda span: setattr(span.events[3], "time_unix_nano", 2**63),
    "a token of several": lambda span: span.events[3].attributes.extend(attributes_of({semconv.TOKEN_COUNT: 3})),
    "a token of no number": lambda span: span.events[3].attributes.extend(attributes_of({semconv.TOKEN_COUNT: 0})),
    "a token of another kind": lambda span: span.events[3].attributes.extend(
        attributes_of({semconv.TOKEN_KIND: "tool"})
    ),
    "tokens of an unknown kind": lambda span: _mark_all(span, {semconv.TOKEN_KIND: "thought"}),
    "another event": lambda span: setattr(span.events[3], "name", "tokem"),
    "an event with dropped attributes": lambda span: setattr(span.events[5], "dropped_attributes_count", 1),
}


@pytest.mark.parametrize("what", ODD)
def test_a_span_of_another_form_is_left_to_protobuf(what: str) -> None:
    span = changed(ODD[what])
    assert agree(export(span)) is None
    around = [sent_segment(1, 0, ticks(3), end_ns=END_NS), span, sent_segment(3, 0), span, span, sent_segment(4, 0)]
    assert count(agree(export(*around))) == 3


@pytest.mark.parametrize("what", ["tokens in no order", "tokens before the start", "a remote parent", "no tokens"])
def test_what_makes_no_other_form(what: str) -> None:
    span = sent_segment(2, 5, ticks(6), end_ns=END_NS)
    match what:
        case "tokens in no order":
            span.events[2].time_unix_nano = span.events[5].time_unix_nano = T0_NS
        case "tokens before the start":
            span.events[0].time_unix_nano = 1
        case "a remote parent":
            as_sent(span, REMOTE)
        case "no tokens":
            del span.events[:]
    assert count(agree(export(span))) == 1


def test_a_span_after_its_last_field_or_with_fields_in_another_order_is_read_the_same() -> None:
    fields = parse_fields(segment_bytes(events=field_of(11, LEN, b"").raw)) or ()
    for at in range(len(fields)):
        for field in (*fields, field_of(1001, LEN, b"xyz"), field_of(3, LEN, b"a=b"), field_of(16, I32, b"abcd")):
            moved = (*fields[:at], field, *fields[at:])
            agree(message_of(b"".join(one.raw for one in moved), segment_bytes()))
            swapped = (*fields[:at], field, *fields[at + 1 :])
            agree(message_of(b"".join(one.raw for one in swapped), segment_bytes()))


# Bytes that look like spans and are none.

WHOLE = field_of(2, LEN, segment_bytes()).raw


def test_a_span_within_anything_else_is_not_taken() -> None:
    message = export(sent_segment(1, 0), request_span(attributes={**IDENTITY, "blob": WHOLE}))
    resource_spans = message.resource_spans[0]
    resource_spans.resource.attributes.extend(attributes_of({"blob": WHOLE * 3}))
    scope_spans = resource_spans.scope_spans[0]
    scope_spans.scope.attributes.extend(attributes_of({"blob": WHOLE}))
    scope_spans.spans[1].events.add(name="e", attributes=attributes_of({"blob": WHOLE}))
    scope_spans.spans[1].links.add(trace_id=WHOLE)
    scope_spans.spans[1].trace_state = ""
    odd = sent_segment(2, 1, attributes={"blob": WHOLE})
    scope_spans.spans.extend([odd, sent_segment(3, 1)])
    assert count(agree(message)) >= 1  # one that stands right behind such bytes is read alone


@pytest.mark.parametrize("number", [1, 3, 4, 99, 2**29 - 1])
def test_a_span_in_a_field_of_another_number_is_not_taken(number: int) -> None:
    scope = field_of(number, LEN, WHOLE).raw + field_of(2, LEN, segment_bytes()).raw
    agree(field_of(1, LEN, field_of(2, LEN, scope).raw).raw)
    agree(field_of(1, LEN, field_of(number, LEN, scope).raw + field_of(2, LEN, scope).raw).raw)
    agree(field_of(number, LEN, field_of(2, LEN, scope).raw).raw + field_of(1, LEN, field_of(2, LEN, scope).raw).raw)


@pytest.mark.parametrize("depth", range(5))
def test_a_span_one_level_too_high_or_too_deep_is_not_taken(depth: int) -> None:
    raw = segment_bytes()
    for _ in range(depth):
        raw = field_of(2, LEN, raw).raw
    agree(field_of(1, LEN, raw).raw)
    agree(field_of(1, LEN, raw + field_of(2, LEN, WHOLE).raw).raw)
    agree(raw)


@pytest.mark.parametrize("cut", [-3, -2, -1, 0, 1, 2, 3, 100])
def test_lengths_around_spans_that_do_not_add_up(cut: int) -> None:
    spans = WHOLE * 4
    for short_of in ("scope", "resource", "both"):
        scope_cut, resource_cut = (0 if short_of == "resource" else cut), (0 if short_of == "scope" else cut)
        scope = b"\x12" + varint(len(spans) + scope_cut) + spans
        agree(b"\x0a" + varint(len(scope) + resource_cut) + scope)
        agree(b"\x0a" + varint(len(scope) + resource_cut) + scope + message_of(segment_bytes()))


def test_a_scope_that_ends_within_a_run_of_spans() -> None:
    # What follows the scope is a field of the resource that has a scope's number: protobuf reads a span as a scope.
    for inside in range(5):
        scope = field_of(2, LEN, WHOLE * inside).raw
        agree(field_of(1, LEN, scope + WHOLE * (4 - inside)).raw)
        agree(field_of(1, LEN, scope + WHOLE * (4 - inside) + scope).raw)
        agree(field_of(1, LEN, scope).raw + WHOLE + field_of(1, LEN, scope).raw)


def test_spans_that_overlap() -> None:
    # The flags of one span are the tag and the length of another that begins within it.
    second = segment_bytes()
    for back in range(1, 5):
        for length in (varint(len(second)), varint(len(second) - back), varint(len(second) + back)):
            flags = (bytes(4) + b"\x12" + length)[-4:]
            tail = field_of(15, LEN, b"").raw + b"\x85\x01" + flags
            first = segment_bytes(tail=tail)
            agree(message_of(first) + second)
            agree(message_of(first + second, second))
            scope = field_of(2, LEN, first).raw + second + WHOLE
            agree(field_of(1, LEN, field_of(2, LEN, scope).raw).raw)


def test_groups_are_left_to_protobuf() -> None:
    group = varint(7 << 3 | 3) + WHOLE + varint(7 << 3 | 4)
    agree(field_of(1, LEN, field_of(2, LEN, group + WHOLE).raw).raw)
    agree(field_of(1, LEN, group + field_of(2, LEN, WHOLE).raw).raw)
    agree(group + message_of(segment_bytes()))
    agree(varint(7 << 3 | 3) + message_of(segment_bytes()))


# What the rest keeps.


def test_resources_scopes_and_schema_urls_stay_with_their_spans() -> None:
    message = ExportTraceServiceRequest()
    for number in range(3):
        resource_spans = message.resource_spans.add(schema_url=f"https://r/{number}")
        resource_spans.resource.attributes.extend(attributes_of({semconv.SERVICE_INSTANCE_ID: f"pod-{number}"}))
        for _ in range(2):
            scope_spans = resource_spans.scope_spans.add(schema_url="https://s")
            scope_spans.scope.name = semconv.SCOPE_NAME
            scope_spans.spans.extend(
                [
                    sent_segment(1, 0, ticks(2), request=number + 1, end_ns=END_NS),
                    request_span(request=number + 1),
                    sent_segment(2, 2, request=number + 1),
                    sent_segment(0, 0, request=number + 1, attributes=IDENTITY),
                ]
            )
    raw = message.SerializeToString()
    plain = agree(raw)
    assert count(plain) == 12
    ((_, _, rest, *_),) = take([raw], few=1)
    kept = ExportTraceServiceRequest.FromString(rest)
    for resource_spans in message.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            del scope_spans.spans[2:], scope_spans.spans[0]
    assert kept == message


def test_what_one_message_expands_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_segments, "MAX_MESSAGE_TOKENS", 5)
    raw = export(*[sent_segment(seq, 0, ticks(2), end_ns=END_NS) for seq in (1, 2, 3)]).SerializeToString()
    assert take([raw], few=1) == [Taken(None, (), raw)]


# Those that say more.

ENDING: dict[str, Value] = {
    semconv.OUTCOME: "completed",
    semconv.TOKENS: 512,
    semconv.SEGMENTS: 9,
    semconv.TOKEN_BASIS: "exact",
}
ODDLY_SAID: list[Mapping[str, Value]] = [
    {semconv.TOKENS: -1},
    {semconv.OUTCOME: "perhaps"},
    {"long": "x" * 1025},
    {f"{n}": n for n in range(129)},
    {semconv.CHOICE: 0},
    {"long": "x" * 1000, "longer": "y" * 1000, "longest": "z" * 100},
]
SAID: list[Mapping[str, Value]] = [IDENTITY, ENDING, {"blob": WHOLE}, {"zero": 0, "": "", "no": False}, *ODDLY_SAID]
"""Attributes behind those that place a segment."""


def test_the_first_and_the_last_of_a_stream_are_read_with_all_others() -> None:
    sent = [
        sent_segment(0, 0, attributes=IDENTITY),
        sent_segment(1, 0, ticks(3), end_ns=END_NS),
        sent_segment(2, 3, [token(T0_NS, kind=KIND_WORDS[2])] * 2, end_ns=END_NS, attributes=ENDING),
    ]
    raw = export(*sent).SerializeToString()
    assert count(agree(raw)) == 1
    ((plain, saying, rest, *_),) = take([raw], few=1)
    assert plain is not None
    assert [(one.seq, one.first_token, one.times_ns, one.attributes) for one in saying] == [
        (0, 0, [], dict(IDENTITY)),
        (2, 3, [T0_NS, T0_NS], ENDING),
    ]
    assert not any(
        scope.spans for one in ExportTraceServiceRequest.FromString(rest).resource_spans for scope in one.scope_spans
    )


def test_a_first_segment_that_says_nothing_is_left_to_protobuf() -> None:
    raw = export(sent_segment(0, 0)).SerializeToString()
    assert take([raw], few=1) == [Taken(None, (), raw)]


@pytest.mark.parametrize("attributes", ODDLY_SAID)
def test_what_is_odd_is_left_to_protobuf(attributes: Mapping[str, Value]) -> None:
    raw = export(sent_segment(0, 0, attributes=attributes), sent_segment(1, 0)).SerializeToString()
    assert count(agree(raw)) == 1
    assert not take([raw], few=1)[0].saying


@pytest.mark.parametrize("depth", range(40, 50))
def test_values_nested_as_deep_as_protobuf_lets_them(depth: int) -> None:
    span = sent_segment(0, 0, attributes=IDENTITY)
    span.attributes.append(nested(depth))
    raw = export(span, sent_segment(1, 0)).SerializeToString()
    agree(raw)
    assert both_ways(raw)[1] == "no message" or depth < 48


def test_every_message_has_its_own_segments() -> None:
    raws = [
        export(*[sent_segment(seq, 0, attributes=IDENTITY if seq % 2 else {}) for seq in numbers]).SerializeToString()
        for numbers in ((1, 2), (4, 6), (3, 5), (), (8, 7))
    ]
    taken = take(raws, few=1)
    assert [[] if one.plain is None else one.plain.seq.tolist() for one in taken] == [[2], [4, 6], [], [], [8]]
    assert [[segment.seq for segment in one.saying] for one in taken] == [[1], [], [3, 5], [], [7]]


def test_limits_are_those_that_are_asked_for() -> None:
    raw = export(sent_segment(0, 0, attributes={"a": "four"})).SerializeToString()
    assert len(take([raw], few=1)[0].saying) == 1
    assert not take([raw], few=1, limits=AttributeLimits(value_chars=3))[0].saying


# Messages of any shape, and what becomes of them on the way.


@st.composite
def segment_spans(draw: st.DrawFn) -> Span:
    kinds = draw(st.sampled_from([(0,), (0,), (1,), (2,), (0, 1, 2)]))
    times = draw(st.lists(st.integers(-2, 1003), max_size=9))
    events = [
        token(
            T0_NS + time * MS,
            kind=KIND_WORDS[draw(st.sampled_from(kinds))],
            count=draw(st.sampled_from([None] * 9 + [1, 2, 0])),
        )
        for time in times
    ]
    span = segment_span(
        draw(st.sampled_from([*EDGES, 2**28, 2**31])),
        draw(st.sampled_from([*EDGES, 2**28, 2**31 - 1])),
        events,
        request=draw(st.integers(0, 3)),
        choice=draw(st.sampled_from([0, 0, 0, 1])),
        end_ns=END_NS,
        attributes=draw(st.sampled_from([{}, {}, {}, *SAID])),
    )
    if draw(st.integers(0, 9)):
        as_sent(span, draw(st.sampled_from([0x101, 0x301, 1, 2**32 - 1])))
    if not draw(st.integers(0, 5)):
        ODD[draw(st.sampled_from(sorted(set(ODD) - {name for name in ODD if "token" in name or "event" in name})))](
            span
        )
    return span


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a message of several resources and scopes, with spans of others between and fields nobody knows."""
    message = ExportTraceServiceRequest()
    others = st.sampled_from([request_span(), Span(name="GET"), request_span(attributes={"blob": WHOLE}), Span()])
    for _ in range(draw(st.integers(0, 3))):
        resource_spans = message.resource_spans.add(schema_url=draw(st.sampled_from(["", "u"])))
        if draw(st.booleans()):
            resource_spans.resource.attributes.extend(attributes_of({"blob": WHOLE}))
        for _ in range(draw(st.integers(0, 2))):
            scope_spans = resource_spans.scope_spans.add(schema_url=draw(st.sampled_from(["", "u"])))
            scope_spans.spans.extend(draw(st.lists(segment_spans() | others, max_size=5)))
    raw = message.SerializeToString()
    if draw(st.booleans()):
        return raw
    return _with_unknown(
        raw, draw(st.sampled_from([b"", WHOLE, segment_bytes(), b"\xff\x00"])), draw(st.integers(0, 2))
    )


def _with_unknown(raw: bytes, content: bytes, level: int) -> bytes:
    """Return a message with a field that nobody knows before every field of one level."""
    unknown = field_of(1001, LEN, content).raw
    if level == 0:
        return unknown + raw + unknown
    return b"".join(
        field_of(field.number, LEN, _with_unknown(_held(field), content, level - 1)).raw
        if field.number in (1, 2) and field.inner
        else field.raw
        for field in parse_fields(raw) or ()
    )


def _held(field: Field) -> bytes:
    return b"".join(one.raw for one in field.inner)


@settings(max_examples=examples(250))
@given(messages())
def test_messages_of_any_shape_are_read_the_same(raw: bytes) -> None:
    agree(raw)


@settings(max_examples=examples(250))
@given(messages(), st.randoms(use_true_random=False))
def test_mutations_are_read_the_same(raw: bytes, random: Random) -> None:
    agree(mutate_bytes(raw, random))
    agree(mutate_fields(raw, random))


def respelt(raw: bytes, random: Random, depth: int = 0) -> bytes:
    """Return a message whose tags and lengths are some of them spelt with more digits than they need."""
    found = []
    for field in parse_fields(raw) or ():
        if field.kind != LEN or not field.inner or depth > 3:
            found.append(field.raw)
            continue
        inner = respelt(_held(field), random, depth + 1)
        tag, length = varint(field.number << 3 | LEN), varint(len(inner))
        if random.random() < 0.1:
            tag = overlong(tag, random.choice((1, 2, 4, 5, 9, 10)))
        if random.random() < 0.1:
            length = overlong(length, random.choice((1, 2, 4, 5, 9, 10)))
        found.append(tag + length + inner)
    return b"".join(found)


def spliced(raw: bytes, other: bytes, random: Random) -> bytes:
    at, begin = random.randrange(len(raw) + 1), random.randrange(len(other) + 1)
    return raw[:at] + other[begin : begin + random.randrange(200)] + raw[at:]


def random_message(random: Random) -> bytes:
    spans: list[Span] = []
    for _ in range(random.randint(1, 5)):
        number = random.choice((0, 1, 2, 4, 6, 40))
        kind = random.choice(KIND_WORDS)
        events = [token(T0_NS + random.randrange(1000) * MS, kind=kind) for _ in range(number)]
        seq, first = random.choice(EDGES), random.choice(EDGES)
        spans.append(sent_segment(seq, first, events, request=random.randint(1, 3), end_ns=END_NS))
        if random.random() < 0.15:
            ODD[random.choice(("a trace state", "no status", "a link", "a choice", "no trace id", "no start"))](
                spans[-1]
            )
        if random.random() < 0.15:
            spans.append(request_span(attributes={**IDENTITY, "blob": WHOLE}))
    return export(*spans).SerializeToString()


def test_ten_thousand_mutations_are_read_the_same() -> None:
    random = Random(SEED)
    taken = 0
    for _ in range(round(400 * TIMES_USUAL)):
        whole, other = random_message(random), random_message(random)
        for _ in range(25):
            match random.randrange(6):
                case 0:
                    raw = mutate_fields(whole, random)
                case 1:
                    raw = respelt(whole, random)
                case 2:
                    raw = spliced(whole, other, random)
                case 3:
                    raw = whole[: random.randrange(len(whole))]
                case 4:
                    flipped = bytearray(whole)
                    flipped[random.randrange(len(whole))] ^= 1 << random.randrange(8)
                    raw = bytes(flipped)
                case _:
                    raw = mutate_bytes(whole, random)
            taken += count(agree(raw)) + count(agree(raw + other))
    assert taken > 4000 * TIMES_USUAL  # or nothing was tried


def test_messages_that_are_read_together_are_read_as_each_alone() -> None:
    random = Random(SEED)
    for _ in range(round(400 * TIMES_USUAL)):
        raws = [random_message(random) for _ in range(random.randint(2, 5))]
        raws = [mutate_bytes(raw, random) if random.random() < 0.3 else raw for raw in raws]
        raws = [raw[: random.randint(0, len(raw))] if random.random() < 0.2 else raw for raw in raws]
        for raw, found in zip(raws, read_all(raws, few=1), strict=True):
            alone = both_ways(raw)[1]
            assert ("no message" if isinstance(found, DecodeError) else told(found)) == alone, [r.hex() for r in raws]


def test_every_cut_of_a_message() -> None:
    raw = export(*_three(), resource={"service.name": "a"}).SerializeToString()
    for end in range(len(raw)):
        agree(raw[:end])


def test_every_flip_of_one_bit_of_a_message() -> None:
    raw = bytearray(export(*_three()).SerializeToString())
    for at in range(len(raw)):
        for bit in range(8):
            raw[at] ^= 1 << bit
            agree(bytes(raw))
            raw[at] ^= 1 << bit


def _three() -> Sequence[Span]:
    return (
        sent_segment(1, 0, ticks(2), end_ns=END_NS),
        sent_segment(200, 2, [token(T0_NS, kind="tool")] * 2, request=2, end_ns=END_NS),
        sent_segment(3, 300, request=3),
    )
