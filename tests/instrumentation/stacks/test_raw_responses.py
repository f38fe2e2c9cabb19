"""Raw responses of the SDKs: announced at the call, recorded once, by their bytes or by the stream made of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_anthropic import QUESTION as MESSAGE
from support.instrumentation.stack_anthropic import AnthropicMessages
from support.instrumentation.stack_openai import OpenAIChat, OpenAIResponses
from support.instrumentation.wire_bodies import chat
from support.instrumentation.wire_server import EVENT_STREAM, WireServer
from support.sse_server import Gate, Raw, Reply, SseServer

from otel_llm import semconv

WORDS = 4


@dataclass(frozen=True)
class Resource:
    """One method of an SDK that streams: what the server sends, and how to find the method's resource."""

    stack: Any
    question: dict[str, Any]
    of: Callable[[Any], Any]

    def reply(self) -> Reply:
        return Reply([*self.stack.before(), *self.stack.words(WORDS), *self.stack.after()])


RESOURCES = {
    "chat": Resource(OpenAIChat(), {"model": "m", "messages": []}, lambda client: client.chat.completions),
    "responses": Resource(OpenAIResponses(), {"model": "m", "input": "hello"}, lambda client: client.responses),
    "messages": Resource(AnthropicMessages(), {**MESSAGE, "model": "m"}, lambda client: client.messages),
}

WAYS: dict[str, Callable[[Any], Any]] = {
    "iter_lines": lambda raw: list(raw.iter_lines()),
    "iter_text": lambda raw: list(raw.iter_text()),
    "iter_bytes": lambda raw: list(raw.iter_bytes()),
    "iter_bytes of 7": lambda raw: list(raw.iter_bytes(7)),
    "read": lambda raw: raw.read(),
    "read, then parse": lambda raw: (raw.read(), list(raw.parse())),
    "http_response.iter_raw": lambda raw: list(raw.http_response.iter_raw()),
    "http_response.iter_lines": lambda raw: list(raw.http_response.iter_lines()),
    "parse": lambda raw: list(raw.parse()),
    "parse twice": lambda raw: (raw.parse(), list(raw.parse())),
}


async def every(pieces: Any) -> list[Any]:
    return [piece async for piece in pieces]


async def parsed(raw: Any) -> list[Any]:
    made = raw.parse()
    return await every(await made if inspect.isawaitable(made) else made)


AWAYS: dict[str, Callable[[Any], Any]] = {
    "iter_lines": lambda raw: every(raw.iter_lines()),
    "iter_text": lambda raw: every(raw.iter_text()),
    "iter_bytes": lambda raw: every(raw.iter_bytes()),
    "read": lambda raw: raw.read(),
    "http_response.aiter_raw": lambda raw: every(raw.http_response.aiter_raw()),
    "http_response.aiter_lines": lambda raw: every(raw.http_response.aiter_lines()),
    "parse": parsed,
}


@contextlib.contextmanager
def sdk(name: str, url: str) -> Iterator[Any]:
    settings: dict[str, Any] = {"api_key": "none", "max_retries": 0}
    made: Any
    if name == "messages":
        made = anthropic.Anthropic(base_url=url.removesuffix("/v1"), **settings)
    else:
        made = openai.OpenAI(base_url=url, **settings)
    with made as client:
        yield client


def asdk(name: str, url: str) -> Any:
    settings: dict[str, Any] = {"api_key": "none", "max_retries": 0}
    if name == "messages":
        return anthropic.AsyncAnthropic(base_url=url.removesuffix("/v1"), **settings)
    return openai.AsyncOpenAI(base_url=url, **settings)


def check_once(recorder: Recorded, server: SseServer, tokens: int, outcome: str) -> None:
    """Assert that one request was recorded, one stream, and that the server got its trace."""
    [request] = recorder.requests()
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == (outcome, tokens)
    [headers] = server.headers
    assert request.context is not None
    assert dict(headers)["traceparent"].split("-")[1:3] == [
        f"{request.context.trace_id:032x}",
        f"{request.context.span_id:016x}",
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RESOURCES)
def test_a_raw_response_is_recorded_once_in_whatever_way_it_is_read(
    name: str, way: str, server: SseServer, recorder: Recorded
) -> None:
    resource = RESOURCES[name]
    server.replies["m"] = resource.reply()
    with (
        sdk(name, server.url) as client,
        resource.of(client).with_streaming_response.create(stream=True, **resource.question) as raw,
    ):
        assert WAYS[way](raw)
    check_once(recorder, server, WORDS, "completed")


@pytest.mark.parametrize("way", ["iter_lines", "parse"])
@pytest.mark.parametrize("name", RESOURCES)
def test_so_is_one_that_is_no_context_manager(name: str, way: str, server: SseServer, recorder: Recorded) -> None:
    resource = RESOURCES[name]
    server.replies["m"] = resource.reply()
    with sdk(name, server.url) as client:
        raw = resource.of(client).with_raw_response.create(stream=True, **resource.question)
        WAYS[way](raw if way == "parse" else raw.http_response)
    check_once(recorder, server, WORDS, "completed")


@pytest.mark.parametrize("way", AWAYS)
@pytest.mark.parametrize("name", RESOURCES)
def test_so_are_the_async_ones(name: str, way: str, server: SseServer, recorder: Recorded) -> None:
    resource = RESOURCES[name]
    server.replies["m"] = resource.reply()

    async def main() -> None:
        async with (
            asdk(name, server.url) as client,
            resource.of(client).with_streaming_response.create(stream=True, **resource.question) as raw,
        ):
            assert await AWAYS[way](raw)

    asyncio.run(main())
    check_once(recorder, server, WORDS, "completed")


