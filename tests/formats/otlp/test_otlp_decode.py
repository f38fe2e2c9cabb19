from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp import T0_NS, Event, Value, event_of, export, request_span, segment_span, span_id, token, trace_id

from otel_llm import semconv
from otel_llm.core.limits import MAX_TOKENS
from otel_llm.formats.otlp.export_json import parse_json
from otel_llm.formats.otlp.export_request import decode, parse, parse_cut, read
from otel_llm.formats.records import DecodeError, RequestSpan, Segment
from otel_llm.formats.spans import token_events
from otel_llm.formats.spans.attributes import MAX_ATTRIBUTES, MAX_VALUE_CHARS
from otel_llm.semconv import CHUNK_EVENT
from otel_llm.slo.classes import KINDS

VECTORS = Path(__file__).parents[2] / "vectors"
S = 1_000_000_000


def one_segment(span: Span) -> Segment:
    batch = decode(export(span))
    assert not batch.refused
    assert not batch.anomalies
    (segment,) = batch.segments
    return segment


def one_request(span: Span) -> RequestSpan:
    batch = decode(export(span))
    assert not batch.refused
    (request,) = batch.requests
    return request


def refusal(span: Span) -> str:
    """Return the one reason why `span` is refused, between two that are kept."""
    batch = decode(export(segment_span(1, 0, request=8), span, request_span(request=9)))
    assert [segment.span_id for segment in batch.segments] == [span_id(8)]
    assert [request.span_id for request in batch.requests] == [span_id(9)]
    (reason,) = batch.refused
    assert batch.refused[reason] == 1
    return reason


# Segments


def test_a_segment() -> None:
    times: list[Event] = [T0_NS + i for i in range(5)]
    span = segment_span(3, 17, times, request=7, choice=2, start_ns=T0_NS, end_ns=T0_NS + S, attributes={"x": True})
    batch = decode(export(span, resource={"service.name": "a", "service.instance.id": "pod-1"}), receipt_ns=42)
    assert batch.segments == [
        Segment(
            trace_id=trace_id(7),
            span_id=span_id(7),
            choice=2,
            seq=3,
            first_token=17,
            start_ns=T0_NS,
            end_ns=T0_NS + S,
            times_ns=[T0_NS + i for i in range(5)],
            kinds=None,
            attributes={"x": True},
            receipt_ns=42,
            instance_id="pod-1",
        )
    ]
    assert batch.segments[0].key == (trace_id(7), span_id(7), "default", 2, 3)
    assert (batch.requests, batch.ignored, batch.refused, batch.anomalies) == ([], 0, Counter(), Counter())


def test_an_empty_message_has_nothing() -> None:
    batch = decode(parse(b""))
    assert (batch.segments, batch.requests, batch.ignored) == ([], [], 0)


def test_counts_and_kinds_are_kept() -> None:
    events = [token(T0_NS, 3, "reasoning"), token(T0_NS + 5, 2), token(T0_NS + 9, kind="tool"), token(T0_NS + 11)]
    segment = one_segment(segment_span(1, 0, events, end_ns=T0_NS + S))
    assert segment.times_ns == [T0_NS, T0_NS + 5, T0_NS + 9, T0_NS + 11]
    assert (segment.kinds, segment.counts) == (bytes([1, 0, 2, 0]), [3, 2, 1, 1])
    times = [T0_NS] * 3 + [T0_NS + 5] * 2 + [T0_NS + 9, T0_NS + 11]
    assert segment.events.expanded() == (times, bytes([1, 1, 1, 0, 0, 2, 0]))


def test_tokens_of_content_only_have_no_kinds() -> None:
    assert one_segment(segment_span(1, 0, [(T0_NS, {semconv.TOKEN_KIND: "content"})])).kinds is None


def test_a_kind_we_do_not_know_is_content_and_counted() -> None:
    batch = decode(export(segment_span(1, 0, [(T0_NS, {semconv.TOKEN_KIND: "audio"})])))
    assert batch.segments[0].kinds is None
    assert batch.anomalies == Counter(token_kind_unknown=1)


def test_events_of_other_names_are_ignored_and_counted() -> None:
    events: list[Event] = [T0_NS, ("exception", T0_NS + 1), ("tokem", T0_NS + 2), ("", T0_NS + 3), T0_NS + 4]
    batch = decode(export(segment_span(1, 0, events, end_ns=T0_NS + 9)))
    assert batch.segments[0].times_ns == [T0_NS, T0_NS + 4]
    assert batch.anomalies == Counter(event_ignored=3)


