"""`track` around a call that a hook records: one row, with the class, kind and count that `track` states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import DONE, Cut, Reply, SseServer, chunk, whole, words

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core.suppressing import is_nested, suppressing
from otel_llm.instrumentation.stacks.hooked_stream import recording_of

THINKS = Reply(
    [chunk({"role": "assistant"}), *words(4), chunk({"content": "last"}, finish="stop"), DONE]
)  # the last token comes with the finish reason, as vLLM sends it


@pytest.fixture(autouse=True)
def replies(server: SseServer) -> None:
    server.replies |= {"m": whole(5), "last": THINKS}


@pytest.fixture
def client(server: SseServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as sync:
        yield sync


def ask(client: openai.OpenAI, model: str = "m") -> Any:
    return client.chat.completions.create(model=model, messages=[], stream=True)


def kind(piece: object) -> str | None:
    return None if piece is None else "reasoning"


def count(piece: object) -> int:
    return 2


def text_of(piece: Any) -> str | None:
    content: str | None = piece.choices[0].delta.content
    return content or None


def the_row(recorder: Recorded, tokens: int, basis: str = "exact") -> None:
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == (
        "completed", tokens, basis
    )  # fmt: skip
    said: dict[str, object] = {}
    for segment in [*stream.segments, *recorder.requests()]:
        said |= dict(segment.attributes or {})
    assert said[semconv.SLO_CLASS] == "agent"
    [request] = recorder.requests()
    assert request.context is not None
    assert {parent[0] for parent in stream.parents} == {request.context.trace_id}


def test_the_stream_of_a_call(recorder: Recorded, client: openai.OpenAI) -> None:
    stream = ask(client, "last")
    tracked = otel_llm.track(stream, slo_class="agent", kind=lambda c: kind(text_of(c)), count=count)
    assert tracked is stream
    assert len(list(tracked)) == 6
    the_row(recorder, 10)
    assert recorder.stream().segments[0].attributes is not None
    assert recorder.requests()[0].name == "chat last"


def test_the_stream_of_a_call_without_callbacks_is_counted_as_the_sdk_is(
    recorder: Recorded, client: openai.OpenAI
) -> None:
    list(otel_llm.track(ask(client), slo_class="agent"))
    the_row(recorder, 5, "chunk")


def test_a_generator_that_makes_the_call(recorder: Recorded, client: openai.OpenAI, server: SseServer) -> None:
    def pieces() -> Iterator[str | None]:
        for each in ask(client, "last"):
            yield text_of(each)

    assert len(list(otel_llm.track(pieces(), slo_class="agent", kind=kind, count=count))) == 6
    the_row(recorder, 10)
    [request] = recorder.requests()
    assert request.context is not None
    # The server is in the trace of the one row.
    assert f"{request.context.trace_id:032x}" in dict(server.headers[0])["traceparent"]
    assert dict(server.headers[0])["x-slo-class"] == "agent"


def test_a_generator_that_reads_a_call_made_before(recorder: Recorded, client: openai.OpenAI) -> None:
    stream = ask(client, "last")

    def pieces() -> Iterator[str | None]:
        for each in stream:
            yield text_of(each)

    assert len(list(otel_llm.track(pieces(), slo_class="agent", kind=kind, count=count))) == 6
    the_row(recorder, 10)


def test_a_generator_over_a_generator_and_a_map(recorder: Recorded, client: openai.OpenAI) -> None:
    texts = map(text_of, ask(client))
    list(otel_llm.track((piece for piece in texts), slo_class="agent"))
    the_row(recorder, 5, "chunk")


def by_httpx(url: str, body: dict[str, Any]) -> Iterator[str]:
    with httpx.stream("POST", url, json=body) as reply:
        yield from (line for line in reply.iter_lines() if '"w' in line)


def by_requests(url: str, body: dict[str, Any]) -> Iterator[str]:
    with requests.post(url, json=body, stream=True, timeout=WAIT_S) as reply:
        yield from (line for line in map(bytes.decode, reply.iter_lines()) if '"w' in line)


@pytest.mark.parametrize("read", [by_httpx, by_requests])
def test_a_generator_over_a_bare_http_client(recorder: Recorded, server: SseServer, read: Any) -> None:
    lines = read(f"{server.url}/chat/completions", {"model": "m", "stream": True, "messages": []})
    assert len(list(otel_llm.track(lines, slo_class="agent", count=count))) == 5
    the_row(recorder, 10)
    assert dict(server.headers[0])["x-slo-class"] == "agent"


def test_an_async_generator_over_aiohttp(recorder: Recorded, server: SseServer) -> None:
    async def lines() -> AsyncIterator[bytes]:
        body = {"model": "m", "stream": True, "messages": []}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}/chat/completions", json=body) as reply,
        ):
            async for line in reply.content:
                if b'"w' in line:
                    yield line

    async def main() -> int:
        return len([line async for line in otel_llm.track(lines(), slo_class="agent", count=count)])

    assert asyncio.run(main()) == 5
    the_row(recorder, 10)
    assert dict(server.headers[0])["x-slo-class"] == "agent"


def test_a_response_that_was_asked_for_before(recorder: Recorded, server: SseServer) -> None:
    body = {"model": "m", "stream": True, "messages": []}
    with httpx.stream("POST", f"{server.url}/chat/completions", json=body) as reply:
        list(otel_llm.track(reply.iter_lines(), slo_class="agent"))
    the_row(recorder, 5, "chunk")


def test_async_calls_before_and_inside(recorder: Recorded, server: SseServer) -> None:
    async def inside(client: openai.AsyncOpenAI) -> AsyncIterator[str | None]:
        async for each in await client.chat.completions.create(model="last", messages=[], stream=True):
            yield text_of(each)

    async def over(stream: Any) -> AsyncIterator[str | None]:
        async for each in stream:
            yield text_of(each)

    async def main() -> None:
        async with openai.AsyncOpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
            for make in ("inside", "before", "itself"):
                stated: dict[str, Any] = {"slo_class": "agent", "kind": kind, "count": count}
                if make == "inside":
                    tracked = otel_llm.track(inside(client), **stated)
                else:
                    stream: Any = await client.chat.completions.create(model="last", messages=[], stream=True)
                    if make == "before":
                        tracked = otel_llm.track(over(stream), **stated)
                    else:
                        tracked = otel_llm.track(stream, **stated | {"kind": lambda c: kind(text_of(c))})
                assert len([piece async for piece in tracked]) == 6

    asyncio.run(main())
    streams = recorder.streams()
    assert [(each.outcome, each.last[semconv.TOKENS]) for each in streams] == [("completed", 10)] * 3
    assert len(recorder.requests()) == 3


def test_what_the_application_asks_between_two_chunks_is_a_row_of_its_own(
    recorder: Recorded, client: openai.OpenAI
) -> None:
    for piece in otel_llm.track(iter("ab")):
        if piece == "a":
            list(ask(client))
    assert sorted(int(str(each.last[semconv.TOKENS])) for each in recorder.streams()) == [2, 5]


def test_a_reader_that_leaves_ends_the_one_row(recorder: Recorded, client: openai.OpenAI) -> None:
    def pieces() -> Iterator[str | None]:
        yield from map(text_of, ask(client))

    for _ in otel_llm.track(pieces(), slo_class="agent"):
        break
    assert [each.outcome for each in recorder.streams()] == ["cancelled"]


def lines_of(client: openai.OpenAI, stack: str, model: str = "m") -> Iterator[Any]:
    """Return a reply that was asked for already, by the SDK or by its HTTP client."""
    if stack == "openai":
        return iter(ask(client, model))
    body = {"model": model, "stream": True, "messages": []}
    http = client._client
    reply = http.send(http.build_request("POST", f"{client.base_url}chat/completions", json=body), stream=True)
    return (line for line in reply.iter_lines() if '"w' in line)


def with_a_tail(stream: Any) -> Iterator[str]:
    for _ in stream:
        yield "piece"
    otel_llm.flush()  # the flusher looks meanwhile
    yield "tail"
    yield "end"


@pytest.mark.parametrize("stack", ["openai", "httpx"])
def test_what_comes_after_the_end_of_the_stream_beneath(recorder: Recorded, client: openai.OpenAI, stack: str) -> None:
    stream = lines_of(client, stack)
    pieces = list(otel_llm.track(with_a_tail(stream), slo_class="agent", count=lambda _: 1))
    the_row(recorder, len(pieces))


def test_what_comes_after_the_end_of_the_async_stream_beneath(recorder: Recorded, server: SseServer) -> None:
    async def pieces(stream: Any) -> AsyncIterator[str]:
        async for _ in stream:
            yield "piece"
        otel_llm.flush()
        yield "tail"

    async def main() -> int:
        async with openai.AsyncOpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
            stream: Any = await client.chat.completions.create(model="m", messages=[], stream=True)
            tracked = otel_llm.track(pieces(stream), slo_class="agent", count=lambda _: 1)
            return len([piece async for piece in tracked])

    the_row(recorder, asyncio.run(main()))


@pytest.mark.parametrize("stack", ["openai", "httpx"])
@pytest.mark.parametrize("leave", ["break", "close", "in the tail"])
def test_who_leaves_the_outer_stream_ends_the_row(
    recorder: Recorded, client: openai.OpenAI, stack: str, leave: str
) -> None:
    tracked: Any = otel_llm.track(with_a_tail(lines_of(client, stack)), count=lambda _: 1)
    for piece in tracked:
        if leave == "close":
            tracked.close()
        if leave != "in the tail" or piece == "tail":
            break
    stream = recorder.stream()
    assert stream.outcome == "cancelled"
    assert len(recorder.requests()) == 1


@pytest.mark.parametrize("stack", ["openai", "httpx"])
def test_an_error_beneath_is_the_error_of_the_row(
    recorder: Recorded, client: openai.OpenAI, server: SseServer, stack: str
) -> None:
    server.replies["cut"] = Reply([*words(3), Cut()])
    with pytest.raises(Exception, match=r"peer closed|Connection error"):
        list(otel_llm.track(with_a_tail(lines_of(client, stack, "cut")), count=lambda _: 1))
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("disconnected", 3)


def test_a_client_that_leaves_the_server_ends_the_row(recorder: Recorded, client: openai.OpenAI) -> None:
    stream = ask(client)
    recording = recording_of(stream)
    assert recording is not None
    tracked = otel_llm.track(with_a_tail(stream), count=lambda _: 1)
    next(tracked)
    recording.left()  # as the server's middleware says it
    assert recorder.stream().outcome == "cancelled"


class Pieces:
    """An iterator of the application's own, over the SDK's stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.chunks = iter(stream)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return text_of(next(self.chunks))


