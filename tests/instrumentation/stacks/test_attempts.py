"""Calls that are tried again: one row from the first attempt on, and an event for each attempt that failed before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_anthropic import QUESTION, AnthropicMessages
from support.sse_server import Json, Reply, SseServer, whole

import otel_llm
from otel_llm import semconv

ANTHROPIC = AnthropicMessages()
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "?"}], "stream": True}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the SDKs try again without a pause."""
    for client in (openai.OpenAI, openai.AsyncOpenAI, anthropic.Anthropic):
        monkeypatch.setattr(client, "_calculate_retry_timeout", lambda *_args, **_more: 0.0)


def fails_once(server: SseServer, model: str, good: Reply) -> None:
    """Let the server refuse the first request for a model."""
    answers = iter([Reply(status=503)])

    def answer(_: Json) -> Reply:
        return next(answers, good)

    server.replies[model] = answer


def failed(row: ReadableSpan) -> list[dict[str, Any]]:
    return [dict(event.attributes or {}) for event in row.events if event.name == semconv.ATTEMPT_EVENT]


def row(recorder: Recorded) -> ReadableSpan:
    [request] = recorder.requests()
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 3)
    return request


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_retries_of_the_openai_sdk_are_one_row(mode: str, server: SseServer, recorder: Recorded) -> None:
    fails_once(server, "m", whole(3))
    settings: dict[str, Any] = {"api_key": "none", "base_url": server.url, "max_retries": 2}

    async def ask() -> None:
        async with openai.AsyncOpenAI(**settings) as client:
            assert [one async for one in await client.chat.completions.create(model="m", **ASKED)]

    if mode == "async":
        asyncio.run(ask())
    else:
        with openai.OpenAI(**settings) as client:
            assert list(client.chat.completions.create(model="m", **ASKED))
    assert failed(row(recorder)) == [{semconv.ATTEMPT_MODEL: "m", semconv.ERROR_TYPE: "503"}]


def test_the_retries_of_the_anthropic_sdk_are_one_row(server: SseServer, recorder: Recorded) -> None:
    model = QUESTION["model"]
    fails_once(server, model, Reply([*ANTHROPIC.before(), *ANTHROPIC.words(3), *ANTHROPIC.after()]))
    url = server.url.removesuffix("/v1")
    with anthropic.Anthropic(api_key="none", base_url=url, max_retries=2) as client:
        assert list(client.messages.create(**QUESTION, stream=True))
    assert failed(row(recorder)) == [{semconv.ATTEMPT_MODEL: model, semconv.ERROR_TYPE: "503"}]


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout])
def test_an_attempt_that_gets_no_answer_has_the_error_of_the_library(
    error: type[httpx.RequestError], recorder: Recorded, server: SseServer
) -> None:
    server.replies["m"] = whole(3)

    def text() -> Iterator[str]:
        def unanswered(request: httpx.Request) -> httpx.Response:
            raise error("no", request=request)

        url = f"{server.url}/chat/completions"
        with httpx.Client(transport=httpx.MockTransport(unanswered)) as client, pytest.raises(error):
            client.post(url, json={"model": "m", **ASKED})
        with httpx.stream("POST", url, json={"model": "m", **ASKED}) as reply:
            yield from ("word " for line in reply.iter_lines() if '"w' in line)

    assert len(list(otel_llm.track(text(), model="mine"))) == 3
    assert failed(row(recorder)) == [{semconv.ERROR_TYPE: f"httpx.{error.__name__}"}]


def test_a_request_that_is_not_tried_again_has_no_event(server: SseServer, recorder: Recorded) -> None:
    server.replies.update({"m": whole(3), "bad": Reply(status=503)})
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        assert list(client.chat.completions.create(model="m", **ASKED))
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="bad", **ASKED)
    assert [list(request.events) for request in recorder.requests()] == [[], []]


def with_fallbacks(client: openai.OpenAI, *models: str) -> Iterator[str | None]:
    """Yield the texts of the first model that answers, as LangChain's `with_fallbacks` does."""
    for model in models:
        try:
            stream = client.chat.completions.create(model=model, **ASKED)
        except openai.APIError:
            continue
        yield from (one.choices[0].delta.content for one in stream if one.choices[0].delta.content)
        return


def test_a_framework_that_falls_back_is_a_row_for_each_attempt(server: SseServer, recorder: Recorded) -> None:
    server.replies.update({"down": Reply(status=503), "good": whole(3)})
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        assert len(list(with_fallbacks(client, "down", "good"))) == 3
    assert [stream.outcome for stream in recorder.streams()] == ["error", "completed"]


def test_inside_of_track_it_is_one_row(server: SseServer, recorder: Recorded) -> None:
    server.replies.update({"down": Reply(status=503), "good": whole(3)})
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        assert len(list(otel_llm.track(with_fallbacks(client, "down", "good"), model="mine"))) == 3
    request = row(recorder)
    assert (request.attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "mine"
    [attempt] = failed(request)
    assert attempt[semconv.ATTEMPT_MODEL] == "down"
    assert "InternalServerError" in attempt[semconv.ERROR_TYPE]
