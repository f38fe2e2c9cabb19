"""The fake of all wires: what it sends is what was asked for, on every wire and in every way to end."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import requests
from support.patience import WAIT_S
from support.wires.reply import Reply, named, words
from support.wires.server import WIRES, WireServer
from support.wires.wire import EngineRequest

MODEL = "tokens-12-reasoning-3"
QUESTION: Any = [{"role": "user", "content": "?"}]
PATHS = {
    "azure": "/openai/deployments/{model}/chat/completions",
    "groq": "/groq/openai/v1/chat/completions",
    "mistral": "/mistral/v1/chat/completions",
    "together": "/together/v1/chat/completions",
    "openai-chat": "/v1/chat/completions",
    "openai-completions": "/v1/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/{model}:streamGenerateContent",
    "ollama-chat": "/api/chat",
    "ollama-generate": "/api/generate",
    "cohere": "/v2/chat",
    "tgi": "/generate_stream",
    "bedrock-converse": "/model/{model}/converse-stream",
    "bedrock-invoke": "/model/{model}/invoke-with-response-stream",
}
ENCODED = {"bedrock-converse", "bedrock-invoke"}
"""Wires whose frames are no text."""


@pytest.fixture(scope="module")
def server() -> Iterator[WireServer]:
    with WireServer() as running:
        yield running


def _post(server: WireServer, wire: str, model: str, query: str = "") -> requests.Response:
    path = PATHS[wire].format(model=model) + query
    asked: Any = {"model": model, "stream": True}
    with requests.Session() as session:
        return session.post(server.url + path, json=asked, headers={"x-wire-reply": model}, timeout=WAIT_S)


def test_every_wire_has_a_path_here() -> None:
    assert {wire.name for wire in WIRES} == set(PATHS)


@pytest.mark.parametrize("wire", PATHS)
def test_a_wire_sends_each_token_in_a_chunk_of_its_own(server: WireServer, wire: str) -> None:
    reply = named(MODEL)
    assert reply is not None
    [found] = [one for one in WIRES if one.name == wire]
    match = found.path.fullmatch(PATHS[wire].format(model=MODEL))
    assert match is not None
    groups = {name: value or "" for name, value in match.groupdict().items()}
    frames = list(found.frames(EngineRequest(match.string, {"model": MODEL}, groups, {}, reply)))
    assert [frame.tokens for frame in frames if frame.tokens] == [1] * 15
    if wire not in ENCODED:
        carrying = [frame.data.decode() for frame in frames if frame.tokens]
        assert [re.findall(r"w\d+ ", data)[:1] for data in carrying] == [[token.text] for token in reply.tokens]
    answered = _post(server, wire, MODEL)
    assert answered.content == b"".join(frame.data for frame in frames)
    assert server.received[-1].wire == wire


@pytest.mark.parametrize("wire", PATHS)
def test_a_reply_ends_as_its_name_says(server: WireServer, wire: str) -> None:
    assert _post(server, wire, "tokens-5-status-429").status_code == 429
    ended = _post(server, wire, "tokens-5-end-3").content
    told = _post(server, wire, "tokens-5-error-3").content
    assert [one.sent for one in server.received[-2:]] == [3, 3]
    assert len(told) > len(ended)
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        _post(server, wire, "tokens-5-cut-3")


def test_gemini_without_events_is_one_json_array(server: WireServer) -> None:
    chunks = _post(server, "gemini", "tokens-3").json()
    assert [chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks] == [
        "w0 ",
        "w1 ",
        "w2 ",
        "",
    ]
    events = _post(server, "gemini", "tokens-3", "?alt=sse").text
    assert events.count("\r\n\r\n") == 4
    vertex = server.url + "/v1beta1/projects/p/locations/l/publishers/google/models/tokens-2:generateContent"
    assert requests.post(vertex, json={}, timeout=WAIT_S).json()["usageMetadata"]["candidatesTokenCount"] == 2


def test_the_sdks_read_it(server: WireServer) -> None:
    with (
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as claude,
    ):
        _read_with(client, claude)


def _read_with(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True, n=2))
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert len(texts) == 24
    with client.responses.stream(model="tokens-4-tools-3", input="?") as events:
        for _ in events:
            pass
        final = events.get_final_response()
    assert final.output_text == "w0 w1 w2 w3 "
    assert [item.type for item in final.output] == ["message", "function_call"]
    with claude.messages.stream(model="tokens-4-tools-3", max_tokens=9, messages=QUESTION) as stream:
        message = stream.get_final_message()
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.content[1].input == {"text": "w0 w1 w2"}  # type: ignore[union-attr]
    assert message.usage.output_tokens == 7


def test_a_reply_by_name_beats_the_default() -> None:
    with WireServer(replies={"own": Reply(words(2))}, default=Reply(words(1))) as server:
        assert _post(server, "tgi", "models/own").text.count("w1") == 2  # a chunk, and the whole text
        assert "w1" not in _post(server, "tgi", "unknown").text


def test_it_runs_as_a_process_that_says_what_it_received() -> None:
    command = [sys.executable, "-m", "support.wires.server", "--port", "0", "--reply", "tokens-2"]
    tests = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=tests, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            url = running.stdout.readline().strip()
            requests.post(f"{url}/v1/chat/completions", json={"model": "m", "stream": True}, timeout=WAIT_S)
            [received] = requests.get(f"{url}/_received", timeout=WAIT_S).json()
            assert (received["wire"], received["body"]["model"]) == ("openai-chat", "m")
            assert requests.delete(f"{url}/_received", timeout=WAIT_S).ok
            assert requests.get(f"{url}/_received", timeout=WAIT_S).json() == []
        finally:
            running.terminate()
