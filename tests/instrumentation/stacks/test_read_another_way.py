"""Streams that are read past the SDK, and replies that arrive read already: recorded as they were read, or at once."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_anthropic import QUESTION, AnthropicMessages
from support.sse_server import Gate, Reply, SseServer, chunk, whole, words

from otel_llm import semconv

# Clients that are left to the garbage collector, as applications do.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

ANTHROPIC = AnthropicMessages()
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "?"}], "stream": True}
BODY = b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in [*words(3), chunk(finish="stop")])


class ReadsFirst(httpx.HTTPTransport):
    """A transport that reads each body before it gives the response out."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        response.read()
        return response


def read(response: Any) -> None:
    response.read()


async def aread(response: Any) -> None:
    await response.aread()


def chat(server: SseServer, **settings: Any) -> Any:
    return openai.OpenAI(api_key="none", base_url=server.url, max_retries=0, **settings).chat.completions


def messages(server: SseServer, **settings: Any) -> Any:
    url = server.url.removesuffix("/v1")
    return anthropic.Anthropic(api_key="none", base_url=url, max_retries=0, **settings).messages


def beneath(look: Callable[[Any], Any]) -> Callable[[SseServer], Any]:
    """Return what reads the response of an OpenAI stream, which stays alive meanwhile."""

    def call(server: SseServer) -> Any:
        stream = chat(server).create(**ASKED)
        return look(stream.response)

    return call


def abeneath(look: Callable[[Any], Any]) -> Callable[[SseServer], Any]:
    async def call(server: SseServer) -> Any:
        async with openai.AsyncOpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
            stream = await client.chat.completions.create(**ASKED)
            return await look(stream.response)

    return lambda server: asyncio.run(call(server))


async def gathered(pieces: Any) -> list[Any]:
    return [piece async for piece in pieces]


def parsed_then_lines(server: SseServer) -> Any:
    stream = chat(server).with_raw_response.create(**ASKED).parse()
    return list(stream.response.iter_lines())


def streamed_then_bytes(server: SseServer) -> Any:
    with chat(server).with_streaming_response.create(**ASKED) as response:
        return b"".join(response.parse().response.iter_bytes())


def read_then_looped(server: SseServer) -> Any:
    stream = chat(server).create(**ASKED)
    return stream.response.read(), [one.choices[0].delta.content for one in stream]


def helper_lines(server: SseServer) -> Any:
    with messages(server).stream(**QUESTION) as stream:
        return list(stream.response.iter_lines())


def hooked(server: SseServer) -> Any:
    client = httpx2.Client(event_hooks={"response": [read]})
    return [one.choices[0].delta.content for one in chat(server, http_client=client).create(**ASKED)]


def hooked_raw(server: SseServer) -> Any:
    client = httpx2.Client(event_hooks={"response": [read]})
    return chat(server, http_client=client).with_raw_response.create(**ASKED).http_response.text


def plain(**settings: Any) -> Callable[[SseServer], Any]:
    """Return what streams over httpx itself."""

    def call(server: SseServer) -> Any:
        with (
            httpx.Client(**settings) as client,
            client.stream("POST", f"{server.url}/chat/completions", json=ASKED) as response,
        ):
            return list(response.iter_lines())

    return call


def posted(**settings: Any) -> Callable[[SseServer], Any]:
    def call(server: SseServer) -> Any:
        with httpx.Client(**settings) as client:
            return client.post(f"{server.url}/chat/completions", json=ASKED).text

    return call


def plain_async(server: SseServer) -> Any:
    async def call() -> Any:
        async with httpx.AsyncClient(event_hooks={"response": [aread]}) as client:
            return (await client.post(f"{server.url}/chat/completions", json=ASKED)).text

    return asyncio.run(call())


def aiohttp_read_within(server: SseServer) -> Any:
    async def look(response: aiohttp.ClientResponse) -> None:
        await response.read()

    async def call() -> Any:
        async with aiohttp.ClientSession(raise_for_status=look) as session:
            return await (await session.post(f"{server.url}/chat/completions", json=ASKED)).text()

    return asyncio.run(call())


def mock() -> httpx.MockTransport:
    headers = {"content-type": "text/event-stream"}
    return httpx.MockTransport(lambda _: httpx.Response(200, content=BODY, headers=headers))


WAYS: dict[str, Callable[[SseServer], Any]] = {
    "bytes": beneath(lambda response: b"".join(response.iter_bytes())),
    "lines": beneath(lambda response: list(response.iter_lines())),
    "text": beneath(lambda response: "".join(response.iter_text())),
    "raw": beneath(lambda response: b"".join(response.iter_raw())),
    "read": beneath(lambda response: response.read()),
    "async bytes": abeneath(lambda response: gathered(response.aiter_bytes())),
    "async lines": abeneath(lambda response: gathered(response.aiter_lines())),
    "async read": abeneath(lambda response: response.aread()),
    "read, then looped": read_then_looped,
    "parsed, then lines": parsed_then_lines,
    "streamed, parsed, then bytes": streamed_then_bytes,
    "a copy": lambda server: [one.choices[0].delta.content for one in copy.copy(chat(server).create(**ASKED))],
    "anthropic, the stream dropped": lambda server: list(
        messages(server).create(**QUESTION, stream=True).response.iter_lines()
    ),
    "anthropic, helper": helper_lines,
    "event hook": hooked,
    "event hook, raw response": hooked_raw,
    "httpx, event hook": plain(event_hooks={"response": [read]}),
    "httpx, event hook, whole": posted(event_hooks={"response": [read]}),
    "httpx, event hook, async": plain_async,
    "httpx, transport that reads": plain(transport=ReadsFirst()),
    "httpx, transport that reads, whole": posted(transport=ReadsFirst()),
    "httpx, mocked": plain(transport=mock()),
    "aiohttp, read within": aiohttp_read_within,
}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_stream_is_recorded_whoever_reads_it(way: str, server: SseServer, request: pytest.FixtureRequest) -> None:
    server.replies["m"] = whole(3)
    server.replies[QUESTION["model"]] = (
        Reply([*ANTHROPIC.before(), *ANTHROPIC.words(3), *ANTHROPIC.after()]) if "anthropic" in way else whole(3)
    )
    bare = WAYS[way](server)
    recorder: Recorded = request.getfixturevalue("recorder")
    assert WAYS[way](server) == bare
    gc.collect()
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 3, 3)
    assert len(recorder.requests()) == 1


def test_lines_read_past_the_sdk_have_their_own_times(server: SseServer, recorder: Recorded) -> None:
    gate = Gate()
    server.replies["m"] = Reply([*words(1), gate, *words(2), chunk(finish="stop")])
    stream = chat(server).create(**ASKED)
    lines = stream.response.iter_lines()
    assert next(lines).startswith("data:")
    gate.open()
    assert list(lines)
    first, *others = recorder.stream().times_ns
    assert len(others) == 2
    assert all(first < other for other in others)


def test_a_caller_who_leaves_its_lines_has_cancelled(server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply([*words(2), Gate()])
    stream = chat(server).create(**ASKED)
    lines = stream.response.iter_lines()
    assert [next(lines) for _ in range(3)]
    stream.response.close()
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("cancelled", 2)
