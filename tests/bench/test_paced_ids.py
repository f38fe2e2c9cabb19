"""The paced server's replies as ids: whole when continued from any cut, in vLLM's shapes, refused if wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from otel_llm.demo import vocabulary
from otel_llm.demo.paced_requests import MAX_MODEL_LEN, PacedRequest
from otel_llm.demo.paced_server import create_app, stream
from otel_llm.demo.scripted_deliveries import Chunk, Delivery, Stalls, resumed, up_to

Json = dict[str, Any]
PAUSES = (0.5, 0.1, 0.2, 0.3)
CHUNKS = tuple(Chunk(pause, tokens) for pause, tokens in zip(PAUSES, (2, 1, 3, 1), strict=True))
WORDS = 60


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    quick = Delivery("quick", "", tuple(Chunk(0.0, 1 + i % 3) for i in range(WORDS // 2)))
    monkeypatch.setattr("otel_llm.demo.paced_requests.by_name", lambda name: quick if name == "quick" else None)
    return TestClient(create_app())


def events(client: TestClient, path: str, **body: Any) -> list[Json]:
    answer = client.post(path, json={"model": "quick", "stream": True, "return_token_ids": True, **body})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def ids_of(found: list[Json]) -> list[int]:
    return [i for event in found for choice in event["choices"] for i in choice.get("token_ids", [])]


def chat(client: TestClient, text: str = "hello", **body: Any) -> list[Json]:
    return events(client, "/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)


def test_a_chat_continued_from_any_cut_is_the_whole_reply(client: TestClient) -> None:
    whole = chat(client)
    prompt, ids = whole[0]["prompt_token_ids"], ids_of(whole)
    assert len(ids) == WORDS
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in whole)
    assert text == vocabulary.detokenize(ids)
    for cut in range(len(ids) + 1):
        rest = events(client, "/v1/completions", prompt=prompt + ids[:cut], max_tokens=1000)
        assert ids[:cut] + ids_of(rest) == ids
        assert "".join(event["choices"][0]["text"] for event in rest) == vocabulary.detokenize(ids[cut:])
        assert rest[-1]["choices"][0]["finish_reason"] == "stop"


def test_replies_to_different_prompts_differ_and_a_lost_id_shows(client: TestClient) -> None:
    replies = [tuple(ids_of(chat(client, f"reader {i}"))) for i in range(8)]
    assert len(set(replies)) > 1
    prompt = vocabulary.chat_prompt([("user", "reader")])
    whole = vocabulary.continuation(prompt, 200)
    lost = prompt + whole[:5] + whole[6:40]
    assert vocabulary.continuation(lost, 160) != whole[40:]


@given(st.lists(st.integers(0, vocabulary.VOCABULARY - 1), max_size=40), st.integers(0, 60), st.integers(0, 60))
def test_a_continuation_is_a_function_of_the_ids_before(ids: list[int], first: int, second: int) -> None:
    whole = vocabulary.continuation(ids, first + second)
    assert vocabulary.continuation(ids + whole[:first], second) == whole[first:]
    assert all(vocabulary.FIRST_WORD <= i < vocabulary.VOCABULARY for i in whole)


@given(st.text())
def test_a_text_comes_back_from_its_ids(text: str) -> None:
    assert vocabulary.detokenize(vocabulary.tokenize(text)) == text.encode("utf-8", "replace").decode()


def test_shapes_are_those_of_vllm(client: TestClient) -> None:
    opening, first, *_, finish = chat(client)
    assert opening["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert opening["prompt_token_ids"] == vocabulary.chat_prompt([("user", "hello")])
    assert len(first["choices"][0]["token_ids"]) == 1
    assert "prompt_token_ids" not in first
    assert (finish["choices"][0]["finish_reason"], finish["choices"][0]["token_ids"]) == ("stop", [])
    first, second, *_ = events(client, "/v1/completions", prompt=[5, 6], max_tokens=10)
    assert first["choices"][0]["prompt_token_ids"] == [5, 6]
    assert "prompt_token_ids" not in second["choices"][0]


def test_no_ids_and_no_usage_unless_asked_for(client: TestClient) -> None:
    for event in chat(client, return_token_ids=None):
        assert "prompt_token_ids" not in event
        assert "usage" not in event
        assert set(event["choices"][0]) == {"index", "delta", "finish_reason"}


def test_usage_counts_prompt_and_reply(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *_, before, finish, last = chat(client, max_tokens=7, stream_options=options)
    prompt = len(vocabulary.chat_prompt([("user", "hello")]))
    usage = {"prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7}
    assert (before["usage"], finish["usage"], last["usage"]) == (usage, usage, usage)
    assert (finish["choices"][0]["finish_reason"], last["choices"]) == ("length", [])


def test_a_text_completion_brings_sixteen_tokens_by_default(client: TestClient) -> None:
    assert len(ids_of(events(client, "/v1/completions", prompt="people"))) == 16


def test_health_models_and_tokens(client: TestClient) -> None:
    assert client.get("/health").status_code == 200
    assert {one["max_model_len"] for one in client.get("/v1/models").json()["data"]} == {MAX_MODEL_LEN}
    assert client.post("/tokenize", json={"prompt": "hé"}).json()["tokens"] == [104, 195, 169]
    assert client.post("/detokenize", json={"tokens": [104, 195, 169, 256]}).json() == {"prompt": "hépeople "}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": [1, "2"]}, 400),
        ("/v1/completions", {"prompt": [vocabulary.VOCABULARY]}, 400),
        ("/v1/completions", {"prompt": [True]}, 400),
        ("/v1/completions", {}, 400),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400),
        ("/v1/completions", {"prompt": "x", "max_tokens": MAX_MODEL_LEN}, 400),
        ("/v1/completions", {"prompt": "x", "stream": False}, 400),
        ("/v1/completions", {"prompt": "x", "stream_options": 3}, 400),
        ("/v1/completions", {"prompt": "x", "model": ["quick"]}, 404),
        ("/v1/completions", {"prompt": "x", "model": "none"}, 404),
        ("/v1/chat/completions", {"messages": "hello"}, 400),
        ("/v1/chat/completions", {"messages": [1]}, 400),
        ("/v1/chat/completions", {"messages": [{"content": "x" * MAX_MODEL_LEN}]}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
    ],
)
def test_what_cannot_be_served_is_refused(client: TestClient, path: str, body: Json, status: int) -> None:
    answer = client.post(path, json={"model": "quick", "stream": True, **body})
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
    assert client.post(path, content=b"{").status_code == 400
    assert client.post(path, json=[]).status_code == 400


@pytest.mark.parametrize("tokens", range(9))
def test_chunks_are_cut_and_resumed_at_any_token(tokens: int) -> None:
    every = sum(chunk.tokens for chunk in CHUNKS)
    before, behind = up_to(CHUNKS, tokens), resumed(CHUNKS, tokens)
    assert sum(chunk.tokens for chunk in before) == min(tokens, every)
    assert sum(chunk.tokens for chunk in behind) == max(0, every - tokens)
    assert not behind or behind[0].pause_s == CHUNKS[0].pause_s
    assert [chunk.pause_s for chunk in behind[1:]] == list(PAUSES)[len(PAUSES) - len(behind) + 1 :]


@pytest.mark.parametrize("after", range(9))
def test_every_second_stream_stalls_behind_so_many_tokens(after: int) -> None:
    stalls = Stalls(2, after, 10.0)
    assert stalls.applied(1, CHUNKS) == CHUNKS
    stalled = stalls.applied(2, CHUNKS)
    total = sum(chunk.tokens for chunk in CHUNKS)
    assert sum(chunk.tokens for chunk in stalled) == total
    seen = 0
    waits = []
    for chunk in stalled:
        if chunk.pause_s >= 10.0:
            waits.append(seen)
        seen += chunk.tokens
    assert waits == ([after] if after < total else [])


def test_a_full_server_serves_replies_one_after_another() -> None:
    """With one slot a reply begins when the one before has ended, in order of arrival."""
    body = {"model": "healthy", "stream": True, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    asked = PacedRequest.read("chat", body)
    seen: list[int] = []

    async def read(number: int, free: asyncio.Semaphore) -> None:
        async for _ in stream(asked, tuple(Chunk(0.0) for _ in range(3)), free):
            seen.append(number)
            await asyncio.sleep(0)

    async def all_at_once() -> None:
        free = asyncio.Semaphore(1)
        await asyncio.gather(*(read(number, free) for number in range(3)))

    asyncio.run(all_at_once())
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2}
