"""Gemini, Ollama, Cohere, TGI and others over four HTTP clients: recorded once, as they ended."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from support.instrumentation.http_clients import CLIENTS
from support.instrumentation.recorded import Recorded, Stream, ids
from support.patience import WAIT_S
from support.wires.reply import Reply, words
from support.wires.server import REPLY_HEADER, WireServer

from otel_llm import semconv

Json = dict[str, Any]
MIXED = "reasoning-2-tokens-5-tools-3"
GEMINI_BODY: Json = {"contents": [{"parts": [{"text": "hi"}]}]}


@dataclass(frozen=True)
class Wire:
    """One request, and what is recorded of its reply: two thoughts, five words, a tool call of three tokens."""

    path: str
    body: Json
    operation: str
    provider: str
    tools: int = 3
    """Tokens of the tool call: 1 if it comes in one piece that is not counted."""
    model: bool = True
    """Whether the request names its model."""


WIRES = {
    "gemini": Wire("/v1beta/models/MODEL:streamGenerateContent?alt=sse", GEMINI_BODY, "generate_content", "gcp.gemini"),
    "gemini, array": Wire("/v1beta/models/MODEL:streamGenerateContent", GEMINI_BODY, "generate_content", "gcp.gemini"),
    "vertex": Wire(
        "/v1/projects/p/locations/l/publishers/google/models/MODEL:streamGenerateContent?alt=sse",
        GEMINI_BODY,
        "generate_content",
        "gcp.vertex_ai",
    ),
    "ollama chat": Wire("/api/chat", {"model": "MODEL", "messages": []}, "chat", "ollama", 1),
    "ollama generate": Wire(
        "/api/generate", {"model": "MODEL", "prompt": "", "stream": True}, "text_completion", "ollama", 1
    ),
    "cohere": Wire("/v2/chat", {"model": "MODEL", "messages": [], "stream": True}, "chat", "cohere"),
    "mistral": Wire(
        "/mistral/v1/chat/completions", {"model": "MODEL", "messages": [], "stream": True}, "chat", "openai", 1
    ),
    "azure": Wire(
        "/openai/deployments/MODEL/chat/completions?api-version=1",
        {"messages": [], "stream": True},
        "chat",
        "azure.ai.openai",
    ),
    "tgi": Wire("/generate_stream", {"inputs": "hi"}, "text_completion", "tgi", model=False),
}


@pytest.fixture
def wires() -> Iterator[WireServer]:
    with WireServer() as server:
        yield server


def ask(server: WireServer, name: str, model: str, client: str = "httpx", **more: Any) -> None:
    """Send the request of a wire with this model's name in it, and read the answer to its end."""
    wire = WIRES[name]
    body = {key: model if value == "MODEL" else value for key, value in wire.body.items()}
    sent = json.dumps({**body, **more}).encode()
    CLIENTS[client].post(server.url + wire.path.replace("MODEL", model), sent, {REPLY_HEADER: model})


def kinds(stream: Stream) -> Counter[object]:
    tokens: Counter[object] = Counter()
    for segment in stream.segments:
        for event in segment.events:
            said = event.attributes or {}
            tokens[said.get(semconv.TOKEN_KIND, "content")] += int(str(said.get(semconv.TOKEN_COUNT, 1)))
    return tokens


@pytest.mark.parametrize("client", ["httpx", "httpx2", "aiohttp", "requests"])
@pytest.mark.parametrize("name", WIRES)
def test_a_reply_is_recorded_once_and_its_trace_reaches_the_server(
    name: str, client: str, wires: WireServer, recorder: Recorded
) -> None:
    wire = WIRES[name]
    ask(wires, name, MIXED, client)
    [stream] = recorder.streams()
    [request] = recorder.requests()
    told = dict(request.attributes or {})
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 7 + wire.tools)
    if name == "tgi":  # it does not say what its tokens are of
        assert kinds(stream) == {"content": 10}
    else:
        assert kinds(stream) == {"reasoning": 2, "content": 5, "tool": wire.tools}
    assert (told[semconv.GEN_AI_OPERATION_NAME], told[semconv.GEN_AI_PROVIDER_NAME]) == (wire.operation, wire.provider)
    assert told.get(semconv.GEN_AI_REQUEST_MODEL) == (MIXED if wire.model else None)
    trace_id, span_id = ids(request.context)
    assert [one.headers.get("traceparent") for one in wires.received] == [f"00-{trace_id:032x}-{span_id:016x}-01"]


@pytest.mark.parametrize(
    ("reply", "outcome", "tokens"),
    [
        ("tokens-5-cut-3", "disconnected", 3),
        ("tokens-5-end-3", "disconnected", 3),
        ("tokens-5-error-3", "error", 3),
        ("tokens-5-status-503", "error", 0),
    ],
)
@pytest.mark.parametrize("name", WIRES)
def test_it_ended_as_it_did(
    name: str, reply: str, outcome: str, tokens: int, wires: WireServer, recorder: Recorded
) -> None:
    try:
        ask(wires, name, reply)
    except httpx.TransportError:
        assert "cut" in reply
    [stream] = recorder.streams()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == (outcome, tokens)


@pytest.mark.parametrize("name", WIRES)
def test_a_reader_that_leaves_cancels(name: str, wires: WireServer, recorder: Recorded) -> None:
    gate = threading.Event()
    wires.replies["m"] = Reply(words(3), gates={2: gate})
    wire = WIRES[name]
    body = {key: "m" if value == "MODEL" else value for key, value in wire.body.items()}
    url = wires.url + wire.path.replace("MODEL", "m")
    with (
        httpx.Client(timeout=WAIT_S) as client,
        client.stream("POST", url, json=body, headers={REPLY_HEADER: "m"}) as response,
    ):
        got = ""
        for piece in response.iter_text():
            got += piece
            if "w1" in got:
                break
    gate.set()
    [stream] = recorder.streams()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("cancelled", 2)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1beta/models/tokens-3:generateContent", GEMINI_BODY),
        ("/api/chat", {"model": "tokens-3", "messages": [], "stream": False}),
        ("/api/chat", {"messages": []}),  # somebody else's path of that name
        ("/v2/chat", {"model": "tokens-3", "messages": []}),
        ("/generate", {"inputs": "hi"}),
    ],
)
@pytest.mark.parametrize("client", ["httpx", "httpx2", "aiohttp", "requests"])
def test_what_asks_for_no_stream_is_left_alone(
    client: str, path: str, body: Json, wires: WireServer, recorder: Recorded
) -> None:
    CLIENTS[client].post(wires.url + path, json.dumps(body).encode(), {})
    [sent] = wires.received
    assert "traceparent" not in sent.headers
    if body != {"messages": []}:
        assert recorder.spans() == ()


def test_an_answer_that_streams_unasked_is_recorded_from_its_content_type_on(
    wires: WireServer, recorder: Recorded
) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"model": "tokens-4", "messages": []}'

    with httpx.Client(timeout=WAIT_S) as client:
        client.post(wires.url + "/api/chat", content=body(), headers={REPLY_HEADER: "tokens-4"})
    [stream] = recorder.streams()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 4)


def test_choices_are_streams_of_their_own(wires: WireServer, recorder: Recorded) -> None:
    ask(wires, "gemini", "tokens-3", generationConfig={"candidateCount": 2})
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.GEN_AI_REQUEST_CHOICE_COUNT] == 2