def test_times_are_as_received_even_outside_the_segment() -> None:
    times: list[Event] = [T0_NS + 9, T0_NS - 5, T0_NS + 2 * S, T0_NS]
    batch = decode(export(segment_span(1, 0, times, end_ns=T0_NS + S)))
    assert batch.segments[0].times_ns == times
    assert batch.anomalies == Counter(token_after_segment_end=1)


def changed(span: Span, **fields: object) -> Span:
    for name, value in fields.items():
        setattr(span, name, value)
    return span


def a_segment(**fields: object) -> Span:
    return changed(segment_span(1, 0, [T0_NS] * 5, end_ns=T0_NS + S), **fields)


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        (a_segment(trace_id=bytes(16)), "bad_trace_id"),
        (a_segment(trace_id=b""), "bad_trace_id"),
        (a_segment(trace_id=b"1" * 15), "bad_trace_id"),
        (a_segment(parent_span_id=b""), "bad_parent_span_id"),
        (a_segment(parent_span_id=bytes(8)), "bad_parent_span_id"),
        (a_segment(parent_span_id=b"1" * 9), "bad_parent_span_id"),
        (a_segment(start_time_unix_nano=0), "missing_time"),
        (a_segment(end_time_unix_nano=0), "missing_time"),
        (a_segment(end_time_unix_nano=T0_NS - 1), "end_before_start"),
        (a_segment(end_time_unix_nano=2**63), "time_out_of_range"),
        (segment_span(None, 0), "missing_seq"),
        (segment_span(0, None), "missing_first_token"),
        (segment_span(-1, 0), "bad_seq"),
        (segment_span(0, -1), "bad_first_token"),
        (segment_span(2**31, 0), "bad_seq"),
        (segment_span(None, 0, attributes={semconv.SEGMENT_SEQ: "1"}), "bad_seq"),
        (segment_span(None, 0, attributes={semconv.SEGMENT_SEQ: 1.0}), "bad_seq"),
        (segment_span(None, 0, attributes={semconv.SEGMENT_SEQ: True}), "bad_seq"),
        (segment_span(0, None, attributes={semconv.SEGMENT_FIRST_TOKEN: False}), "bad_first_token"),
        (segment_span(0, 0, choice=-1), "bad_choice"),
        (segment_span(1, 0, [0]), "missing_time"),
        (segment_span(1, 0, [T0_NS, T0_NS, T0_NS, T0_NS, 0]), "missing_time"),
        (segment_span(1, 0, [2**63]), "time_out_of_range"),
        (segment_span(1, 0, [T0_NS] * 9 + [2**64 - 1]), "time_out_of_range"),
        (segment_span(1, 0, [(T0_NS, {semconv.TOKEN_COUNT: 0})]), "bad_token_count"),
        (segment_span(1, 0, [(T0_NS, {semconv.TOKEN_COUNT: -3})]), "bad_token_count"),
        (segment_span(1, 0, [(T0_NS, {semconv.TOKEN_COUNT: "2"})]), "bad_token_count"),
        (segment_span(1, 0, [(T0_NS, {semconv.TOKEN_COUNT: 10**6 + 1})]), "too_many_tokens"),
        (segment_span(1, 0, [(T0_NS, {semconv.TOKEN_COUNT: 10**6}), T0_NS]), "too_many_tokens"),
    ],
)
def test_a_segment_that_cannot_be_placed_is_refused_and_the_rest_kept(span: Span, reason: str) -> None:
    assert refusal(span) == reason


def test_what_one_message_expands_to_is_bounded() -> None:
    many: list[Event] = [(T0_NS, {semconv.TOKEN_COUNT: 4})]
    for spans in ([segment_span(seq, 0, many) for seq in range(4)], [request_span(events=many)] * 4):
        batch = decode(export(*spans), budget=10)
        assert len(batch.segments) + len(batch.requests) == 2
        assert batch.refused == Counter(too_many_tokens=2)


