"""Chunks of every protocol whose numbers, and now and then whose members, are what no honest server sends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from otel_llm.instrumentation.parse.bedrock import METRICS
from otel_llm.instrumentation.parse.responses import DELTAS, ENDS

HUGE = (10**12, 2**31 - 1, 2**31, 10**9, 2**63, 10**30)
NUMBERS = st.one_of(
    st.sampled_from((0, 1, 2, 64, 127, 128, 10**4, *HUGE)),
    st.integers(0, 300),
    st.sampled_from((-1, -(10**12), True, False, 1.5, 0.0, 1e12, 1e308, "7", "1000000000000", None)),
    st.sampled_from(([], [[]], {}, {"a": 10**12})),
)
TEXTS = st.one_of(
    st.sampled_from(("a", "", "Hello, ", "é", "的文", "\U0001f600", "<think>", "</think>b", '{"a":', "\ud800")),
    st.text(max_size=40),
    st.sampled_from(("word " * 60, "x" * 3000)),
)


class Hole:
    """A place for a value of a kind; `usual` is what an honest server may send."""

    def __init__(self, values: st.SearchStrategy[Any], usual: Any) -> None:
        self.values = values
        self.usual = usual


NUMBER = Hole(st.one_of(st.sampled_from(HUGE), NUMBERS, NUMBERS, TEXTS), 1)
INDEX = Hole(st.one_of(st.just(0), st.just(0), NUMBERS), 0)
TEXT = Hole(st.one_of(TEXTS, TEXTS, TEXTS, NUMBERS), "Hello, ")
END = Hole(st.one_of(*[st.none()] * 6, TEXTS, NUMBERS), None)


class Either:
    """A place for one of some shapes; the first is usual."""

    def __init__(self, *shapes: Any) -> None:
        self.shapes = shapes


def either(*values: Any) -> Hole:
    """Return a place for one of some values."""
    return Hole(st.sampled_from(values), values[0])


def filled(shape: Any) -> st.SearchStrategy[Any]:
    """Return the values of a shape: members may be missing but for the texts that name it, lists repeat."""
    if isinstance(shape, Hole):
        return shape.values
    if isinstance(shape, Either):
        return st.one_of(*map(filled, shape.shapes))
    if isinstance(shape, list):
        one = filled(shape[0])
        many = st.builds(lambda value, times: [value] * times, one, st.sampled_from((1, 1, 1, 5, 300)))
        return st.one_of(st.builds(lambda value: [value], one), st.lists(one, max_size=4), many)
    if isinstance(shape, dict):
        members = {key: filled(value) for key, value in shape.items()}
        some = {key: values for key, values in members.items() if key != "type"}
        named = {key: values for key, values in members.items() if key == "type"}
        return st.one_of(st.fixed_dictionaries(members), st.fixed_dictionaries(named, optional=some))
    return st.just(shape)


def claim(shape: Any, number: object) -> Any:
    """Return the usual value of a shape that claims `number` wherever it has one."""
    if isinstance(shape, Hole):
        return number if shape is NUMBER else shape.usual
    if isinstance(shape, Either):
        return claim(shape.shapes[0], number)
    if isinstance(shape, list):
        return [claim(one, number) for one in shape]
    return {key: claim(value, number) for key, value in shape.items()} if isinstance(shape, dict) else shape


@dataclass(frozen=True)
class Protocol:
    """The shape of a protocol's chunks."""

    shape: Any
    content_type: str = "text/event-stream"

    def streams(self) -> st.SearchStrategy[list[Any]]:
        """Return the replies of a few chunks."""
        return st.lists(filled(self.shape), min_size=1, max_size=6)


_PART = Either(
    {"text": TEXT},
    {"text": TEXT, "thought": either(True, False, 1)},
    {"functionCall": {"name": TEXT, "args": {"x": TEXT}}},
    {"executableCode": {"code": TEXT}, "inlineData": {"data": TEXT}},
)
_DELTA = {
    "content": TEXT,
    "refusal": TEXT,
    "reasoning_content": TEXT,
    "tool_calls": Either(
        [{"index": INDEX, "function": {"name": TEXT, "arguments": TEXT}, "custom": {"input": TEXT}}], NUMBER
    ),
    "audio": {"data": TEXT, "transcript": TEXT},
}
_USAGE = {
    "prompt_tokens": NUMBER,
    "completion_tokens": NUMBER,
    "total_tokens": NUMBER,
    "completion_tokens_details": {"reasoning_tokens": NUMBER},
    "prompt_tokens_details": {"cached_tokens": NUMBER},
}
_CHOICE = {"index": INDEX, "delta": Either({"content": TEXT}, _DELTA), "finish_reason": END}
_COUNTED = {**_CHOICE, "token_ids": [NUMBER], "logprobs": {"content": [{"token": TEXT}]}}
_STATED = {"id": TEXT, "model": TEXT}
_IN_OUT = {"input_tokens": NUMBER, "output_tokens": NUMBER}

