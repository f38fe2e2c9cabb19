"""What only aiohttp does with a stream; `test_http_clients.py` has what every HTTP client does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientResponse, ClientSession, StreamReader
from multidict import CIMultiDict
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.http_clients import ask_aiohttp, until_empty
from support.instrumentation.late_loop import an_hour_passes
from support.instrumentation.recorded import Recorded
from support.instrumentation.wire_bodies import QUESTION
from support.instrumentation.wire_server import WireServer
from support.logs import ours
from support.sse_server import Gate

import otel_llm
from otel_llm import semconv

CHAT = "/v1/chat/completions"


def test_a_token_is_recorded_when_its_line_is_read_not_when_it_arrives(recorder: Recorded) -> None:
    async def read(response: ClientResponse) -> list[Any]:
        await response.content.wait_eof()  # all of it is here
        lines = [await response.content.readline() for _ in range(3)]
        [stream] = await asyncio.to_thread(recorder.streams)
        assert (len(stream.times_ns), stream.outcome) == (2, None)
        return lines + await until_empty(response.content.readline)

    with WireServer([bodies.word(1), bodies.word(2), bodies.word(3), bodies.DONE]) as server:
        ask_aiohttp(server.url + CHAT, read)
    assert recorder.stream().last[semconv.TOKENS] == 3


def test_a_read_that_was_given_up_and_tried_again_is_no_end(recorder: Recorded) -> None:
    gate = Gate()

    async def read(response: ClientResponse) -> list[Any]:
        content = response.content
        first = [await content.readline(), await content.readline()]
        for _ in range(3):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(content.readline(), 0.01)
        waiting = asyncio.create_task(content.readline())
        await asyncio.sleep(0)
        [stream] = await asyncio.to_thread(recorder.streams)  # settles what was left: somebody waits
        assert stream.outcome is None
        gate.open()
        return [*first, await waiting, *await until_empty(content.readline)]

    with WireServer([bodies.word(1), gate, bodies.word(2), bodies.DONE]) as server:
        assert b"".join(ask_aiohttp(server.url + CHAT, read)) == bodies.word(1) + bodies.word(2) + bodies.DONE
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 2)


def test_two_readers_at_once_are_the_application_s_mistake_alone(recorder: Recorded) -> None:
    gate = Gate()

    async def read(response: ClientResponse) -> list[Any]:
        content = response.content
        first = [await content.readline(), await content.readline()]
        waiting = asyncio.create_task(content.readline())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already waiting"):
            await content.readline()
        gate.open()
        return [*first, await waiting, *await until_empty(content.readline)]

    with WireServer([bodies.word(1), gate, bodies.word(2), bodies.DONE]) as server:
        ask_aiohttp(server.url + CHAT, read)
    assert recorder.stream().outcome == "completed"


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(aiohttp.ClientTimeout(total=60), "TimeoutError"), (aiohttp.ClientTimeout(sock_read=60), "SocketTimeoutError")],
    ids=["total", "between reads"],
)
def test_a_time_out_is_an_error(timeout: aiohttp.ClientTimeout, error: str, recorder: Recorded) -> None:
    gate = Gate()

    async def read(response: ClientResponse) -> list[Any]:
        first = await response.content.readline()
        an_hour_passes()
        return [first, *await until_empty(response.content.readline)]

    with WireServer([bodies.word(1), gate]) as server:
        with pytest.raises(asyncio.TimeoutError):
            ask_aiohttp(server.url + CHAT, read, timeout=timeout)
        gate.open()
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 1)
    [request] = recorder.requests()
    assert str((request.attributes or {})[semconv.ERROR_TYPE]).rpartition(".")[2] == error


def test_a_status_that_aiohttp_raises_for_is_an_error(recorder: Recorded) -> None:
    with (
        WireServer([b"{}"], {"Content-Type": "application/json"}, 503) as server,
        pytest.raises(aiohttp.ClientResponseError),
    ):
        ask_aiohttp(server.url + CHAT, lambda response: response.read(), raise_for_status=True)
    assert recorder.stream().outcome == "error"


def test_a_body_that_ends_after_all_of_it_was_read(recorder: Recorded) -> None:
    gate = Gate()

    async def read(response: ClientResponse) -> list[Any]:
        first = [await response.content.readline(), await response.content.readline()]
        gate.open()
        return [*first, await response.content.readline()]

    with WireServer([bodies.word(1), gate]) as server:
        assert b"".join(ask_aiohttp(server.url + CHAT, read)) == bodies.word(1)
    assert recorder.stream().outcome == "disconnected"


def test_the_application_s_headers_stay_as_they_were(recorder: Recorded) -> None:
    given = CIMultiDict([("X-Mine", "1"), ("X-Mine", "2")])
    headers = given.copy()
    theirs = f"00-{'a' * 32}-{'b' * 16}-01"

    async def post(url: str) -> None:
        async with ClientSession(headers={"Traceparent": theirs}) as session:
            await (await session.post(url, json=QUESTION, headers=headers)).read()

    with WireServer(bodies.chat()) as server:
        asyncio.run(post(server.url + CHAT))
    assert headers == given
    assert server.requests[0].headers["traceparent"] == theirs
    assert recorder.stream().outcome == "completed"


@pytest.mark.parametrize("kind", ["bytes", "payload", "stream"])
def test_the_request_may_be_given_in_any_form(kind: str, recorder: Recorded) -> None:
    body = json.dumps(QUESTION).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    async def post(url: str) -> None:
        data: Any = {"bytes": body, "payload": aiohttp.JsonPayload(QUESTION), "stream": pieces()}[kind]
        async with ClientSession(base_url=url) as session, session.post(CHAT, data=data) as response:
            await response.read()

    with WireServer(bodies.chat()) as server:
        asyncio.run(post(server.url))
    assert server.requests[0].body == body
    [request] = recorder.requests()
    assert request.name == ("chat" if kind == "stream" else "chat m")
    assert recorder.stream().outcome == "completed"


def test_a_hook_that_moved_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    before = ClientSession._request
    monkeypatch.delattr(StreamReader, "_wait")
    otel_llm.instrument(exporter=InMemorySpanExporter())
    try:
        assert ClientSession._request is before
    finally:
        otel_llm.uninstrument()
    assert len(ours(caplog)) == 1