@pytest.mark.parametrize("events", [[T0_NS] * 6, [token(T0_NS, 1)] * 6, [token(T0_NS, 6)]])
def test_a_budget_counts_however_tokens_come(events: list[Event]) -> None:
    span = segment_span(1, 0, events)
    assert token_events.read_tokens(span, {semconv.TOKEN_EVENT}, Counter(), 6).tokens == 6
    with pytest.raises(token_events.TokenEventError, match="too_many_tokens"):
        token_events.read_tokens(span, {semconv.TOKEN_EVENT}, Counter(), 5)


any_time = st.one_of(
    st.integers(T0_NS, T0_NS + S), st.integers(1, 2**62 - 1), st.sampled_from([0, 1, 2**62, 2**63, 2**64 - 1])
)
any_event = st.one_of(
    any_time,
    st.integers(T0_NS, T0_NS + S),
    st.builds(token, any_time, st.sampled_from([None, None, 1, 2, 0]), st.sampled_from([None, *KINDS, "audio"])),
    st.builds(token, st.integers(T0_NS, T0_NS + S), st.none(), st.sampled_from(KINDS)),
    st.tuples(st.sampled_from(["token", "tokens", "tokeo", "x"]), any_time),
)


def outcome(read: Callable[[Counter[str]], object]) -> object:
    anomalies: Counter[str] = Counter()
    try:
        return read(anomalies), anomalies
    except token_events.TokenEventError as error:
        return str(error)


@given(
    st.lists(any_event, max_size=12),
    st.integers(1, 300),
    st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=300), st.integers(0, 2**60)), max_size=5),
    st.booleans(),
)
def test_both_ways_of_reading_events_agree(
    events: list[Event], repeat: int, attributes: dict[str, Value], linked: bool
) -> None:
    span = segment_span(1, 0, events * repeat, attributes=attributes)
    span.flags = 0x101
    span.trace_state = "a=b"
    if linked:
        span.links.add(trace_id=trace_id(3), span_id=span_id(3))
    names = {semconv.TOKEN_EVENT}
    assert outcome(lambda anomalies: token_events.read_tokens(span, names, anomalies)) == outcome(
        lambda anomalies: token_events.read_one_by_one(span, names, anomalies, MAX_TOKENS)
    )


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_events_as_recorders_write_them_go_the_quick_way(kind: str | None) -> None:
    span = segment_span(1, 0, [token(T0_NS + i, kind=None if kind == "content" else kind) for i in range(300)])
    found = token_events.read_alike(span.SerializeToString(), 300)
    assert found is not None
    assert found[0] == [T0_NS + i for i in range(300)]
    assert found[1] == (None if kind in (None, "content") else bytes([KINDS.index(kind)]) * 300)


def test_an_attribute_that_looks_like_events_is_none() -> None:
    forged = b"".join(
        b"\x5a\x10" + event_of(T0_NS + i).SerializeToString() for i in range(5)
    )  # as a span carries five of them
    span = segment_span(1, 0, [T0_NS + 100 + i for i in range(5)], attributes={"a": forged, "b": 1}, end_ns=T0_NS + S)
    assert one_segment(span).times_ns == [T0_NS + 100 + i for i in range(5)]


# Attributes


def test_attributes_that_are_wrong_cost_themselves_only() -> None:
    wrong: dict[str, Value] = {
        semconv.OUTCOME: "exploded",
        semconv.TOKENS: "6",
        semconv.SEGMENTS: -1,
        semconv.DROPPED_SEGMENTS: True,
        semconv.TOKEN_BASIS: 3,
        semconv.MEASURED_AT: "moon",
        semconv.EXACT_RESUME: "true",
        semconv.SLO_CLASS: 7,
        semconv.GEN_AI_REQUEST_MODEL: "",
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 3.5,
    }
    batch = decode(export(segment_span(1, 0, [T0_NS], attributes={**wrong, "kept": 1})))
    assert batch.segments[0].attributes == {"kept": 1}
    assert batch.anomalies == Counter(attribute_unusable=len(wrong))


def test_known_attributes_that_fit_are_kept() -> None:
    right: dict[str, str | int | float | bool] = {
        semconv.OUTCOME: "cancelled",
        semconv.TOKENS: 0,
        semconv.SEGMENTS: 2,
        semconv.TOKEN_BASIS: "chunk",
        semconv.MEASURED_AT: "relay",
        semconv.EXACT_RESUME: False,
        semconv.SLO_CLASS: "voice",
        semconv.GEN_AI_REQUEST_MODEL: "m",
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 12,
        semconv.SERVER_ADDRESS: "api.example",
        semconv.SERVER_PORT: 443,
        "tenant": "gold",
        "weight": 0.5,
    }
    assert one_segment(segment_span(1, 0, attributes=dict(right))).attributes == right


