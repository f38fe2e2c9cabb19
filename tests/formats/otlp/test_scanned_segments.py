"""What the scan reads of segments is what protobuf reads of them: no more, no less."""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, TraceFlags
from support.collector.message_mutations import field_of, parse_fields, varint
from support.core.core_spans import REMOTE, agree, as_sent, by_protobuf, sent_segment
from support.core.scan_messages import (
    EDGES,
    END_NS,
    I32,
    KIND_WORDS,
    LEN,
    MS,
    ODD_SEGMENT,
    WHOLE,
    message_of,
    overlong,
    segment_bytes,
    ticks,
)
from support.otlp import IDENTITY, T0_NS, attributes_of, event_of, export, nested, request_span, segment_span, token

from otel_llm import semconv
from otel_llm.export.records import Origin, Segment, mark
from otel_llm.export.wire import export_request
from otel_llm.formats.records import DecodeError


def count(message: ExportTraceServiceRequest | bytes) -> int:
    """Return how many segments are read as columns; both ways of reading say the same."""
    plain, _ = agree(message)
    return 0 if plain is None else len(plain)


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
    plain, _ = agree(raw)
    assert plain is not None
    assert len(plain) == len(segments)
    assert plain.seq.tolist() == [1 + number * 50 for number in range(20)]
    assert np.diff(plain.offsets).tolist() == list(range(20))
    assert plain.keys[3] == (4).to_bytes(16, "big") + (4).to_bytes(8, "big")


@pytest.mark.parametrize("stars", [100, 20_000])
def test_a_message_full_of_what_names_begin_with_is_read_the_same(stars: int) -> None:
    segments = [sent_segment(seq, seq, ticks(3), end_ns=END_NS) for seq in range(1, 7)]
    segments[2] = sent_segment(0, 0, attributes={"note": "*" * stars})
    around = [*segments, segment_span(9, 9, attributes={"other": "*" * stars})]
    assert count(export(*around)) == 5


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
                assert count(message_of(span, segment_bytes())) == 2
    lengths = {length for length, _ in seen}
    assert {150, 2**14, 2**21} <= lengths
    assert lengths & set(range(2**14 - 30, 2**14))
    assert lengths & set(range(2**21 - 30, 2**21))


@pytest.mark.parametrize("seq", [*EDGES, 2**28, 2**31 - 1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("first", [*EDGES, 2**28, 2**31 - 1, 2**31])
def test_numbers_of_any_length(seq: int, first: int) -> None:
    taken = count(export(sent_segment(seq, first, ticks(2), end_ns=END_NS)))
    assert taken == (0 < seq < 2**31 and first < 2**31)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**21 - 1, 2**28 - 1])
@pytest.mark.parametrize("more", range(11))
def test_numbers_spelt_with_more_digits_than_they_need(number: int, more: int) -> None:
    digits = varint(number)
    for _ in range(more):
        digits = digits[:-1] + bytes((digits[-1] | 128, 0))
    for raw in (segment_bytes(seq=digits), segment_bytes(first=digits), segment_bytes(digits, digits)):
        agree(message_of(raw, segment_bytes()))


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


def test_a_span_after_its_last_field_or_with_fields_in_another_order_is_read_the_same() -> None:
    fields = parse_fields(segment_bytes(events=field_of(11, LEN, b"").raw)) or ()
    for at in range(len(fields)):
        for field in (*fields, field_of(1001, LEN, b"xyz"), field_of(3, LEN, b"a=b"), field_of(16, I32, b"abcd")):
            moved = (*fields[:at], field, *fields[at:])
            agree(message_of(b"".join(one.raw for one in moved), segment_bytes()))
            swapped = (*fields[:at], field, *fields[at + 1 :])
            agree(message_of(b"".join(one.raw for one in swapped), segment_bytes()))


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
    assert count(message) >= 1  # one that stands right behind such bytes is read alone


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


@pytest.mark.parametrize("depth", range(40, 50))
def test_values_nested_as_deep_as_protobuf_lets_them(depth: int) -> None:
    span = sent_segment(0, 0, attributes=IDENTITY)
    span.attributes.append(nested(depth))
    raw = export(span, sent_segment(1, 0)).SerializeToString()
    agree(raw)
    if depth >= 48:
        with pytest.raises(DecodeError):
            by_protobuf(raw)


@pytest.mark.parametrize("what", ODD_SEGMENT)
def test_a_span_that_is_odd_is_read_the_same(what: str) -> None:
    span = sent_segment(2, 5, ticks(6), end_ns=END_NS)
    ODD_SEGMENT[what](span)
    count(export(span))
    around = [sent_segment(1, 0, ticks(3), end_ns=END_NS), span, sent_segment(3, 0), span, span, sent_segment(4, 0)]
    assert count(export(*around)) in (3, 6)


PLAIN = (
    *("a trace state", "no status", "a status that says something", "a status message", "no flags", "another kind"),
    *("dropped attributes", "no kind", "numbers the other way round", "no span id"),
    "an event with dropped attributes",
)


@pytest.mark.parametrize("what", PLAIN)
def test_what_an_encoder_may_leave_out_or_add_makes_no_other_form(what: str) -> None:
    span = sent_segment(2, 5, ticks(6), end_ns=END_NS)
    ODD_SEGMENT[what](span)
    assert count(export(span)) == 1


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
    assert count(export(span)) == 1
