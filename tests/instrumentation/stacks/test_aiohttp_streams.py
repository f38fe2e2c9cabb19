"""Event streams read over the real aiohttp, in every way they can be read: the same bytes, and token times."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientResponse, ClientSession, StreamReader
from multidict import CIMultiDict
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.late_loop import an_hour_passes
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.wire_bodies import QUESTION
from support.instrumentation.wire_server import EVENT_STREAM, WireServer
from support.sse_server import Gate

import otel_llm
from otel_llm import semconv

CHAT = "/v1/chat/completions"
Read = Callable[[ClientResponse], Awaitable[list[Any]]]


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def until(read: Callable[[], Awaitable[bytes]]) -> list[bytes]:
    items = []
    while item := await read():
        items.append(item)
    return items


async def by_readexactly(response: ClientResponse) -> list[Any]:
    items: list[Any] = []
    try:
        while True:
            items.append(await response.content.readexactly(11))
    except asyncio.IncompleteReadError as end:
        return [*items, end.partial, end.expected]


async def by_read_nowait(response: ClientResponse) -> list[Any]:
    await response.content.wait_eof()
    return [response.content.read_nowait(5), response.content.read_nowait()]


async def by_unread(response: ClientResponse) -> list[Any]:
    first = await response.content.readline()
    return [first, await response.read(), response.content.at_eof(), response.content.total_bytes]


WAYS: dict[str, Read] = {
    "lines": lambda response: all_of(aiter(response.content)),
    "any": lambda response: all_of(response.content.iter_any()),
    "chunks": lambda response: all_of(response.content.iter_chunks()),
    "chunked": lambda response: all_of(response.content.iter_chunked(7)),
    "readline": lambda response: until(response.content.readline),
    "readuntil": lambda response: until(lambda: response.content.readuntil(b"\n\n")),
    "readany": lambda response: until(response.content.readany),
    "read of 7": lambda response: until(lambda: response.content.read(7)),
    "readexactly": by_readexactly,
    "read_nowait": by_read_nowait,
    "a line, then all": by_unread,
}
WHOLE: dict[str, Read] = {
    "read": lambda response: until_once(response.read),
    "text": lambda response: until_once(response.text),
    "content.read": lambda response: until_once(response.content.read),
}
PIECES = {"any", "chunks", "chunked", "readany", "read of 7"}
"""What these give depends on what has arrived: compared as a whole."""


async def until_once(read: Callable[[], Awaitable[Any]]) -> list[Any]:
    return [await read()]


def ask(url: str, read: Read, question: Any = QUESTION, **kwargs: Any) -> list[Any]:
    """Return all that a caller gets that reads a reply in one way."""

    async def asked() -> list[Any]:
        async with ClientSession() as session, session.post(url, json=question, **kwargs) as response:
            return [isinstance(response.content, StreamReader), *(await read(response))]

    return asyncio.run(asked())


def joined(items: list[Any]) -> bytes:
    return b"".join(item[0] if isinstance(item, tuple) else item for item in items if not isinstance(item, bool))


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(bodies.chat()) as running:
        yield running


@pytest.mark.parametrize("way", [*WAYS, *WHOLE])
def test_every_way_of_reading_gives_what_it_gave_and_is_recorded(way: str, server: WireServer) -> None:
    read = {**WAYS, **WHOLE}[way]
    bare = ask(server.url + CHAT, read)
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        seen = ask(server.url + CHAT, read)
        recorded = Recorded(exporter)
        stream = recorded.stream()
        [request] = recorded.requests()
    finally:
        otel_llm.uninstrument()
    assert [type(item) for item in seen[:2]] == [type(item) for item in bare[:2]]
    assert (joined(seen) == joined(bare)) if way in PIECES else (seen == bare)
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
    told = dict(request.attributes or {})
    assert request.name == "chat m"
    assert told[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 4
    assert told[semconv.GEN_AI_RESPONSE_MODEL] == "served"
    assert told[semconv.SERVER_ADDRESS] == "127.0.0.1"


def test_a_token_is_recorded_when_its_line_is_read_not_when_it_arrives(recorder: Recorded) -> None:
    async def read(response: ClientResponse) -> list[Any]:
        await response.content.wait_eof()  # all of it is here
        lines = [await response.content.readline() for _ in range(3)]
        [stream] = await asyncio.to_thread(recorder.streams)
        assert (len(stream.times_ns), stream.outcome) == (2, None)
        return lines + await until(response.content.readline)

    with WireServer([bodies.word(1), bodies.word(2), bodies.word(3), bodies.DONE]) as server:
        ask(server.url + CHAT, read)
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
        return [*first, await waiting, *await until(content.readline)]

    with WireServer([bodies.word(1), gate, bodies.word(2), bodies.DONE]) as server:
        assert joined(ask(server.url + CHAT, read)) == bodies.word(1) + bodies.word(2) + bodies.DONE
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
        return [*first, await waiting, *await until(content.readline)]

    with WireServer([bodies.word(1), gate, bodies.word(2), bodies.DONE]) as server:
        ask(server.url + CHAT, read)
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
        return [first, *await until(response.content.readline)]

    with WireServer([bodies.word(1), gate]) as server:
        with pytest.raises(asyncio.TimeoutError):
            ask(server.url + CHAT, read, timeout=timeout)
        gate.open()
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 1)
    [request] = recorder.requests()
    assert str((request.attributes or {})[semconv.ERROR_TYPE]).rpartition(".")[2] == error


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        ([], "disconnected"),
        ([bodies.word(1)], "disconnected"),
        ([bodies.word(1), bodies.DONE], "completed"),
        ([bodies.word(1), b"data: [DONE]"], "completed"),
        ([bodies.word(1), b'data: {"error": {"code": 503}}\n\n'], "error"),
    ],
)
def test_how_a_reply_ends(pieces: list[bytes], outcome: str, recorder: Recorded) -> None:
    with WireServer(pieces) as server:
        ask(server.url + CHAT, WAYS["lines"])
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == (outcome, min(len(pieces), 1))


def test_a_body_that_ends_after_all_of_it_was_read(recorder: Recorded) -> None:
    gate = Gate()

    async def read(response: ClientResponse) -> list[Any]:
        first = [await response.content.readline(), await response.content.readline()]
        gate.open()
        return [*first, await response.content.readline()]

    with WireServer([bodies.word(1), gate]) as server:
        assert joined(ask(server.url + CHAT, read)) == bodies.word(1)
    assert recorder.stream().outcome == "disconnected"


@pytest.mark.parametrize("raises", [False, True])
def test_an_answer_that_is_no_stream(raises: bool, recorder: Recorded) -> None:
    with WireServer([b"{}"], {"Content-Type": "application/json"}, 503) as server:
        if raises:
            with pytest.raises(aiohttp.ClientResponseError):
                ask(server.url + CHAT, WHOLE["read"], raise_for_status=True)
        else:
            assert ask(server.url + CHAT, WHOLE["read"]) == [True, b"{}"]
    assert recorder.stream().outcome == "error"


def test_nobody_answers(recorder: Recorded) -> None:
    with WireServer() as server:
        url = server.url
    with pytest.raises(aiohttp.ClientConnectorError):
        ask(url + CHAT, WAYS["lines"])
    assert recorder.stream().outcome == "disconnected"


def test_a_compressed_body_is_recorded_where_aiohttp_unpacks_it(recorder: Recorded) -> None:
    packer = zlib.compressobj(wbits=31)
    pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in bodies.chat()] + [packer.flush()]
    with WireServer(pieces, {**EVENT_STREAM, "Content-Encoding": "gzip"}) as server:
        raw = ask(server.url + CHAT, WAYS["any"], auto_decompress=False)
        assert joined(raw) == b"".join(pieces)
        [unknown] = recorder.streams()
        assert (unknown.outcome, unknown.times_ns) == (None, [])
        recorder.exporter.clear()
        assert joined(ask(server.url + CHAT, WAYS["any"])) == b"".join(bodies.chat())
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)


def test_trace_and_class_travel_and_the_application_s_headers_stay_as_they_were(server: WireServer) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="voice")
    theirs = f"00-{'a' * 32}-{'b' * 16}-01"

    async def post() -> None:
        headers = CIMultiDict([("X-Mine", "1"), ("X-Mine", "2")])
        async with ClientSession(headers={"X-Session": "s"}) as session:
            for _ in range(2):
                await (await session.post(server.url + CHAT, json=QUESTION, headers=headers)).read()
        assert headers == CIMultiDict([("X-Mine", "1"), ("X-Mine", "2")])
        async with ClientSession(headers={"Traceparent": theirs, "X-SLO-Class": "chat"}) as session:
            await (await session.post(server.url + CHAT, data=json.dumps(QUESTION))).read()

    try:
        asyncio.run(post())
        spans = [ids(span.context) for span in Recorded(exporter).requests()]
    finally:
        otel_llm.uninstrument()
    sent = [request.headers for request in server.requests]
    expected = [f"00-{trace_id:032x}-{span_id:016x}-01" for trace_id, span_id in spans]
    assert [headers["traceparent"] for headers in sent] == [*expected[:2], theirs]
    assert [headers["x-slo-class"] for headers in sent] == ["voice", "voice", "chat"]
    assert sent[0]["x-session"] == "s"


def test_what_is_not_recorded(server: WireServer, recorder: Recorded) -> None:
    ask(server.url + CHAT, WHOLE["read"], {**QUESTION, "stream": False})
    ask(server.url + "/v1/embeddings", WHOLE["read"])
    assert recorder.spans() == ()
    assert all("traceparent" not in sent.headers for sent in server.requests)


@pytest.mark.parametrize("kind", ["bytes", "payload", "stream"])
def test_the_request_may_be_given_in_any_form(kind: str, server: WireServer, recorder: Recorded) -> None:
    body = json.dumps(QUESTION).encode()

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    async def post() -> None:
        data: Any = {"bytes": body, "payload": aiohttp.JsonPayload(QUESTION), "stream": pieces()}[kind]
        async with ClientSession(base_url=server.url) as session, session.post(CHAT, data=data) as response:
            await response.read()

    asyncio.run(post())
    assert server.requests[0].body == body
    [request] = recorder.requests()
    assert request.name == ("chat" if kind == "stream" else "chat m")
    assert recorder.stream().outcome == "completed"


def test_a_bug_while_parsing_is_one_warning(
    server: WireServer, recorder: Recorded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("otel_llm.instrumentation.parse.sse.SseParser.feed", bug)
    for read in WAYS.values():
        assert ask(server.url + CHAT, read)
    told = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["otel_llm"]
    assert [stream.outcome for stream in recorder.streams()] == [None] * len(WAYS)


def test_a_hook_that_moved_is_one_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    before = ClientSession._request
    monkeypatch.delattr(StreamReader, "_wait")
    otel_llm.instrument(exporter=InMemorySpanExporter())
    try:
        assert ClientSession._request is before
    finally:
        otel_llm.uninstrument()
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == ["otel_llm"]


def test_uninstrumenting_leaves_the_bare_library() -> None:
    before = ClientSession._request, ClientResponse.close, ClientResponse.release
    otel_llm.instrument(exporter=InMemorySpanExporter())
    assert ClientSession._request is not before[0]
    otel_llm.uninstrument()
    assert (ClientSession._request, ClientResponse.close, ClientResponse.release) == before