def test_attributes_are_bounded() -> None:
    many: dict[str, Value] = {f"k{i}": i for i in range(MAX_ATTRIBUTES + 5)}
    long: dict[str, Value] = {"prompt": "x" * (MAX_VALUE_CHARS + 1), "fits": "x" * MAX_VALUE_CHARS, "k" * 300: 1}
    batch = decode(export(segment_span(attributes={**long, **many})))
    (segment,) = batch.segments
    assert len(segment.attributes) == MAX_ATTRIBUTES
    assert "fits" in segment.attributes
    assert "prompt" not in segment.attributes
    assert batch.anomalies == Counter(attribute_too_long=1, attribute_beyond_limit=7)


def test_values_that_are_not_one_value_are_left_out() -> None:
    batch = decode(
        export(segment_span(attributes={"a": b"bytes", "b": ["x"], "nan": float("nan"), "inf": -float("inf")}))
    )
    assert batch.segments[0].attributes == {}
    assert batch.anomalies == Counter(attribute_not_finite=2)


@pytest.mark.parametrize("instance", ["", "x" * 2000, 7])
def test_an_instance_id_that_is_no_short_text_is_none(instance: Value) -> None:
    batch = decode(export(segment_span(), resource={"service.instance.id": instance}))
    assert batch.segments[0].instance_id is None


# Request spans


def test_a_request_span() -> None:
    span = request_span(request=5, kind=Span.SPAN_KIND_SERVER, error=True, dropped_events=3)
    span.parent_span_id = span_id(77)
    batch = decode(export(span, resource={"service.instance.id": "i"}), receipt_ns=9)
    assert batch.requests == [
        RequestSpan(
            trace_id=trace_id(5),
            span_id=span_id(5),
            parent_id=span_id(77),
            name="chat m",
            kind=2,
            start_ns=T0_NS,
            end_ns=T0_NS + S,
            error=True,
            attributes={
                semconv.GEN_AI_OPERATION_NAME: "chat",
                semconv.GEN_AI_REQUEST_MODEL: "m",
                semconv.MEASURED_AT: "client",
            },
            dropped_events=3,
            receipt_ns=9,
            instance_id="i",
        )
    ]
    assert batch.requests[0].key == (trace_id(5), span_id(5), "default")


@pytest.mark.parametrize(
    "attributes",
    [
        {semconv.GEN_AI_OPERATION_NAME: "chat"},
        {semconv.GEN_AI_OPERATION_NAME: "text_completion"},
        {semconv.SEGMENTS: 3},
        {semconv.OUTCOME: "completed"},
        {semconv.GEN_AI_LATENCY_TTFT: 0.1},
        {semconv.GEN_AI_LATENCY_E2E: 1.5},
    ],
)
def test_spans_of_inference(attributes: dict[str, Value]) -> None:
    assert one_request(request_span(attributes=attributes)).attributes == attributes


@pytest.mark.parametrize(
    "span",
    [
        request_span(attributes={}),
        request_span(attributes={semconv.GEN_AI_OPERATION_NAME: "embeddings"}),
        request_span(attributes={semconv.GEN_AI_OPERATION_NAME: 3}),
        request_span(name="login", attributes={"http.request.method": "POST"}, events=[T0_NS]),
        Span(),
        changed(request_span(attributes={}), trace_id=b"", start_time_unix_nano=0),
    ],
)
def test_other_spans_are_ignored_and_counted(span: Span) -> None:
    batch = decode(export(span))
    assert batch.ignored == 1
    assert (batch.segments, batch.requests, batch.refused) == ([], [], Counter())


def test_token_events_on_a_request_span() -> None:
    events: list[Event] = [T0_NS + 1, (T0_NS + 2, {semconv.TOKEN_KIND: "reasoning"}), ("done", T0_NS + 3)]
    request = one_request(request_span(events=events))
    assert (request.events_ns, request.kinds, request.event_basis) == ([T0_NS + 1, T0_NS + 2], b"\x00\x01", None)


