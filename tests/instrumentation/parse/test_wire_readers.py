"""What is read of Gemini, Ollama, Cohere, TGI and Mistral by the bytes alone, however they are cut."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context
from support.instrumentation.fake_environment import COMMIT_NS, OFFSET_NS, FakeEnvironment
from support.instrumentation.readings import in_ones

from otel_llm.export.records import CONTENT, REASONING, TOOL
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.parse.sse_chunks import Tap, api_of
from otel_llm.instrumentation.parse.wires import WIRES
from otel_llm.instrumentation.segments.choices import Reader
from otel_llm.instrumentation.segments.chunks import PLAIN

Json = dict[str, Any]
Told = dict[tuple[int, int], int]
"""Tokens by choice and kind."""

CHAT = "/v1/chat/completions"
GEMINI = "/v1beta/models/m:streamGenerateContent"
OLLAMA = "/api/chat"
GENERATE = "/api/generate"
COHERE = "/v2/chat"
TGI = "/generate_stream"


def sse(*chunks: Json, end: str = "\n\n") -> bytes:
    return "".join(f"data: {json.dumps(chunk)}{end}" for chunk in chunks).encode()


def lines(*chunks: Json) -> bytes:
    return "".join(json.dumps(chunk) + "\n" for chunk in chunks).encode()


def array(*chunks: Json) -> bytes:
    return ("[" + "\n,\r\n".join(json.dumps(chunk, indent=2) for chunk in chunks) + "\n]").encode()


def gemini(*parts: Json, shown: int | None = None, thoughts: int | None = None, **candidate: Any) -> Json:
    usage: Json = {"promptTokenCount": 7, "totalTokenCount": 7 + (shown or 0) + (thoughts or 0)}
    if shown is not None:
        usage["candidatesTokenCount"] = shown
    if thoughts is not None:
        usage["thoughtsTokenCount"] = thoughts
    said = {"content": {"parts": list(parts), "role": "model"}, **candidate}
    return {"candidates": [said], "usageMetadata": usage, "modelVersion": "served", "responseId": "r-1"}


def thought(text: str) -> Json:
    return {"text": text, "thought": True}


def called(name: str, **args: Any) -> Json:
    return {"functionCall": {"name": name, "args": args}}


def ollama(done: bool = False, **said: Any) -> Json:
    more = {"done_reason": "stop", "prompt_eval_count": 7, "eval_count": 9} if done else {}
    return {"model": "served", "created_at": "2026-01-01T00:00:00.1Z", **said, "done": done, **more}


def message(content: str = "", **more: Any) -> Json:
    return {"message": {"role": "assistant", "content": content, **more}}


def cohere(kind: str, **message: Any) -> Json:
    return {"type": kind, "index": 0, "delta": {"message": message}}


def cohere_end(reason: str, **more: Any) -> Json:
    usage = {"tokens": {"input_tokens": 7, "output_tokens": 9}}
    return {"type": "message-end", "delta": {"finish_reason": reason, "usage": usage, **more}}


def tgi(text: str, *, special: bool = False, whole: str | None = None, details: Json | None = None) -> Json:
    token = {"id": 1, "text": text, "logprob": -0.5, "special": special}
    return {"index": 1, "token": token, "generated_text": whole, "details": details}


def mistral(delta: Json, finish: str | None = None) -> Json:
    return {"id": "m-1", "model": "served", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def thinking(text: str) -> Json:
    return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]}


@dataclass(frozen=True)
class Case:
    """A body and what is to be read of it."""

    path: str
    body: bytes
    told: Told
    outcome: str | None = "completed"
    basis: str = "chunk"
    output: int | None = None
    """The server's own count, on the request span."""
    content_type: str = "text/event-stream"


COUNTED = [
    gemini(thought("hm "), thoughts=3),
    gemini(thought("so"), thoughts=5),
    gemini({"text": "Hello"}, shown=4, thoughts=5),
    gemini({"text": " world"}, called("f", x=1), shown=9, thoughts=5),
    gemini({"text": ""}, shown=9, thoughts=5, finishReason="STOP"),
]
COUNTED_TOLD = {(0, REASONING): 5, (0, CONTENT): 5, (0, TOOL): 4}

