"""Messages that a scan is to read as protobuf reads them: of every shape, and what becomes of them on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf, nan
from random import Random

from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.collector.message_mutations import Field, field_of, mutate_bytes, mutate_fields, parse_fields, varint
from support.core.core_spans import as_sent, sent_segment
from support.otlp import (
    IDENTITY,
    T0_NS,
    Event,
    Value,
    attributes_of,
    export,
    request_span,
    segment_span,
    span_id,
    token,
)

from otel_llm import semconv
from otel_llm.export.wire import INT64_MAX, INT64_MIN
from otel_llm.formats.spans.attributes import MAX_KEY_CHARS, MAX_VALUE_CHARS
from otel_llm.slo.classes import KINDS

MS = 1_000_000
END_NS = T0_NS + 1_000 * MS
KIND_WORDS = (None, *KINDS[1:])
LEN, VARINT, I64, I32 = 2, 0, 1, 5

EDGES = (0, 1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1)
"""The first and the last number of each length of a varint."""


def ticks(number: int) -> list[Event]:
    return [T0_NS + i * MS for i in range(number)]


def number_attribute(key: str, digits: bytes) -> bytes:
    """Return an int attribute whose varint is spelt so, as a field of a span."""
    name = field_of(1, LEN, key.encode()).raw
    value = field_of(2, LEN, varint(3 << 3) + digits).raw
    return field_of(9, LEN, name + value).raw


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


def overlong(digits: bytes, more: int) -> bytes:
    for _ in range(more):
        digits = digits[:-1] + bytes((digits[-1] | 128, 0))
    return digits


def _set_all(span: Span, names: Sequence[str], value: int) -> None:
    for name in names:
        setattr(span, name, value)


def _mark_all(span: Span, attributes: Mapping[str, Value]) -> None:
    for event in span.events:
        event.attributes.extend(attributes_of(attributes))


LAST_BYTES: dict[str, Value] = {
    "in it": T0_NS,
    "after its end": 2**62 - 1,
    "beyond all times": 2**62,
    "as a text": "1",
    "negative": -1,
}


def _state_byte(value: Value, span: Span) -> None:
    span.attributes.extend(attributes_of({semconv.SEGMENT_LAST_BYTE: value}))


ODD_SEGMENT: dict[str, Callable[[Span], object]] = {
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
    **{f"a last byte {what}": partial(_state_byte, value) for what, value in LAST_BYTES.items()},
    "a choice": lambda span: span.attributes.extend(attributes_of({semconv.CHOICE: 1})),
    "an attribute before": lambda span: span.attributes.insert(0, attributes_of({"x": 1})[0]),
    "a choice that is none": lambda span: span.attributes.extend(attributes_of({semconv.CHOICE: -1})),
    "a number that is none, and one that is": lambda span: span.attributes.insert(
        0, attributes_of({semconv.SEGMENT_SEQ: "2"})[0]
    ),
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
"""What makes of a plain segment something else, or none."""

WHOLE = field_of(2, LEN, segment_bytes()).raw
"""A segment as it stands in a scope."""

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


def sent_request(*, parent: int = 0, **reported: object) -> Span:
    """Return a request span of ours as it is sent."""
    span = as_sent(request_span(**{"attributes": ENDED, **reported}))  # type: ignore[arg-type]
    if parent:
        span.parent_span_id = span_id(parent)
    return span


SEGMENTS_KEY = b"\x0a" + bytes((len(semconv.SEGMENTS),)) + semconv.SEGMENTS.encode()
ODD_REQUEST: dict[str, Callable[[Span], object]] = {
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
"""What makes of a request span of ours something else, or none."""
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
"""What a request span of ours may have besides."""
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
        ODD_SEGMENT[
            draw(
                st.sampled_from(
                    sorted(set(ODD_SEGMENT) - {name for name in ODD_SEGMENT if "token" in name or "event" in name})
                )
            )
        ](span)
    return span


@st.composite
def request_spans(draw: st.DrawFn) -> Span:
    span = sent_request(request=draw(st.integers(1, 5)), parent=draw(st.integers(0, 2)), name=draw(texts))
    for key, value in draw(st.lists(pairs, max_size=6)):
        index = draw(st.integers(0, len(span.attributes)))
        span.attributes.insert(index, attributes_of({key: value})[0])
    span.flags = draw(st.sampled_from([0x101, 0x301, 0, 1, 2**32 - 1]))
    for forms in (FORMS, ODD_REQUEST):
        if not draw(st.integers(0, 3)):
            forms[
                draw(st.sampled_from([name for name in forms if name not in ("no segments", "segments that are none")]))
            ](span)
    return span


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Draw a message of several resources and scopes, with spans of others between and unknown fields."""
    message = ExportTraceServiceRequest()
    others = st.sampled_from([request_span(), Span(name="GET"), request_span(attributes={"blob": WHOLE}), Span()])
    for _ in range(draw(st.integers(0, 3))):
        resource_spans = message.resource_spans.add(schema_url=draw(st.sampled_from(["", "u"])))
        names: st.SearchStrategy[Value] = st.sampled_from(["pod", "", 7])
        reported: Mapping[str, Value] = draw(
            st.sampled_from([{}, {"blob": WHOLE}, {semconv.SERVICE_INSTANCE_ID: draw(names)}])
        )
        resource_spans.resource.attributes.extend(attributes_of(reported))
        for _ in range(draw(st.integers(0, 2))):
            scope_spans = resource_spans.scope_spans.add(schema_url=draw(st.sampled_from(["", "u"])))
            scope_spans.spans.extend(draw(st.lists(segment_spans() | request_spans() | others, max_size=5)))
    raw = message.SerializeToString()
    if draw(st.booleans()):
        return raw
    return _with_unknown(
        raw, draw(st.sampled_from([b"", WHOLE, segment_bytes(), b"\xff\x00"])), draw(st.integers(0, 2))
    )


