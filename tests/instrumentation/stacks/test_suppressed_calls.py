"""Suppressed instrumentation: the application's is respected and said once; another one's hides no stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import anthropic
import openai
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_anthropic import QUESTION, AnthropicMessages
from support.logs import ours
from support.sse_server import Reply, SseServer, whole

import otel_llm
from otel_llm import semconv

ANTHROPIC = AnthropicMessages()
MODEL = QUESTION["model"]
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "stream": True}


@pytest.fixture(autouse=True)
def replies(server: SseServer) -> None:
    server.replies[MODEL] = whole(3)


def of_anthropic(server: SseServer) -> None:
    server.replies[MODEL] = Reply([*ANTHROPIC.before(), *ANTHROPIC.words(3), *ANTHROPIC.after()])


@contextmanager
def covering_span(tracer: trace.Tracer, attributes: dict[str, str]) -> Iterator[None]:
    """Make a call inside as Logfire's wrapper does: its own span, and everything else suppressed."""
    with tracer.start_as_current_span("Message with 'm'", attributes=attributes), suppress_instrumentation():
        yield


def wrapped(monkeypatch: pytest.MonkeyPatch, tracer: trace.Tracer, attributes: dict[str, str]) -> None:
    """Wrap `request` of the two clients, as Logfire does."""

    def sync(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def request(*args: Any, **kwargs: Any) -> Any:
            with covering_span(tracer, attributes):
                return original(*args, **kwargs)

        return request

    def asynchronous(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        async def request(*args: Any, **kwargs: Any) -> Any:
            with covering_span(tracer, attributes):
                return await original(*args, **kwargs)

        return request

    monkeypatch.setattr(anthropic.Anthropic, "request", sync(anthropic.Anthropic.request), raising=True)
    monkeypatch.setattr(anthropic.AsyncAnthropic, "request", asynchronous(anthropic.AsyncAnthropic.request))


def read_anthropic(server: SseServer, mode: str) -> int:
    settings: dict[str, Any] = {"api_key": "none", "base_url": server.url.removesuffix("/v1"), "max_retries": 0}

    async def read_async() -> int:
        async with anthropic.AsyncAnthropic(**settings) as client:
            return len([event async for event in await client.messages.create(**QUESTION, stream=True)])

    if mode == "async":
        return asyncio.run(read_async())
    with anthropic.Anthropic(**settings) as client:
        if mode == "sync":
            return len(list(client.messages.create(**QUESTION, stream=True)))
        with client.messages.stream(**QUESTION) as stream:
            return len(list(stream.text_stream))


def read_openai(server: SseServer) -> int:
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        return len(list(client.chat.completions.create(**CHAT)))


def outcomes(recorder: Recorded) -> list[tuple[object, object]]:
    return [(stream.outcome, stream.last[semconv.TOKENS]) for stream in recorder.streams()]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return ours(caplog)


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider(shutdown_on_exit=False)


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "not sampled"])
@pytest.mark.parametrize("attributes", [{"gen_ai.operation.name": "chat"}, {}], ids=["of today", "without names"])
@pytest.mark.parametrize("mode", ["sync", "async", "helper"])
def test_a_wrapper_inside_of_the_sdk_that_suppresses_hides_nothing(
    mode: str,
    attributes: dict[str, str],
    sampler: Any,
    server: SseServer,
    recorder: Recorded,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_anthropic(server)
    wrapped(monkeypatch, TracerProvider(sampler, shutdown_on_exit=False).get_tracer("logfire.anthropic"), attributes)
    assert read_anthropic(server, mode) >= 3
    assert outcomes(recorder) == [("completed", 3)]
    assert said(caplog) == []


def test_a_wrapper_around_the_sdk_that_suppresses_under_its_own_span_hides_nothing(
    server: SseServer, recorder: Recorded, provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    with covering_span(provider.get_tracer("theirs"), {"gen_ai.operation.name": "chat"}):
        assert read_openai(server) >= 3
    with covering_span(provider.get_tracer("theirs"), {"openinference.span.kind": "LLM"}):
        assert read_openai(server) >= 3
    assert outcomes(recorder) == [("completed", 3)] * 2
    assert said(caplog) == []


@pytest.mark.parametrize("spans", ["no span", "the application's span"])
def test_what_the_application_suppresses_is_not_recorded_and_said_once_for_each_stack(
    spans: str, server: SseServer, recorder: Recorded, provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    span = trace.INVALID_SPAN if spans == "no span" else provider.get_tracer("app").start_span("request")
    with trace.use_span(span), suppress_instrumentation():
        for _ in range(2):
            assert read_openai(server) >= 3
        of_anthropic(server)
        for mode in ("sync", "async"):
            assert read_anthropic(server, mode) >= 3
    assert recorder.spans() == ()
    lines = said(caplog)
    assert len(lines) == 2
    assert ["openai" in lines[0], "anthropic" in lines[1]] == [True, True]
    assert all("suppressed" in line and "not-recorded.md" in line for line in lines)


def test_the_suppression_of_an_application_holds_inside_of_a_wrapper_too(
    server: SseServer, recorder: Recorded, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_anthropic(server)
    wrapped(monkeypatch, provider.get_tracer("logfire.anthropic"), {})
    with suppress_instrumentation():
        assert read_anthropic(server, "sync") >= 3
    assert recorder.spans() == ()
    assert read_anthropic(server, "sync") >= 3  # and ends with it
    assert outcomes(recorder) == [("completed", 3)]


def test_while_it_is_off_nothing_is_said(server: SseServer, caplog: pytest.LogCaptureFixture) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter())
    otel_llm.uninstrument()
    with suppress_instrumentation():
        assert read_openai(server) >= 3
    assert said(caplog) == []
