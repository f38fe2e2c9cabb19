"""Chunks of models that Bedrock invokes, if text and end come together or in rarer shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.instrumentation.readings import in_ones

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING
from otel_llm.instrumentation.parse.bedrock import METRICS, ConverseReader, InvokeReader


def chunk(data: Any) -> dict[str, Any]:
    return {"chunk": {"bytes": data if isinstance(data, bytes) else json.dumps(data).encode()}}


def totals(reader: InvokeReader | ConverseReader, events: list[Any]) -> tuple[int, bool]:
    """Return the number of tokens of content, and whether the reply is complete."""
    marks = [mark for event in events for mark in in_ones(reader(event))]
    assert {(mark[0], mark[1]) for mark in marks} <= {(0, CONTENT)}
    return sum(mark[2] for mark in marks), any(mark[3] for mark in marks)


@pytest.mark.parametrize(
    "last",
    [
        {"outputText": "all", "completionReason": "FINISH"},
        {"generation": "all", "stop_reason": "length"},
        {"completion": "all", "stop_reason": "stop_sequence"},
        {"generations": [{"text": "all", "finish_reason": "COMPLETE"}]},
        {"choices": [{"text": "all", "stop_reason": "stop"}]},
        {"choices": [{"index": 0, "message": {"content": "all"}, "stop_reason": "stop"}]},
    ],
)
def test_text_and_end_in_one_chunk(last: dict[str, Any]) -> None:
    assert totals(InvokeReader(), [chunk(last)]) == (1, True)


def test_what_bedrock_counted_ends_a_reply_and_the_model_s_own_count_goes_first() -> None:
    metrics = {METRICS: {"inputTokenCount": 5, "outputTokenCount": 2}}
    reader = InvokeReader()
    assert totals(reader, [chunk({"text": "a", "is_finished": False}), chunk({"text": "", **metrics})]) == (1, True)
    assert reader.reported.span_attributes() == {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 5,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 2,
    }
    nova = InvokeReader()
    nova(chunk({"metadata": {"usage": {"inputTokens": 3, "cacheReadInputTokens": 4, "outputTokens": 9}}, **metrics}))
    assert nova.reported.span_attributes() == {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 7,
        semconv.GEN_AI_USAGE_CACHE_READ_TOKENS: 4,
        semconv.GEN_AI_USAGE_OUTPUT_TOKENS: 9,
    }


@pytest.mark.parametrize(
    "event", [None, {}, {"chunk": None}, {"chunk": {"bytes": "text"}}, chunk(b"{"), {"contentBlockDelta": 3}]
)
def test_what_is_no_event_carries_nothing(event: Any) -> None:
    for reader in (InvokeReader(), ConverseReader()):
        assert reader(event) == ()
        assert not reader.plain_size(event)


@pytest.mark.parametrize("known", [{"outputText": ""}, {"choices": []}, {"messageStart": {}}, {"type": "ping"}])
@pytest.mark.parametrize("odd", [[], 3, None, {"outputs": {"a": 1}}, {"choices": 3}, {"choices": [3]}, {"type": []}])
def test_a_later_chunk_that_is_none_carries_nothing(known: Any, odd: Any) -> None:
    reader = InvokeReader()
    reader(chunk(known))
    assert not any(mark[2] or mark[3] for mark in reader(chunk(odd)))


@pytest.mark.parametrize("first", [[], 3, "text", {}, {"type": "other"}, {"type": []}, {"words": "a"}])
def test_a_first_chunk_that_is_not_known(first: Any) -> None:
    calls: list[int] = []
    reader = InvokeReader()
    reader.on_unknown = lambda: calls.append(1)
    assert reader(chunk(first)) == ()
    assert calls == [1]


def test_reasoning_of_openai_s_shape() -> None:
    reader = InvokeReader()
    marks = in_ones(
        reader(chunk({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]}))
    )
    assert [(mark[1], mark[2]) for mark in marks] == [(REASONING, 1)]
