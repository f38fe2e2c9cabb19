"""What is recorded of streams of the real SDK: choices, counts, kinds, names; and that the objects stay the SDK's."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.matrix import Caller, Case, Stack, ends_as_bare, reads_all, reads_all_async
from support.instrumentation.matrix import whole as whole_reply
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_openai import OpenAIChat
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import (
    DONE,
    BodyEnd,
    Cut,
    Gate,
    Raw,
    Reply,
    SseServer,
    Step,
    chunk,
    usage,
    usage_of,
    whole,
    words,
)

import otel_llm
from otel_llm import semconv

QUESTION: dict[str, Any] = {"model": "m", "messages": [], "stream": True}


@pytest.fixture
def client(server: SseServer) -> Iterator[Any]:
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        yield client


def consume(client: Any, **more: Any) -> None:
    for _ in client.chat.completions.create(**QUESTION, **more):
        pass


def test_the_stream_is_the_sdks_own(client: Any, server: SseServer) -> None:
    server.replies["m"] = whole(2)

    def look() -> list[object]:
        stream = client.chat.completions.create(**QUESTION)
        looked = [
            type(stream),
            type(iter(stream)),
            type(stream.response),
            stream.response.status_code,
            stream.response.stream.elapsed,
            type(stream.response.stream).__name__,
            repr(stream).partition(" at ")[0],
            inspect.signature(type(stream).__iter__),
            sorted(name for name in dir(stream) if not name.startswith("_")),
        ]
        stream.close()
        return looked

    bare = look()
    otel_llm.instrument(exporter=InMemorySpanExporter())
    recorded = look()
    otel_llm.uninstrument()
    assert recorded == bare == look()


def test_each_choice_is_a_stream_of_its_own(client: Any, server: SseServer, recorder: Recorded) -> None:
    late = [chunk({"content": "x"}, index=1), chunk(finish="stop", index=1)]
    server.replies["m"] = Reply([*words(3), chunk(finish="stop"), *late, DONE])
    consume(client, n=2)
    first, second = recorder.streams()
    first.check()
    second.check()
    assert [stream.segments[0].start_time for stream in (first, second)] == [first.segments[0].start_time] * 2
    assert semconv.CHOICE not in first.last
    assert second.last[semconv.CHOICE] == 1
    assert [(stream.outcome, stream.last[semconv.TOKENS]) for stream in (first, second)] == [
        ("completed", 3),
        ("completed", 1),
    ]
    [request] = recorder.requests()
    attributes = dict(request.attributes or {})
    assert attributes[semconv.GEN_AI_REQUEST_CHOICE_COUNT] == 2
    assert (attributes[semconv.TOKENS], attributes[semconv.OUTCOME]) == (4, "completed")


def test_a_choice_that_is_complete_stays_so_when_the_rest_is_cancelled(
    client: Any, server: SseServer, recorder: Recorded
) -> None:
    gate = Gate()
    server.replies["m"] = Reply([*words(3), chunk(finish="stop"), chunk({"content": "x"}, index=1), gate])
    stream = client.chat.completions.create(**QUESTION, n=2)
    for _ in range(5):
        next(stream)
    stream.close()
    gate.open()
    first, second = recorder.streams()
    assert (first.outcome, second.outcome) == ("completed", "cancelled")
    assert (first.segments[-1].end_time or 0) < (second.segments[-1].end_time or 0)
    assert dict(recorder.requests()[0].attributes or {})[semconv.OUTCOME] == "cancelled"


def test_a_choice_that_nobody_asked_for_is_a_stream_too(client: Any, server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply([*words(2), chunk({"content": "x"}, index=3), chunk(finish="stop"), DONE])
    consume(client)
    streams = recorder.streams()
    for stream in streams:
        stream.check()
    assert [stream.last.get(semconv.CHOICE) for stream in streams] == [None, 3]


def test_a_stream_ends_when_the_server_says_so_not_when_the_reader_asks(
    client: Any, server: SseServer, recorder: Recorded
) -> None:
    gate = Gate()
    server.replies["m"] = Reply([*words(2), chunk(finish="stop"), gate, DONE])
    stream = client.chat.completions.create(**QUESTION)
    for _ in range(3):
        next(stream)
    told = time.time_ns()
    gate.open()
    assert next(stream, None) is None
    assert (recorder.stream().segments[-1].end_time or 0) <= told


def test_exact_counts(client: Any, server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply(
        [
            chunk({"role": "assistant", "content": ""}, usage=usage_of(0)),
            chunk({"reasoning_content": "h"}, usage=usage_of(1)),
            chunk({"content": "a b"}, usage=usage_of(4)),
            chunk({"content": ""}, usage=usage_of(5)),
            chunk({}, finish="stop", usage=usage_of(6)),
            usage(6),
            DONE,
        ]
    )
    consume(client)
    stream = recorder.stream()
    assert (stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == (6, "exact")
    assert stream.last[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 7
    events = [dict(event.attributes or {}) for segment in stream.segments for event in segment.events]
    assert events == [{semconv.TOKEN_KIND: "reasoning"}, {semconv.TOKEN_COUNT: 3}, {}, {}]


def test_segment_0_says_who_waits(client: Any, server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = whole(1)
    before = time.time_ns()
    consume(client)
    first = recorder.stream().segments[0]
    url = client.base_url
    assert dict(first.attributes or {}) == {
        semconv.SEGMENT_SEQ: 0,
        semconv.SEGMENT_FIRST_TOKEN: 0,
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: "m",
        semconv.GEN_AI_PROVIDER_NAME: "openai",
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: url.port,
        semconv.MEASURED_AT: "client",
    }
    assert before <= (first.start_time or 0) <= time.time_ns()
    assert first.resource.attributes[semconv.SERVICE_INSTANCE_ID]


def test_segment_0_leaves_before_any_token(client: Any, server: SseServer, recorder: Recorded) -> None:
    gate = Gate()
    server.replies["m"] = Reply([*words(1), chunk(finish="stop"), DONE], before_headers=gate)

    async def main() -> None:
        async with openai.AsyncOpenAI(api_key="none", base_url=server.url) as client:
            task = asyncio.ensure_future(client.chat.completions.create(**QUESTION))
            while not recorder.exporter.get_finished_spans():  # with the deadline that the test's own gate has
                await asyncio.sleep(0.005)
            first, *_ = recorder.exporter.get_finished_spans()
            assert (first.attributes or {})[semconv.SEGMENT_SEQ] == 0
            gate.open()
            async for _ in await task:
                pass

    asyncio.run(main())
    recorder.stream()


def test_the_class_comes_from_the_baggage_or_the_application(client: Any, server: SseServer) -> None:
    server.replies["m"] = whole(1)
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="chat")
    try:
        consume(client)
        token = context.attach(baggage.set_baggage(semconv.SLO_CLASS, "voice"))
        consume(client)
        context.detach(token)
        classes = [(stream.segments[0].attributes or {})[semconv.SLO_CLASS] for stream in Recorded(exporter).streams()]
    finally:
        otel_llm.uninstrument()
    assert classes == ["chat", "voice"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("1.41", {semconv.GEN_AI_PROVIDER_NAME}),
        ("new", {semconv.GEN_AI_PROVIDER_NAME}),
        ("old", {semconv.GEN_AI_SYSTEM}),
        ("both", {semconv.GEN_AI_PROVIDER_NAME, semconv.GEN_AI_SYSTEM}),
    ],
)
def test_renamed_attributes_go_by_the_names_one_asks_for(
    names: Any, expected: set[str], client: Any, server: SseServer
) -> None:
    server.replies["m"] = Reply([*words(1), chunk(finish="stop"), usage(1), DONE])
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, semconv=names)
    try:
        consume(client)
        stream = Recorded(exporter).stream()
    finally:
        otel_llm.uninstrument()
    said = {key for segment in stream.segments for key in dict(segment.attributes or {})}
    assert said & {semconv.GEN_AI_PROVIDER_NAME, semconv.GEN_AI_SYSTEM} == expected
    assert semconv.GEN_AI_USAGE_INPUT_TOKENS in said, "it is older than all of these versions"


def test_content_is_nowhere(client: Any, server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply([chunk({"content": "SECRET"}), chunk(finish="stop"), DONE])
    for _ in client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "SECRET"}], stream=True, extra_headers={"x-key": "SECRET"}
    ):
        pass
    assert "SECRET" not in "".join(span.to_json() for span in recorder.spans())


def test_an_azure_client_is_known_by_its_class(server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = whole(1)
    base = server.url.removesuffix("/v1")
    with openai.AzureOpenAI(api_key="none", azure_endpoint=base, api_version="1", max_retries=0) as client:
        consume(client)
    assert (recorder.stream().segments[0].attributes or {})[semconv.GEN_AI_PROVIDER_NAME] == "azure.ai.openai"


def test_so_is_any_client_of_an_azure_host(recorder: Recorded) -> None:
    transport = httpx2.MockTransport(lambda _: httpx2.Response(500))
    with (
        httpx2.Client(transport=transport) as http,
        openai.OpenAI(
            api_key="none", base_url="https://mine.openai.azure.com/openai/v1", http_client=http, max_retries=0
        ) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(**QUESTION)
    assert (recorder.stream().segments[0].attributes or {})[semconv.GEN_AI_PROVIDER_NAME] == "azure.ai.openai"


def reads_on(caller: Caller, stack: Stack, client: Any) -> None:
    stream = stack.open(client)
    for item in stream:
        caller.take(item)
        break
    for item in stream:
        caller.take(item)


async def reads_on_async(caller: Caller, stack: Stack, client: Any) -> None:
    stream = await stack.aopen(client)
    async for item in stream:
        caller.take(item)
        break
    async for item in stream:
        caller.take(item)


def stops_at_the_reason(caller: Caller, stack: Stack, client: Any) -> None:
    for item in stack.open(client):
        caller.take(item)
        if item.choices[0].finish_reason:
            break


async def stops_at_the_reason_async(caller: Caller, stack: Stack, client: Any) -> None:
    async for item in await stack.aopen(client):
        caller.take(item)
        if item.choices[0].finish_reason:
            break


def sent(*steps: Step) -> Callable[[Stack, Gate], list[Step]]:
    return lambda _stack, _gate: list(steps)


READ = (reads_all, reads_all_async)
CASES = {
    "[DONE] without a finish reason": Case("completed", 3, sent(*words(3), DONE), *READ),
    "a finish reason without [DONE]": Case("completed", 3, sent(*words(3), chunk(finish="stop"), BodyEnd()), *READ),
    "cut at once": Case("disconnected", 0, sent(Cut()), *READ),
    "garbage": Case("error", 3, sent(*words(3), Raw(b"data: {not json\n\n")), *READ),
    "break, then read on": Case("completed", 6, whole_reply, reads_on, reads_on_async),
    "break at the reason": Case("completed", 6, whole_reply, stops_at_the_reason, stops_at_the_reason_async),
}
"""Ends that the other clients of the matrix do not have, or not as these."""


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("mode", OpenAIChat.modes)
@pytest.mark.parametrize("name", CASES)
def test_a_stream_ends_once_as_it_did_and_the_caller_sees_the_bare_sdk(
    name: str, mode: str, server: SseServer, caplog: pytest.LogCaptureFixture
) -> None:
    ends_as_bare(OpenAIChat(), CASES[name], mode, server)
    assert ours(caplog) == []


@pytest.mark.parametrize("mode", ["headers", "chunk"])
def test_a_time_out_is_an_error(mode: str, server: SseServer, recorder: Recorded) -> None:
    gate = Gate()
    server.replies["m"] = Reply([gate], before_headers=gate if mode == "headers" else None)
    with (
        openai.OpenAI(api_key="none", base_url=server.url, max_retries=0, timeout=0.2) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        for _ in client.chat.completions.create(model="m", messages=[], stream=True):
            pass
    gate.open()
    assert recorder.stream().outcome == "error"


def test_cancelled_while_waiting_for_the_headers(server: SseServer, recorder: Recorded) -> None:
    gate = Gate()
    server.replies["m"] = Reply(before_headers=gate)

    async def main() -> None:
        async with openai.AsyncOpenAI(api_key="none", base_url=server.url) as client:
            task = asyncio.ensure_future(client.chat.completions.create(model="m", messages=[], stream=True))
            while not server.requests:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    gate.open()
    assert recorder.stream().outcome == "cancelled"


def test_closed_by_another_thread_while_it_is_read(server: SseServer, recorder: Recorded) -> None:
    gate = Gate()
    server.replies["m"] = Reply([*words(2), gate, chunk(finish="stop"), DONE])
    ended = threading.Event()
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
        two = threading.Event()

        def read() -> None:
            got = 0
            with contextlib.suppress(Exception):
                for _ in stream:
                    got += 1
                    if got == 2:
                        two.set()
            ended.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert two.wait(WAIT_S)
        with contextlib.suppress(Exception):  # httpx2 may object to it; that is the caller's affair
            stream.close()
        gate.open()
        assert ended.wait(WAIT_S)
        reader.join()
    assert recorder.stream().outcome == "cancelled"
