"""What replies of every API state of their length, and what of it is recorded."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from support.sse_server import Json, chunk

from otel_llm import semconv
from otel_llm.instrumentation.parse.bedrock import ConverseReader, InvokeReader
from otel_llm.instrumentation.parse.messages import MessagesReader
from otel_llm.instrumentation.parse.responses import ResponsesReader
from otel_llm.instrumentation.parse.sse_chunks import View, viewed
from otel_llm.instrumentation.parse.wires import CohereReader, GeminiReader, OllamaReader, TgiReader
from otel_llm.instrumentation.segments.choices import Reader
from otel_llm.instrumentation.segments.chunks import ChunkReader
from otel_llm.instrumentation.segments.statements import Statements, text_of

TEXT = chunk({"content": "a"})
END = chunk({}, finish="stop")


def chat(completion: object, reasoning: object = None, prompt: object = 7, total: object = None) -> Json:
    details = {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **details}


def usage(*counts: object, **more: object) -> Json:
    return {**TEXT, "choices": [], "usage": chat(*counts, **more)}


def block(kind: str, *deltas: Json) -> list[Json]:
    started = {"type": "content_block_start", "index": 0, "content_block": {"type": kind, "thinking": "", "text": ""}}
    return [
        started,
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
    ]


def message(*events: Json, **counts: object) -> list[Json]:
    started = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}}
    return [started, *events, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counts}]


SAID = {"type": "text_delta", "text": "a"}
THOUGHT = {"type": "thinking_delta", "thinking": "hm"}
SIGNED = {"type": "signature_delta", "signature": "x"}


class Case(NamedTuple):
    reader: Any
    chunks: list[Any]
    output: int | None
    reasoning: int | None = None
    prompt: int | None = 7


CASES = {
    "chat": Case(ChunkReader, [TEXT, END, usage(40)], 40),
    "chat, reasoning": Case(ChunkReader, [TEXT, END, usage(40, 30)], 40, 30),
    "chat, no reasoning": Case(ChunkReader, [TEXT, END, usage(40, 0)], 40, 0),
    "chat, as xAI counts": Case(ChunkReader, [TEXT, END, usage(40, 30, total=77)], 70, 30),
    "chat, a total that fits": Case(ChunkReader, [TEXT, END, usage(40, 30, total=47)], 40, 30),
    "chat, no usage": Case(ChunkReader, [TEXT, END], None, prompt=None),
    "chat, on the last chunk": Case(ChunkReader, [TEXT, END | {"usage": chat(40, 30)}], 40, 30),
    "chat, behind the end with a choice": Case(ChunkReader, [TEXT, END, chunk({}) | {"usage": chat(40)}], 40),
    "chat, before the end": Case(ChunkReader, [TEXT, chunk({}) | {"usage": chat(1)}, END], None),
    "chat, before a second choice": Case(
        ChunkReader, [TEXT, END | {"usage": chat(4)}, chunk({"content": "b"}, index=1)], None
    ),
    "chat, of each choice": Case(
        ChunkReader,
        [
            TEXT,
            chunk({"content": "b"}, index=1),
            END | {"usage": chat(4)},
            chunk({}, index=1, finish="stop") | {"usage": chat(5)},
        ],
        None,
    ),
    "chat, twice": Case(ChunkReader, [TEXT, END, usage(40), usage(41, 3)], 41, 3),
    "chat, of no type": Case(ChunkReader, [TEXT, END, usage("40", [3], prompt=None)], None, prompt=None),
    "chat, negative": Case(ChunkReader, [TEXT, END, usage(-1, -1, prompt=-1)], None, prompt=None),
    "chat, absurd": Case(ChunkReader, [TEXT, END, usage(2**63, 2**64, prompt=2**31)], None, prompt=None),
    "chat, nothing": Case(ChunkReader, [TEXT, END, usage(0)], 0),
    "messages": Case(MessagesReader, message(*block("text", SAID), output_tokens=40), 40),
    "messages, thinking": Case(
        MessagesReader, message(*block("thinking", THOUGHT, SIGNED), *block("text", SAID), output_tokens=40), 40
    ),
    "messages, thinking left out": Case(
        MessagesReader, message(*block("thinking", SIGNED), *block("text", SAID), output_tokens=40), None
    ),
    "messages, thinking left out and counted": Case(
        MessagesReader,
        message(
            *block("thinking", SIGNED),
            *block("text", SAID),
            output_tokens=40,
            output_tokens_details={"thinking_tokens": 30},
        ),
        40,
        30,
    ),
    "messages, redacted": Case(
        MessagesReader, message(*block("redacted_thinking"), *block("text", SAID), output_tokens=40), None
    ),
    "messages, cut off": Case(MessagesReader, message(*block("text", SAID))[:-1], None),
    "responses": Case(
        ResponsesReader,
        [
            {"type": "response.output_text.delta", "delta": "a"},
            {
                "type": "response.completed",
                "response": {
                    "usage": {
                        "input_tokens": 7,
                        "output_tokens": 40,
                        "output_tokens_details": {"reasoning_tokens": 30},
                    }
                },
            },
        ],
        40,
        30,
    ),
    "gemini": Case(
        GeminiReader,
        [{"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 10, "thoughtsTokenCount": 30}}],
        40,
        30,
    ),
    "gemini, no thoughts": Case(
        GeminiReader, [{"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 10}}], 10
    ),
    "ollama": Case(OllamaReader, [{"done": True, "prompt_eval_count": 7, "eval_count": 40}], 40),
    "cohere": Case(
        CohereReader,
        [{"type": "message-end", "delta": {"usage": {"tokens": {"input_tokens": 7, "output_tokens": 40}}}}],
        40,
    ),
    "tgi": Case(TgiReader, [{"generated_text": "a", "details": {"input_length": 7, "generated_tokens": 40}}], 40),
}
BEDROCK = {
    "converse": Case(ConverseReader, [{"metadata": {"usage": {"inputTokens": 7, "outputTokens": 40}}}], 40),
    "converse, redacted": Case(
        ConverseReader,
        [
            {"contentBlockDelta": {"delta": {"reasoningContent": {"redactedContent": b"x"}}}},
            {"metadata": {"usage": {"inputTokens": 7, "outputTokens": 40}}},
        ],
        None,
    ),
    "invoke, thinking left out": Case(
        InvokeReader,
        [
            {"chunk": {"bytes": json.dumps(event).encode()}}
            for event in message(*block("thinking", SIGNED), *block("text", SAID), output_tokens=40)
        ],
        None,
    ),
}


def said_by(case: Case, *, views: bool) -> Statements:
    reader: Reader = case.reader()
    for one in case.chunks:
        reader(json.loads(json.dumps(one), object_hook=View) if views else one)
    return reader.reported


@pytest.mark.parametrize("name", [*CASES, *BEDROCK])
def test_a_reply_states_its_length_and_the_reasoning_in_it(name: str) -> None:
    case = (CASES | BEDROCK)[name]
    said = said_by(case, views=name in CASES)
    assert said.input_tokens == case.prompt
    assert said.total == (case.output, case.reasoning)
    attributes = said.segment_attributes(alone=True)
    assert attributes.get(semconv.GEN_AI_USAGE_OUTPUT_TOKENS) == case.output
    assert attributes.get(semconv.GEN_AI_USAGE_REASONING_TOKENS) == case.reasoning
    assert attributes.items() <= said.span_attributes().items()


def test_of_several_choices_no_segment_states_the_length_of_all() -> None:
    said = said_by(CASES["chat, reasoning"], views=True)
    assert said.segment_attributes(alone=False) == {semconv.GEN_AI_USAGE_INPUT_TOKENS: 7}


def test_a_text_of_a_reply_is_cut() -> None:
    reader = ChunkReader()
    reader(viewed({"id": "x" * 1000, "model": "x" * 1000, "choices": [{"index": 0, "finish_reason": "stop"}]}))
    reader(viewed({"choices": [{"index": 1, "finish_reason": "y" * 1000}]}))
    said = reader.reported
    assert [len(text or "") for text in (said.response_id, said.response_model)] == [256, 256]  # no more is kept
    assert said.span_attributes() == {
        semconv.GEN_AI_RESPONSE_ID: "x" * 256,
        semconv.GEN_AI_RESPONSE_MODEL: "x" * 256,
        semconv.GEN_AI_RESPONSE_FINISH_REASONS: ("stop", "y" * 256),
    }


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ("é" * 300, "é" * 256),
        ("\udc00a", "?a"),
        ("\ud83d\ude00", "??"),
        ("a\x00b", "a\x00b"),
        ("", None),
        (5, None),
        ([], None),
    ],
)
def test_a_text_of_a_reply_can_be_encoded(stated: object, kept: str | None) -> None:
    assert text_of(stated) == kept