CASES: dict[str, Case] = {
    "gemini": Case(GEMINI, sse(*COUNTED, end="\r\n\r\n"), COUNTED_TOLD, basis="exact", output=14),
    "gemini, array": Case(
        GEMINI, array(*COUNTED), COUNTED_TOLD, basis="exact", output=14, content_type="application/json; charset=UTF-8"
    ),
    "gemini, counted at the end alone": Case(
        GEMINI,
        sse(gemini({"text": "a"}), gemini({"text": "b"}), gemini({"text": "c"}, shown=30, finishReason="STOP")),
        {(0, CONTENT): 3},
        output=30,
    ),
    "gemini, counted first and then no more": Case(
        GEMINI,
        sse(gemini({"text": "a "}, shown=2), gemini({"text": "b"}), gemini({"text": "c"}, finishReason="STOP")),
        {(0, CONTENT): 4},
        basis="estimated",
        output=2,
    ),
    "gemini, a count that goes back": Case(
        GEMINI,
        sse(gemini({"text": "a, b "}, shown=5), gemini({"text": "b"}, shown=3, finishReason="STOP")),
        {(0, CONTENT): 6},
        basis="estimated",
        output=3,
    ),
    "gemini, thoughts that are counted and not shown": Case(
        GEMINI,
        sse(
            gemini({"text": "a "}, shown=2, thoughts=90),
            gemini({"text": "b"}, shown=3, thoughts=90, finishReason="STOP"),
        ),
        {(0, CONTENT): 3},
        basis="exact",
        output=93,
    ),
    "gemini, a whole reply in one chunk": Case(
        GEMINI,
        sse(gemini({"text": "all of the text"}, shown=12, finishReason="MAX_TOKENS")),
        {(0, CONTENT): 12},
        "completed",
        "exact",
        12,
    ),
    "gemini, two candidates": Case(
        GEMINI,
        sse(
            {
                "candidates": [{"content": {"parts": [{"text": c}]}, "index": i} for i, c in enumerate("ab")],
                "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 4},
            },
            gemini({"text": "c"}, index=1, shown=9, finishReason="STOP"),
            gemini(index=0, finishReason="STOP"),
        ),
        {(0, CONTENT): 1, (1, CONTENT): 2},
        output=9,
    ),
    "gemini, a call without arguments": Case(
        GEMINI, sse(gemini(called("f"), shown=5, finishReason="STOP")), {}, output=5
    ),
    "gemini, code, its output and a picture": Case(
        GEMINI,
        sse(
            gemini({"executableCode": {"language": "PYTHON", "code": "1"}}),
            gemini({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}}),
            gemini({"inlineData": {"mimeType": "image/png", "data": "AA=="}}, finishReason="STOP"),
        ),
        {(0, TOOL): 1, (0, CONTENT): 1},
    ),
    "gemini, blocked": Case(GEMINI, sse({"promptFeedback": {"blockReason": "SAFETY"}}), {}),
    "gemini, cut off": Case(GEMINI, sse(gemini({"text": "a"}, shown=1)), {(0, CONTENT): 1}, "disconnected", "exact", 1),
    "gemini, failed": Case(
        GEMINI,
        sse(gemini({"text": "a"}, shown=1), {"error": {"code": 503, "status": "UNAVAILABLE"}}),
        {(0, CONTENT): 1},
        "error",
        "exact",
        1,
    ),
    "ollama": Case(
        OLLAMA,
        lines(
            ollama(**message(thinking="hm")),
            ollama(**message("a")),
            ollama(**message('"b"\n')),
            ollama(**message(tool_calls=[{"function": {"name": "f", "arguments": {"x": 1}}}])),
            ollama(done=True, **message()),
        ),
        {(0, REASONING): 1, (0, CONTENT): 2, (0, TOOL): 1},
        output=9,
        content_type="application/x-ndjson",
    ),
    "ollama, a call without arguments": Case(
        OLLAMA,
        lines(
            ollama(**message(tool_calls=[{"function": {"name": "f", "arguments": {}}}])),
            ollama(done=True, **message()),
        ),
        {},
        output=9,
        content_type="application/x-ndjson",
    ),
    "ollama, generate": Case(
        GENERATE,
        lines(ollama(response="", thinking="hm"), ollama(response="a"), ollama(done=True, response="", context=[1])),
        {(0, REASONING): 1, (0, CONTENT): 1},
        output=9,
        content_type="application/x-ndjson",
    ),
    "ollama, cut off": Case(
        OLLAMA,
        lines(ollama(**message("a")))[:-1],
        {(0, CONTENT): 1},
        "disconnected",
        content_type="application/x-ndjson",
    ),
    "ollama, failed": Case(
        OLLAMA,
        lines(ollama(**message("a")), {"error": "an error was encountered while running the model"}),
        {(0, CONTENT): 1},
        "error",
        content_type="application/x-ndjson",
    ),
    "cohere": Case(
        COHERE,
        sse(
            {"type": "message-start", "id": "c-1", "delta": {"message": {"role": "assistant", "content": []}}},
            cohere("tool-plan-delta", tool_plan="I will"),
            cohere("content-start", content={"type": "text", "text": ""}),
            cohere("content-delta", content={"thinking": "hm"}),
            *[cohere("content-delta", content={"text": text}) for text in "abc"],
            cohere("content-end"),
            cohere("tool-call-start", tool_calls={"id": "t", "function": {"name": "f", "arguments": ""}}),
            cohere("tool-call-delta", tool_calls={"function": {"arguments": "{}"}}),
            {"type": "citation-start", "delta": {"message": {"citations": {"text": "a"}}}},
            cohere_end("COMPLETE"),
        ),
        {(0, REASONING): 2, (0, CONTENT): 3, (0, TOOL): 1},
        output=9,
    ),
    "cohere, failed": Case(
        COHERE,
        sse(cohere("content-delta", content={"text": "a"}), cohere_end("ERROR", error="internal")),
        {(0, CONTENT): 1},
        "error",
        output=9,
    ),
    "tgi": Case(
        TGI,
        sse(
            tgi("a"),
            tgi(""),  # of an unfinished UTF-8 sequence
            tgi("é"),
            tgi("</s>", special=True, whole="aé", details={"generated_tokens": 4, "input_length": 7}),
        ).replace(b"data: ", b"data:"),
        {(0, CONTENT): 3},
        basis="exact",
        output=4,
    ),
    "tgi, its limit": Case(TGI, sse(tgi("a"), tgi("b", whole="ab")), {(0, CONTENT): 2}, basis="exact"),
    "tgi, failed": Case(
        TGI, sse(tgi("a"), {"error": "no", "error_type": "generation"}), {(0, CONTENT): 1}, "error", "exact"
    ),
    "mistral": Case(
        CHAT,
        sse(
            mistral({"role": "assistant", "content": ""}),
            *[mistral(thinking(text)) for text in ("hm", "so", "")],
            *[mistral({"content": text}) for text in "ab"],
            mistral({"content": [{"type": "text", "text": "c"}, {"type": "reference", "reference_ids": [1]}]}),
            mistral({"content": "", "tool_calls": [{"id": "t", "function": {"name": "f", "arguments": "{}"}}]}, "stop"),
        ),
        {(0, REASONING): 2, (0, CONTENT): 3, (0, TOOL): 1},
    ),
}