def test_an_iterator_that_holds_the_stream(recorder: Recorded, client: openai.OpenAI) -> None:
    assert len(list(otel_llm.track(Pieces(ask(client, "last")), slo_class="agent", kind=kind, count=count))) == 6
    the_row(recorder, 10)


def test_a_task_that_outlives_the_tracked_stream_records_what_it_asks(recorder: Recorded, server: SseServer) -> None:
    async def main() -> None:
        over = asyncio.Event()
        born: list[asyncio.Task[None]] = []

        async def later() -> None:
            await over.wait()
            async with openai.AsyncOpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
                async for _ in await client.chat.completions.create(model="m", messages=[], stream=True):
                    pass

        async def pieces() -> AsyncIterator[int]:
            born.append(asyncio.create_task(later()))
            yield 1

        async for _ in otel_llm.track(pieces()):
            pass
        over.set()
        await born[0]

    asyncio.run(main())
    assert sorted(int(str(each.last[semconv.TOKENS])) for each in recorder.streams()) == [1, 5]


def test_a_task_born_in_a_covered_call_is_covered_no_longer_than_the_call() -> None:
    async def main() -> list[bool]:
        over = asyncio.Event()

        async def look() -> list[bool]:
            seen = [is_nested()]
            await over.wait()
            return [*seen, is_nested()]

        with suppressing():
            task = asyncio.create_task(look())
            await asyncio.sleep(0)
        over.set()
        return await task

    assert asyncio.run(main()) == [True, False]


def test_a_class_that_comes_too_late_is_one_warning(
    server: SseServer, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="chat")
    try:
        for _ in range(2):
            list(otel_llm.track(ask(client), slo_class="agent"))
        assert len(Recorded(exporter).streams()) == 2
    finally:
        otel_llm.uninstrument()
    assert len(ours(caplog)) == 1
