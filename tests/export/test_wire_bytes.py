"""Our bytes are the standard encoder's message: field by field, for any attributes and any tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, TraceFlags, TraceState
from support.examples import examples

from otel_llm import semconv
from otel_llm.export.delivery import TokenEvents, readable
from otel_llm.export.records import Origin, Record, RequestRecord, Segment, SpanEvent, mark
from otel_llm.export.wire import INT64_MAX, INT64_MIN, export_request

ids64 = st.integers(1, 2**64 - 1)
ids128 = st.integers(1, 2**128 - 1)
times = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
scalars = st.one_of(
    texts,
    st.booleans(),
    st.integers(INT64_MIN, INT64_MAX),
    st.floats(allow_nan=False),
    st.sampled_from(["", 0, -1, False, INT64_MAX, INT64_MIN, "\x00", "é", "漢字🙂", 127, 128, 2**32]),
)
values = st.one_of(scalars, st.lists(texts, max_size=4).map(tuple))
attributes: st.SearchStrategy[Any] = st.dictionaries(texts.filter(bool), values, max_size=6)
states = st.sampled_from([TraceState(), TraceState([("vendor", "a=b"), ("other", "c")])])
contexts = st.builds(
    SpanContext,
    trace_id=ids128,
    span_id=ids64,
    is_remote=st.booleans(),
    trace_flags=st.sampled_from([TraceFlags(0), TraceFlags(1)]),
    trace_state=states,
)
resources = st.builds(Resource, attributes, st.sampled_from(["", "https://opentelemetry.io/schemas/1.40.0"]))
marks = st.builds(mark, st.integers(0, 2), st.sampled_from([1, 1, 2, 100, 2**20]))


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    stamps = draw(st.lists(times, max_size=12))
    packed = draw(st.none() | st.lists(marks, min_size=len(stamps), max_size=len(stamps)))
    origin = Origin(draw(contexts), draw(resources))
    return Segment(origin, draw(ids64), draw(times), draw(times), stamps, packed, draw(attributes))


requests = st.builds(
    RequestRecord,
    context=contexts,
    parent=st.none() | contexts,
    resource=resources,
    name=texts,
    start_ns=times,
    end_ns=times,
    attributes=attributes,
    failure=st.none() | texts,
    events=st.lists(st.builds(SpanEvent, texts, times, attributes), max_size=3),
)


def decoded(records: list[Record]) -> ExportTraceServiceRequest:
    return ExportTraceServiceRequest.FromString(export_request(records))


def by_content(message: ExportTraceServiceRequest) -> list[tuple[bytes, str, bytes, list[bytes]]]:
    """Return what a message says of each resource: two resources that are equal may be reported once or twice."""
    groups: dict[tuple[bytes, str, bytes], list[bytes]] = {}
    for group in message.resource_spans:
        for scope in group.scope_spans:
            key = (group.resource.SerializeToString(), group.schema_url, scope.scope.SerializeToString())
            groups.setdefault(key, []).extend(span.SerializeToString() for span in scope.spans)
    return sorted((*key, sorted(spans)) for key, spans in groups.items())


@settings(max_examples=examples(150))
@given(records=st.lists(st.one_of(segments(), requests), max_size=5))
def test_our_bytes_are_the_standard_encoders_message(records: list[Record]) -> None:
    assert by_content(decoded(records)) == by_content(encode_spans([readable(record) for record in records]))


@given(segment=segments())
def test_one_segment_is_equal_message_for_message(segment: Segment) -> None:
    assert decoded([segment]) == encode_spans([readable(segment)])


@pytest.mark.parametrize("value", [INT64_MAX + 1, INT64_MIN - 1, "\ud800", object()])
def test_a_value_that_otlp_cannot_carry_is_left_out_alone(value: Any) -> None:
    segment = Segment(
        Origin(SpanContext(1, 2, is_remote=False), Resource({})), 3, 4, 5, [], None, {"bad": value, "good": 1}
    )
    [span] = decoded([segment]).resource_spans[0].scope_spans[0].spans
    assert [pair.key for pair in span.attributes] == ["good"]


@pytest.mark.parametrize("value", [b"\x00\xff", {"a": {"b": [1, 2.5, None]}}, [True, False], None, [[1], ["x"]]])
def test_whatever_a_resource_may_say(value: Any) -> None:
    resource: Any = Resource({})
    resource._attributes = {"key": value}
    segment = Segment(Origin(SpanContext(1, 2, is_remote=False), resource), 3, 4, 5, [], None, {})
    assert decoded([segment]) == encode_spans([readable(segment)])


def test_a_hundred_tokens_are_1800_bytes_of_events() -> None:
    origin = Origin(SpanContext(1, 2, is_remote=False), Resource({}))
    empty = Segment(origin, 3, 4, 5, [], None, {semconv.SEGMENT_SEQ: 1})
    full = Segment(origin, 3, 4, 5, list(range(10**18, 10**18 + 100)), None, {semconv.SEGMENT_SEQ: 1})
    assert len(export_request([full])) - len(export_request([empty])) - 1800 in range(8)  # and longer lengths


def test_a_read_only_span_tells_its_events_without_keeping_them() -> None:
    origin = Origin(SpanContext(1, 2, is_remote=False), Resource({}))
    segment = Segment(origin, 3, 4, 5, [10, 20, 30], [mark(0, 1), mark(1, 2), mark(2, 1)], {})
    span = readable(segment)
    assert [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events] == [
        ("token", 10, {}),
        ("token", 20, {semconv.TOKEN_COUNT: 2, semconv.TOKEN_KIND: "reasoning"}),
        ("token", 30, {semconv.TOKEN_KIND: "tool"}),
    ]
    assert [event.timestamp for event in TokenEvents(segment)[1:]] == [20, 30]
    assert '"otel_llm.token.kind": "tool"' in span.to_json()
    assert span.dropped_events == 0