@pytest.mark.parametrize("way", ["iter_lines", "parse"])
@pytest.mark.parametrize("name", RESOURCES)
def test_the_request_is_announced_before_it_is_read(name: str, way: str, server: SseServer, recorder: Recorded) -> None:
    resource = RESOURCES[name]
    gate = Gate()
    server.replies["m"] = Reply([*resource.stack.before(), gate, *resource.stack.words(1), *resource.stack.after()])
    with (
        sdk(name, server.url) as client,
        resource.of(client).with_streaming_response.create(stream=True, **resource.question) as raw,
    ):
        [waiting] = recorder.streams()
        assert (waiting.outcome, waiting.times_ns) == (None, [])
        gate.open()
        WAYS[way](raw)
    check_once(recorder, server, 1, "completed")


@pytest.mark.parametrize("name", RESOURCES)
def test_one_that_is_closed_unread_is_cancelled(name: str, server: SseServer, recorder: Recorded) -> None:
    resource = RESOURCES[name]
    server.replies["m"] = resource.reply()
    with (
        sdk(name, server.url) as client,
        resource.of(client).with_streaming_response.create(stream=True, **resource.question),
    ):
        pass
    check_once(recorder, server, 0, "cancelled")


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("name", RESOURCES)
def test_one_that_is_dropped_unread_is_abandoned(name: str, server: SseServer, recorder: Recorded) -> None:
    resource = RESOURCES[name]
    server.replies["m"] = resource.reply()
    with sdk(name, server.url) as client:
        resource.of(client).with_raw_response.create(stream=True, **resource.question)
        gc.collect()
        check_once(recorder, server, 0, "abandoned")


@pytest.mark.parametrize("way", ["iter_lines", "parse"])
@pytest.mark.parametrize("name", RESOURCES)
def test_one_whose_loop_is_left_is_cancelled(name: str, way: str, server: SseServer, recorder: Recorded) -> None:
    resource = RESOURCES[name]
    gate = Gate()
    server.replies["m"] = Reply([*resource.stack.before(), *resource.stack.words(1), gate, *resource.stack.after()])
    with (
        sdk(name, server.url) as client,
        resource.of(client).with_streaming_response.create(stream=True, **resource.question) as raw,
    ):
        for piece in raw.iter_lines() if way == "iter_lines" else raw.parse():
            if "w0" in str(piece):
                break
    gate.open()
    check_once(recorder, server, 1, "cancelled")


@pytest.mark.parametrize("way", ["iter_lines", "parse"])
@pytest.mark.parametrize("name", RESOURCES)
def test_one_that_breaks_off_is_disconnected(name: str, way: str, server: SseServer, recorder: Recorded) -> None:
    resource = RESOURCES[name]
    server.replies["m"] = Reply([*resource.stack.before(), *resource.stack.words(2)])
    with (
        sdk(name, server.url) as client,
        resource.of(client).with_streaming_response.create(stream=True, **resource.question) as raw,
    ):
        WAYS[way](raw)
    check_once(recorder, server, 2, "disconnected")


@pytest.mark.parametrize("way", ["iter_lines", "read", "parse"])
def test_a_status_is_an_error_that_the_caller_gets(way: str, server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = Reply(status=500)
    with sdk("chat", server.url) as client, pytest.raises(openai.InternalServerError):
        client.chat.completions.with_raw_response.create(model="m", messages=[], stream=True)
    check_once(recorder, server, 0, "error")


@pytest.mark.parametrize("kind", ["with_raw_response", "with_streaming_response"])
def test_one_that_asks_for_no_stream_is_left_alone(kind: str, server: SseServer, recorder: Recorded) -> None:
    whole = b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'
    with WireServer([whole], {"Content-Type": "application/json"}) as wire, sdk("chat", wire.url) as client:
        made = getattr(client.chat.completions, kind).create(model="m", messages=[])
        with contextlib.nullcontext(made) if kind == "with_raw_response" else made as raw:
            assert raw.parse().id == "x"
        [sent] = wire.requests
        assert "traceparent" not in sent.headers
    assert recorder.spans() == ()


def test_a_whole_reply_where_a_stream_was_asked_for_is_completed(recorder: Recorded) -> None:
    with WireServer([b'{"id": "x"}'], {"Content-Type": "application/json"}) as wire, sdk("chat", wire.url) as client:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=[], stream=True)
        assert raw.http_response.read() == b'{"id": "x"}'
    stream = recorder.stream()
    assert (stream.outcome, stream.times_ns) == ("completed", [])


@pytest.mark.parametrize("way", ["iter_bytes", "read", "parse"])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_is_recorded_behind_its_decoder(way: str, coding: str, recorder: Recorded) -> None:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in chat()] + [packer.flush()]
    with WireServer(pieces, {**EVENT_STREAM, "Content-Encoding": coding}) as wire, sdk("chat", wire.url) as client:
        with client.chat.completions.with_streaming_response.create(model="m", messages=[], stream=True) as raw:
            assert WAYS[way](raw)
        stream = recorder.stream()
        assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)


def test_hostile_bytes_are_read_as_they_are(server: SseServer, recorder: Recorded) -> None:
    hostile = b'data: {\n\ndata: [1]\n\n\xff\xfe\0data: "x"\n\ndata: {"choices": 3}\n\n'
    server.replies["m"] = Reply([Raw(hostile)])
    with (
        sdk("chat", server.url) as client,
        client.chat.completions.with_streaming_response.create(model="m", messages=[], stream=True) as raw,
    ):
        assert raw.read() == hostile
    check_once(recorder, server, 0, "disconnected")