def test_chunk_events_of_others_make_an_inference_span() -> None:
    request = one_request(request_span(attributes={}, events=[(CHUNK_EVENT, T0_NS + i) for i in range(6)]))
    assert (request.events_ns, request.event_basis) == ([T0_NS + i for i in range(6)], "chunk")


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        (changed(request_span(), trace_id=bytes(16)), "bad_trace_id"),
        (changed(request_span(), span_id=b"1"), "bad_span_id"),
        (changed(request_span(), start_time_unix_nano=0), "missing_time"),
        (changed(request_span(), end_time_unix_nano=5), "end_before_start"),
        (request_span(events=[2**63]), "time_out_of_range"),
    ],
)
def test_a_request_span_that_cannot_be_used_is_refused(span: Span, reason: str) -> None:
    assert refusal(span) == reason


# Whole messages


def test_the_shared_rows_decode_without_a_refusal() -> None:
    batches = [decode(parse_json(line)) for line in (VECTORS / "rows.jsonl").read_bytes().splitlines()]
    names = Counter(
        span["name"]
        for line in (VECTORS / "rows.jsonl").read_text().splitlines()
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    )
    assert sum(len(batch.segments) for batch in batches) == names[semconv.SEGMENT_SPAN]
    assert sum(len(batch.requests) for batch in batches) == names["chat m"]
    assert all(not batch.refused and not batch.anomalies for batch in batches)
    assert sum(batch.ignored for batch in batches) == 2  # a POST and an embedding


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(DecodeError, match="not an OTLP trace export request"):
        parse(b"\xff\xff")


def test_a_cut_message_gives_the_resources_before_the_cut() -> None:
    message = export(segment_span(0, 0))
    message.MergeFrom(export(segment_span(1, 0), segment_span(2, 0)))
    raw = message.SerializeToString()
    first = len(export(segment_span(0, 0)).SerializeToString())
    for cut in range(first + 1, len(raw)):
        kept, whole = parse_cut(raw[:cut])
        assert (len(decode(kept).segments), whole) == (1, False)
    assert parse_cut(raw) == (message, True)
    for cut in range(1, first):
        with pytest.raises(DecodeError):
            parse_cut(raw[:cut])


@given(st.binary(max_size=400))
def test_any_bytes_give_a_batch_or_a_decode_error(raw: bytes) -> None:
    try:
        batch = decode(parse(raw))
    except DecodeError:
        return
    assert isinstance(batch.ignored, int)


SAMPLE = export(
    *(segment_span(i, 5 * i, [T0_NS + i, (T0_NS, {semconv.TOKEN_COUNT: 2}), T0_NS, T0_NS, T0_NS]) for i in range(2)),
    request_span(events=[T0_NS] * 5),
    resource={"service.instance.id": "i"},
).SerializeToString()


@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutations_of_a_message_give_records_or_a_decode_error(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(SAMPLE)
    for position, value in changes:
        raw[position] = value
    try:
        message = parse(bytes(raw))
    except DecodeError:
        return
    batch = decode(message)
    spans = sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)
    assert len(batch.segments) + len(batch.requests) + batch.ignored + batch.refused.total() == spans
    for segment in batch.segments:
        assert all(0 < time < 2**62 for time in (segment.start_ns, segment.end_ns, *segment.times_ns))
        assert segment.kinds is None or len(segment.kinds) == len(segment.times_ns)


def test_the_message_is_not_changed_by_reading_it() -> None:
    message = ExportTraceServiceRequest.FromString(SAMPLE)
    decode(message)
    assert message.SerializeToString() == SAMPLE


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_message_of_empty_parts_is_refused_before_it_is_taken_apart(levels: int) -> None:
    def framed(tag: bytes, body: bytes) -> bytes:
        length, size = len(body), bytearray(tag)
        while length > 127:
            size.append(length & 127 | 128)
            length >>= 7
        return bytes(size) + bytes((length,)) + body

    empty = {1: b"\x0a\x00", 2: b"\x12\x00", 3: b"\x12\x00"}[levels] * 200_001
    raw = empty if levels == 1 else framed(b"\x0a", empty if levels == 2 else framed(b"\x12", empty))
    with pytest.raises(DecodeError, match="more small or empty"):
        read(raw)
    assert read(raw[: 2 * 500] if levels == 1 else b"").segments == []