CHAT = Protocol({**_STATED, "choices": [Either(_CHOICE, _COUNTED)], "usage": _USAGE})
COMPLETIONS = Protocol(
    {**_STATED, "choices": [Either({**_CHOICE, "text": TEXT}, {**_COUNTED, "text": TEXT})], "usage": _USAGE}
)
RESPONSES = Protocol(
    {
        "type": either(*DELTAS, *DELTAS, *ENDS, "response.created", "error"),
        "delta": TEXT,
        "output_index": INDEX,
        "content_index": INDEX,
        "sequence_number": NUMBER,
        "response": {**_STATED, "usage": {**_IN_OUT, "output_tokens_details": {"reasoning_tokens": NUMBER}}},
    }
)
MESSAGES = Protocol(
    {
        "type": either("content_block_delta", "content_block_start", "message_start", "message_delta", "message_stop"),
        "index": INDEX,
        "delta": {
            "type": either("text_delta", "thinking_delta", "input_json_delta", [1], 5),
            "text": TEXT,
            "thinking": TEXT,
            "partial_json": TEXT,
            "stop_reason": END,
        },
        "content_block": {"type": either("text", "thinking", "redacted_thinking"), "text": TEXT, "thinking": TEXT},
        "usage": {**_IN_OUT, "cache_read_input_tokens": NUMBER, "cache_creation_input_tokens": NUMBER},
        "message": {**_STATED, "usage": _IN_OUT},
    }
)
GEMINI = Protocol(
    {
        "responseId": TEXT,
        "modelVersion": TEXT,
        "candidates": [{"index": INDEX, "content": {"parts": [_PART]}, "finishReason": END}],
        "usageMetadata": {
            "promptTokenCount": NUMBER,
            "candidatesTokenCount": NUMBER,
            "thoughtsTokenCount": NUMBER,
            "cachedContentTokenCount": NUMBER,
        },
    }
)
_LINE = {
    "model": TEXT,
    "response": TEXT,
    "thinking": TEXT,
    "message": {"content": TEXT, "thinking": TEXT, "tool_calls": [{"function": {"arguments": {"x": TEXT}}}]},
    "done": either(False, False, False, True, 1),
    "prompt_eval_count": NUMBER,
    "eval_count": NUMBER,
}
OLLAMA = Protocol(_LINE, "application/x-ndjson")
COHERE = Protocol(
    {
        "type": either("content-delta", "tool-plan-delta", "tool-call-delta", "message-end"),
        "index": INDEX,
        "id": TEXT,
        "delta": {
            "message": {
                "content": {"text": TEXT, "thinking": TEXT},
                "tool_plan": TEXT,
                "tool_calls": {"function": {"arguments": TEXT}},
            },
            "finish_reason": END,
            "usage": {"tokens": _IN_OUT},
        },
    }
)
TGI = Protocol(
    {
        "index": INDEX,
        "token": {"id": NUMBER, "text": TEXT, "special": NUMBER},
        "generated_text": END,
        "details": {"generated_tokens": NUMBER, "input_length": NUMBER, "finish_reason": TEXT},
    }
)
LLAMA = Protocol(
    {
        "index": INDEX,
        "content": TEXT,
        "stop": either(False, False, True, 1),
        "stop_type": TEXT,
        "tokens_predicted": NUMBER,
        "tokens_evaluated": NUMBER,
    }
)
BY_PATH: Mapping[str, Protocol] = {
    "/chat/completions": CHAT,
    "/completions": COMPLETIONS,
    "/completion": LLAMA,
    "/responses": RESPONSES,
    "/messages": MESSAGES,
    ":streamGenerateContent": GEMINI,
    "/api/chat": OLLAMA,
    "/api/generate": OLLAMA,
    "/v2/chat": COHERE,
    "/generate_stream": TGI,
}
"""By the end of the path of an API."""

CONVERSE = Protocol(
    {
        "contentBlockDelta": {
            "contentBlockIndex": INDEX,
            "delta": {"text": TEXT, "reasoningContent": {"text": TEXT}, "toolUse": {"input": TEXT}},
        },
        "metadata": {
            "usage": {"inputTokens": NUMBER, "cacheReadInputTokens": NUMBER, "outputTokens": NUMBER},
            "metrics": {"latencyMs": NUMBER},
        },
    }
)
_COUNTS = {METRICS: {"inputTokenCount": NUMBER, "outputTokenCount": NUMBER}}
INVOKED = tuple(
    Protocol({**protocol.shape, **_COUNTS})
    for protocol in (
        CHAT,
        COMPLETIONS,
        MESSAGES,
        CONVERSE,
        Protocol({"generation": TEXT, "outputs": [{"text": TEXT}], "stop_reason": END}),
    )
)
"""The chunks of models that Bedrock invokes."""


def body(chunks: list[Any], content_type: str) -> list[bytes]:
    """Return the pieces of a body, one for each chunk."""
    texts = [json.dumps(chunk).encode() for chunk in chunks]
    if content_type == "text/event-stream":
        return [b"data: %b\n\n" % text for text in texts]
    return [text + b"\n" for text in texts]