def tapped(case: Case, host: FakeEnvironment) -> Tap:
    """Return what sees the body of a reply that was asked for now."""
    api = api_of(case.path, WIRES)
    assert api is not None
    recording = Recording(host, Request("chat m", COMMIT_NS, OFFSET_NS, says_complete=True), api.reader())
    recording.announce(context.get_current())
    return Tap(recording, api, api.parsers[case.content_type.partition(";")[0]])


def read(case: Case, pieces: list[bytes]) -> tuple[list[Any], Reader]:
    """Return the marks of a body that comes in pieces, and their reader."""
    tap = tapped(case, FakeEnvironment())
    items: list[Any] = []
    tap.recording.append = items.append
    for piece in pieces:
        tap.take(piece)
    tap.ended()
    return [PLAIN if isinstance(item, int) else in_ones(item[1]) for item in items], tap.recording.reader


def cut(body: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(index % (len(body) + 1) for index in at), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]


def told(marks: list[Any]) -> Told:
    tokens: Counter[tuple[int, int]] = Counter()
    for choice, kind, count, _ in itertools.chain.from_iterable(marks):
        tokens[choice, kind] += count
    return {who: count for who, count in tokens.items() if count}


@pytest.mark.parametrize("name", CASES)
def test_a_body_tells_its_tokens_however_it_is_cut(name: str) -> None:
    case = CASES[name]
    draw = random.Random(name)
    ways = [[case.body], [bytes([byte]) for byte in case.body]]
    ways += [cut(case.body, [draw.randrange(10_000) for _ in range(draw.randrange(1, 20))]) for _ in range(50)]
    whole, _ = read(case, [case.body])
    assert told(whole) == case.told
    for pieces in ways:
        marks, reader = read(case, pieces)
        assert [mark for mark in marks if mark] == [mark for mark in whole if mark]
        assert reader.basis(0) == case.basis


@pytest.mark.parametrize("name", CASES)
def test_a_body_tells_how_it_ended_and_what_it_says_of_itself(name: str) -> None:
    case = CASES[name]
    host = FakeEnvironment()
    tap = tapped(case, host)
    tap.take(case.body)
    tap.ended()
    outcomes = {record.attributes.get("otel_llm.outcome") for record in host.sent} - {None}
    assert outcomes == {case.outcome}
    said = tap.recording.reader.reported.span_attributes()
    assert said.get("gen_ai.usage.output_tokens") == case.output
    if case.output is not None and "candidates" not in name and case.path != TGI:
        assert said["gen_ai.usage.input_tokens"] == 7


WORDS = st.sampled_from(
    sorted({key for case in CASES.values() for key in re.findall(r'"(\w+)" ?:', case.body.decode())})
)
"""What the readers look for, and more."""
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a", "", "message-end", "ERROR"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize("name", ["gemini", "gemini, array", "ollama", "ollama, generate", "cohere", "tgi", "mistral"])
@given(chunks=st.lists(HOSTILE, max_size=4), noise=st.binary(max_size=8))
def test_whatever_a_server_sends_is_read_as_something(name: str, chunks: list[Any], noise: bytes) -> None:
    case = CASES[name]
    write = {"text/event-stream": sse, "application/x-ndjson": lines}.get(case.content_type, array)
    for body in (write(*chunks), noise + write(*chunks) + noise):
        host = FakeEnvironment()
        tap = tapped(case, host)
        tap.take(body)
        tap.ended()
        assert host.bugs == []
        assert tap.recording.reader.basis(0) in {"exact", "chunk", "estimated"}
        tap.recording.reader.reported.span_attributes()