def _with_unknown(raw: bytes, content: bytes, level: int) -> bytes:
    """Return a message with an unknown field before every field of one level."""
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
    """Return a message of some spans, most of them plain."""
    spans: list[Span] = []
    for number in range(1, random.randint(2, 5)):
        kind = random.choice(KIND_WORDS)
        events: list[Event] = [
            token(T0_NS + random.randrange(1000) * MS, kind=kind) for _ in range(random.choice((0, 1, 2, 4, 40)))
        ]
        seq, first = random.choice(EDGES), random.choice(EDGES)
        spans.append(sent_segment(seq, first, events, request=number, end_ns=END_NS))
        if random.random() < 0.15:
            ODD_SEGMENT[random.choice([name for name in ODD_SEGMENT if "token" not in name and "event" not in name])](
                spans[-1]
            )
        if random.random() < 0.5:
            reported: dict[str, Value] = dict(ENDED)
            for _ in range(random.randint(0, 3)):
                reported[random.choice(KEYS)] = random.choice(VALUES)
            spans.append(sent_request(request=number, parent=random.randint(0, 1), attributes=reported))
            for forms in (FORMS, ODD_REQUEST):
                if random.random() < 0.15:
                    forms[random.choice([name for name in forms if "segments" not in name])](spans[-1])
        if random.random() < 0.15:
            spans.append(random.choice((request_span(), sent_segment(0, 0), Span(name="GET"))))
    return export(*spans, resource={semconv.SERVICE_INSTANCE_ID: "a"}).SerializeToString()


def mutation(whole: bytes, other: bytes, random: Random) -> bytes:
    """Return what may become of a message on a bad way; `other`: one that gets mixed up with it."""
    match random.randrange(6):
        case 0:
            return mutate_fields(whole, random)
        case 1:
            return respelt(whole, random)
        case 2:
            return spliced(whole, other, random)
        case 3:
            return whole[: random.randrange(len(whole))]
        case 4:
            flipped = bytearray(whole)
            flipped[random.randrange(len(whole))] ^= 1 << random.randrange(8)
            return bytes(flipped)
    return mutate_bytes(whole, random)
