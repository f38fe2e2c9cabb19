"""Ends of streams that only the OpenAI SDK has; `test_matrix.py` has those of every client."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded
from support.patience import WAIT_S
from support.ports import free_ports
from support.sse_server import DONE, BodyEnd, Cut, Gate, Raw, Reply, SseServer, chunk, whole, words

import otel_llm
from otel_llm import semconv


@dataclass
class Seen:
    """All that the caller got."""

    words: list[str] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    raised: str | None = None
    closed: bool | None = None

    def take(self, got: Any) -> None:
        self.types.add(type(got).__name__)
        self.words += [choice.delta.content or "" for choice in got.choices]


Question = dict[str, Any]
Sync = Callable[[Any, Question, Seen], None]
Async = Callable[[Any, Question, Seen], Awaitable[None]]


@dataclass
class Scenario:
    """One way of reading one reply, and how it ends."""

    outcome: str
    tokens: int
    reply: Callable[[], Reply]
    sync: Sync
    asynchronous: Async


def read_all(client: Any, question: Question, seen: Seen) -> None:
    stream = client.chat.completions.create(**question)
    seen.types.add(type(stream).__qualname__)
    for got in stream:
        seen.take(got)
    seen.closed = stream.response.is_closed


async def read_all_async(client: Any, question: Question, seen: Seen) -> None:
    stream = await client.chat.completions.create(**question)
    seen.types.add(type(stream).__qualname__)
    async for got in stream:
        seen.take(got)
    seen.closed = stream.response.is_closed


def by_next(client: Any, question: Question, seen: Seen) -> None:
    stream = client.chat.completions.create(**question)
    while (got := next(stream, None)) is not None:
        seen.take(got)


async def by_anext(client: Any, question: Question, seen: Seen) -> None:
    stream = await client.chat.completions.create(**question)
    with contextlib.suppress(StopAsyncIteration):
        while True:
            seen.take(await anext(stream))


def peeks(client: Any, question: Question, seen: Seen) -> None:
    stream = client.chat.completions.create(**question)
    for got in stream:
        seen.take(got)
        break
    for got in stream:
        seen.take(got)


async def peeks_async(client: Any, question: Question, seen: Seen) -> None:
    stream = await client.chat.completions.create(**question)
    async for got in stream:
        seen.take(got)
        break
    async for got in stream:
        seen.take(got)


def stops_when_told(client: Any, question: Question, seen: Seen) -> None:
    for got in client.chat.completions.create(**question):
        seen.take(got)
        if got.choices[0].finish_reason:
            break


async def stops_when_told_async(client: Any, question: Question, seen: Seen) -> None:
    async for got in await client.chat.completions.create(**question):
        seen.take(got)
        if got.choices[0].finish_reason:
            break


def helper(client: Any, question: Question, seen: Seen) -> None:
    with client.chat.completions.stream(model=question["model"], messages=question["messages"]) as stream:
        seen.words += [event.delta for event in stream if event.type == "content.delta"]
        seen.words.append(str(stream.get_final_completion().choices[0].message.content))


async def helper_async(client: Any, question: Question, seen: Seen) -> None:
    async with client.chat.completions.stream(model=question["model"], messages=question["messages"]) as stream:
        seen.words += [event.delta async for event in stream if event.type == "content.delta"]
        seen.words.append(str((await stream.get_final_completion()).choices[0].message.content))


def helper_left(client: Any, question: Question, seen: Seen) -> None:
    with client.chat.completions.stream(model=question["model"], messages=question["messages"]) as stream:
        for event in stream:
            if event.type == "content.delta":
                seen.words.append(event.delta)
                if len(seen.words) == 3:
                    break


async def helper_left_async(client: Any, question: Question, seen: Seen) -> None:
    async with client.chat.completions.stream(model=question["model"], messages=question["messages"]) as stream:
        async for event in stream:
            if event.type == "content.delta":
                seen.words.append(event.delta)
                if len(seen.words) == 3:
                    break


def parsed_raw(client: Any, question: Question, seen: Seen) -> None:
    for got in client.chat.completions.with_raw_response.create(**question).parse():
        seen.take(got)


async def parsed_raw_async(client: Any, question: Question, seen: Seen) -> None:
    raw = await client.chat.completions.with_raw_response.create(**question)
    async for got in raw.parse():
        seen.take(got)


def parsed_streaming(client: Any, question: Question, seen: Seen) -> None:
    with client.chat.completions.with_streaming_response.create(**question) as response:
        for got in response.parse():
            seen.take(got)


async def parsed_streaming_async(client: Any, question: Question, seen: Seen) -> None:
    async with client.chat.completions.with_streaming_response.create(**question) as response:
        async for got in await response.parse():
            seen.take(got)


GATE = Gate()


def ten() -> Reply:
    return whole(10)


def three_and_wait() -> Reply:
    return Reply([*words(3), GATE, chunk(finish="stop"), DONE])


def then(*steps: Any) -> Callable[[], Reply]:
    return lambda: Reply([*words(3), *steps])


GARBAGE = Raw(b"data: {not json\n\n")
CASES = {
    "end, by next": Scenario("completed", 10, ten, by_next, by_anext),
    "end, [DONE] without a finish reason": Scenario("completed", 3, then(DONE), read_all, read_all_async),
    "end, finish reason without [DONE]": Scenario(
        "completed", 3, then(chunk(finish="stop"), BodyEnd()), read_all, read_all_async
    ),
    "end, neither": Scenario("disconnected", 3, then(BodyEnd()), read_all, read_all_async),
    "connection cut at once": Scenario("disconnected", 0, lambda: Reply([Cut()]), read_all, read_all_async),
    "garbage": Scenario("error", 3, then(GARBAGE), read_all, read_all_async),
    "break, then read on": Scenario("completed", 10, ten, peeks, peeks_async),
    "break at the finish reason": Scenario("completed", 10, ten, stops_when_told, stops_when_told_async),
    "helper, end": Scenario("completed", 10, ten, helper, helper_async),
    "helper, left": Scenario("cancelled", 3, three_and_wait, helper_left, helper_left_async),
    "raw response": Scenario("completed", 10, ten, parsed_raw, parsed_raw_async),
    "raw response, status": Scenario("error", 0, lambda: Reply(status=500), parsed_raw, parsed_raw_async),
    "streaming response": Scenario("completed", 10, ten, parsed_streaming, parsed_streaming_async),
}


def play(scenario: Scenario, server: SseServer, mode: str) -> Seen:
    """Read the scenario's reply; return what the caller saw."""
    seen = Seen()
    server.replies["m"] = scenario.reply()
    question = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    settings: dict[str, Any] = {"api_key": "none", "base_url": server.url, "max_retries": 0}

    async def asynchronously() -> None:
        async with openai.AsyncOpenAI(**settings) as client:
            await scenario.asynchronous(client, question, seen)

    try:
        if mode == "async":
            asyncio.run(asynchronously())
        else:
            with openai.OpenAI(**settings) as client:
                scenario.sync(client, question, seen)
    except (Exception, KeyboardInterrupt, asyncio.CancelledError) as error:  # noqa: BLE001
        seen.raised = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    return seen


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("case", list(CASES))
def test_a_stream_ends_once_as_it_did_and_the_caller_sees_the_bare_sdk(
    case: str, mode: str, server: SseServer, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = CASES[case]
    GATE.opened.clear()
    bare = play(scenario, server, mode)
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        assert play(scenario, server, mode) == bare
        gc.collect()
        recorded = Recorded(exporter)
        stream = recorded.stream()
        assert (stream.outcome, stream.last[semconv.TOKENS]) == (scenario.outcome, scenario.tokens)
        assert len(stream.times_ns) == scenario.tokens
        [request] = recorded.requests()
        attributes = dict(request.attributes or {})
        assert attributes[semconv.OUTCOME] == scenario.outcome
        assert attributes[semconv.SEGMENTS] == len(stream.segments)
        assert request.status.is_ok == (scenario.outcome not in {"error", "disconnected"})
        assert request.context is not None
        assert {segment.parent.span_id for segment in stream.segments if segment.parent} == {request.context.span_id}
        assert [record.getMessage() for record in caplog.records if record.name == "otel_llm"] == []
    finally:
        otel_llm.uninstrument()
        GATE.open()


def test_nobody_answers(recorder: Recorded) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    with (
        openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.chat.completions.create(model="m", messages=[], stream=True)
    assert recorder.stream().outcome == "disconnected"


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


def test_arguments_that_the_sdk_refuses_are_no_request(server: SseServer, recorder: Recorded) -> None:
    with openai.OpenAI(api_key="none", base_url=server.url) as client, pytest.raises(TypeError):
        client.chat.completions.create(model="m", stream=True)  # type: ignore[call-overload]
    assert recorder.spans() == ()


def test_a_reply_that_is_not_streamed_is_left_alone(server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply(status=500)
    with (
        openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(model="m", messages=[])
    assert recorder.spans() == ()
