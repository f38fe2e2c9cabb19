"""Limits of attributes: what a collector can configure, and that it costs no more than the attribute."""

from __future__ import annotations

from collections import Counter

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.foreign_rows import S, doubles, with_array
from support.otlp import T0_NS, Value, export, request_span, segment_span

from otel_llm import semconv
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.spans.attributes import DEFAULT_LIMITS, MAX_ATTRIBUTES, MAX_VALUE_CHARS, AttributeLimits

MANY: dict[str, Value] = {semconv.GEN_AI_OPERATION_NAME: "chat", "a": "x" * 9, "b": "x" * 10, "c": 1, "d": 2}


def test_the_limits_that_hold_without_a_word() -> None:
    assert AttributeLimits(MAX_ATTRIBUTES, MAX_VALUE_CHARS) == DEFAULT_LIMITS == AttributeLimits()


@pytest.mark.parametrize("span", [request_span(attributes=MANY), segment_span(attributes=MANY)])
def test_limits_hold_for_every_span(span: Span) -> None:
    batch = decode(export(span), limits=AttributeLimits(count=3, value_chars=9))
    assert [one.attributes for one in batch.requests] + [one.attributes for one in batch.segments] == [
        {semconv.GEN_AI_OPERATION_NAME: "chat", "a": "x" * 9, "c": 1}
    ]
    assert batch.anomalies == Counter(attribute_too_long=1, attribute_beyond_limit=1)
    assert not batch.refused


def test_wider_limits_keep_more() -> None:
    attributes: dict[str, Value] = {f"k{i}": "x" * 2000 for i in range(200)}
    batch = decode(export(segment_span(attributes=attributes)), limits=AttributeLimits(count=300, value_chars=2000))
    assert batch.segments[0].attributes == attributes
    assert not batch.anomalies


def test_token_times_are_no_matter_of_attribute_limits() -> None:
    span = with_array(
        request_span(attributes={}), semconv.PER_TOKEN_GENERATION_TIME, doubles([i / 1000 for i in range(500)])
    )
    batch = decode(export(span), limits=AttributeLimits(count=1, value_chars=1))
    assert len(batch.requests[0].events_ns) == 500
    assert batch.requests[0].events_ns[-1] == T0_NS + 499 * S // 1000


@pytest.mark.parametrize("limits", [(0, 10), (10, 0), (-1, 10)])
def test_limits_below_one_are_none(limits: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        AttributeLimits(*limits)
