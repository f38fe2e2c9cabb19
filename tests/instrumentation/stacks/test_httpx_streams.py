"""Event streams read over the real httpx and httpx2, in every way they can be read: the same bytes, and token times."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.wire_bodies import QUESTION
from support.instrumentation.wire_server import EVENT_STREAM, WireServer
from support.sse_server import Gate

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.parse import sse_chunks
from otel_llm.instrumentation.request.wishes import Wishes
from otel_llm.instrumentation.stacks import client_request
from otel_llm.instrumentation.stacks.client_request import UNSEEN, StreamRequest
from otel_llm.semconv import MAX_CHOICES

CHAT = "/v1/chat/completions"

WAYS: dict[str, Callable[[Any], Any]] = {
    "lines": lambda response: response.iter_lines(),
    "text": lambda response: response.iter_text(),
    "bytes": lambda response: response.iter_bytes(),
    "bytes of 7": lambda response: response.iter_bytes(chunk_size=7),
    "raw": lambda response: response.iter_raw(),
    "raw of 7": lambda response: response.iter_raw(chunk_size=7),
    "read": lambda response: [response.read()],
}


async def _read(response: Any) -> AsyncIterator[bytes]:
    yield await response.aread()


WAYS_ASYNC: dict[str, Callable[[Any], AsyncIterator[Any]]] = {
    "lines": lambda response: response.aiter_lines(),
    "text": lambda response: response.aiter_text(),
    "bytes": lambda response: response.aiter_bytes(),
    "bytes of 7": lambda response: response.aiter_bytes(chunk_size=7),
    "raw": lambda response: response.aiter_raw(),
    "raw of 7": lambda response: response.aiter_raw(chunk_size=7),
    "read": _read,
}

both = pytest.mark.parametrize("package", [httpx, httpx2], ids=["httpx", "httpx2"])


def ask(package: Any, url: str, way: str, question: Any = QUESTION, **kwargs: Any) -> list[Any]:
    """Return all that a caller gets that reads a reply in one way."""
    with package.Client() as client, client.stream("POST", url, json=question, **kwargs) as response:
        return list(WAYS[way](response))


def ask_async(package: Any, url: str, way: str) -> list[Any]:
    async def read() -> list[Any]:
        async with package.AsyncClient() as client, client.stream("POST", url, json=QUESTION) as response:
            return [item async for item in WAYS_ASYNC[way](response)]

    return asyncio.run(read())


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(bodies.chat()) as running:
        yield running


@both
@pytest.mark.parametrize("mode", [ask, ask_async], ids=["sync", "async"])
@pytest.mark.parametrize("way", list(WAYS))
def test_every_way_of_reading_gives_what_it_gave_and_is_recorded(
    way: str, mode: Callable[..., list[Any]], package: Any, server: WireServer
) -> None:
    bare = mode(package, server.url + CHAT, way)
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    try:
        assert mode(package, server.url + CHAT, way) == bare
        recorded = Recorded(exporter)
        stream = recorded.stream()
        assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
        [request] = recorded.requests()
        told = dict(request.attributes or {})
    finally:
        otel_llm.uninstrument()
    assert request.name == "chat m"
    assert told[semconv.GEN_AI_REQUEST_STREAM] is True
    assert told[semconv.GEN_AI_USAGE_INPUT_TOKENS] == 7
    assert told[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] == 4
    assert told[semconv.GEN_AI_RESPONSE_MODEL] == "served"
    assert told[semconv.SERVER_PORT] == int(server.url.rpartition(":")[2])
    assert told[semconv.MEASURED_AT] == "client"


@both
def test_a_token_is_recorded_when_its_line_is_read_not_when_the_body_ends(package: Any, recorder: Recorded) -> None:
    gate = Gate()
    first, second = bodies.word(1), bodies.word(2)
    # The line of the second word comes without the blank line that ends its event.
    with (
        WireServer([first, second[:-1], gate, b"\n", bodies.DONE]) as server,
        package.Client() as client,
        client.stream("POST", server.url + CHAT, json=QUESTION) as response,
    ):
        lines = response.iter_lines()
        seen = list(itertools.islice(lines, 3))
        assert [line[:6] for line in seen] == ["data: ", "", "data: "]
        [stream] = recorder.streams()
        assert len(stream.times_ns) == 2
        assert stream.outcome is None
        gate.open()
        list(lines)
    assert recorder.stream().last[semconv.TOKENS] == 2


@both
def test_a_body_that_send_reads_is_recorded_as_it_comes(package: Any, recorder: Recorded) -> None:
    gate = Gate()

    async def post(url: str) -> Any:
        async with package.AsyncClient() as client:
            posted = asyncio.create_task(client.post(url, json=QUESTION))
            while not any(stream.times_ns for stream in await asyncio.to_thread(recorder.streams)):
                await asyncio.sleep(0.01)
            gate.open()
            return await posted

    with WireServer([bodies.word(1), gate, bodies.word(2), bodies.DONE]) as server:
        response = asyncio.run(post(server.url + CHAT))
    assert response.content == bodies.word(1) + bodies.word(2) + bodies.DONE
    assert response.is_closed
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 2)


@both
def test_choices_are_streams_of_their_own(package: Any, recorder: Recorded) -> None:
    with WireServer(bodies.chat(3, choices=2)) as server:
        ask(package, server.url + CHAT, "lines", {**QUESTION, "n": 2})
    first, second = recorder.streams()
    for stream in (first, second):
        stream.check()
        assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 3)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.GEN_AI_REQUEST_CHOICE_COUNT] == 2


@both
@pytest.mark.parametrize(
    ("path", "body", "operation", "provider"),
    [
        ("/v1/completions", bodies.text(), "text_completion", "openai"),
        ("/openai/v1/responses?api-version=1", bodies.responses(), "chat", "openai"),
        ("/v1/messages", bodies.messages(), "chat", "anthropic"),
    ],
    ids=["completions", "responses", "messages"],
)
def test_the_other_endpoints(
    path: str, body: list[bytes], operation: str, provider: str, package: Any, recorder: Recorded
) -> None:
    with WireServer(body) as server:
        ask(package, server.url + path, "lines")
    [stream] = recorder.streams()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
    [request] = recorder.requests()
    told = dict(request.attributes or {})
    assert (told[semconv.GEN_AI_OPERATION_NAME], told[semconv.GEN_AI_PROVIDER_NAME]) == (operation, provider)
    assert (told[semconv.OUTCOME], told[semconv.GEN_AI_RESPONSE_MODEL]) == ("completed", "served")


@both
@pytest.mark.parametrize(
    ("pieces", "outcome", "error"),
    [
        ([bodies.word(1), bodies.word(2)], "disconnected", None),
        ([bodies.word(1), bodies.word(2), b"data: [DONE]"], "completed", None),
        ([bodies.word(1), bodies.word(2), b'data: {"error": {"message": "x", "code": 503}}\n\n'], "error", "503"),
        ([bodies.word(1), bodies.word(2), b'data: {"error": {"type": "overloaded"}}\n\n'], "error", "overloaded"),
        ([bodies.word(1), bodies.word(2), b'data: {"error": "words \xc3\xa4"}\n\n'], "error", "_OTHER"),
        ([bodies.word(1), bodies.word(2), b"data: {broken\n\n", b"data: 3\n\n", bodies.DONE], "completed", None),
    ],
    ids=["cut", "unfinished line", "error code", "error type", "error text", "no chunks"],
)
def test_how_a_reply_ends(
    pieces: list[bytes], outcome: str, error: str | None, package: Any, recorder: Recorded
) -> None:
    with WireServer(pieces) as server:
        ask(package, server.url + CHAT, "bytes")
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == (outcome, 2)
    [request] = recorder.requests()
    assert (request.attributes or {}).get(semconv.ERROR_TYPE) == error


@both
def test_the_end_marker_is_the_end_for_who_stops_there(package: Any, recorder: Recorded) -> None:
    gate = Gate()
    with (
        WireServer([bodies.word(1), bodies.DONE, gate]) as server,
        package.Client() as client,
        client.stream("POST", server.url + CHAT, json=QUESTION) as response,
    ):
        for line in response.iter_lines():
            if line == "data: [DONE]":
                break
        assert recorder.stream().outcome == "completed"
        gate.open()


@both
@pytest.mark.parametrize(
    ("status", "content_type", "error"),
    [(503, "application/json", "503"), (429, "text/event-stream", "429"), (200, "application/json", "_OTHER")],
)
def test_an_answer_that_is_no_stream(
    status: int, content_type: str, error: str, package: Any, recorder: Recorded
) -> None:
    with WireServer([b'{"error": {}}'], {"Content-Type": content_type}, status) as server:
        assert ask(package, server.url + CHAT, "bytes") == [b'{"error": {}}']
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("error", 0)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == error


@both
def test_nobody_answers(package: Any, recorder: Recorded) -> None:
    with WireServer() as server:
        url = server.url
    with pytest.raises(package.ConnectError):
        ask(package, url + CHAT, "lines")
    stream = recorder.stream()
    assert stream.outcome == "disconnected"


@both
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_compressed_body_is_recorded_behind_its_decoder_and_not_where_it_is_read_raw(
    coding: str, package: Any, recorder: Recorded
) -> None:
    packer = zlib.compressobj(wbits=31 if coding == "gzip" else 15)
    pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in bodies.chat()] + [packer.flush()]
    with WireServer(pieces, {**EVENT_STREAM, "Content-Encoding": coding}) as server:
        raw = b"".join(ask(package, server.url + CHAT, "raw"))
        assert raw == b"".join(pieces)
        assert (gzip.decompress(raw) if coding == "gzip" else zlib.decompress(raw)) == b"".join(bodies.chat())
        [unknown] = recorder.streams()
        assert (unknown.outcome, unknown.times_ns) == (None, [])
        recorder.exporter.clear()
        assert b"".join(ask(package, server.url + CHAT, "bytes")) == b"".join(bodies.chat())
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)


@both
def test_trace_and_class_travel_and_the_request_is_given_back_as_it_was(package: Any, server: WireServer) -> None:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="voice")
    try:
        with package.Client() as client:
            request = client.build_request("POST", server.url + CHAT, json=QUESTION)
            before = list(request.headers.raw)
            for _ in range(2):
                client.send(request)
            assert list(request.headers.raw) == before
            theirs = f"00-{'a' * 32}-{'b' * 16}-01"
            client.post(server.url + CHAT, json=QUESTION, headers={"Traceparent": theirs, "X-SLO-Class": "chat"})
        spans = [ids(span.context) for span in Recorded(exporter).requests()]
    finally:
        otel_llm.uninstrument()
    sent = [request.headers for request in server.requests]
    expected = [f"00-{trace_id:032x}-{span_id:016x}-01" for trace_id, span_id in spans]
    assert [headers["traceparent"] for headers in sent] == [*expected[:2], theirs]
    assert [headers["x-slo-class"] for headers in sent] == ["voice", "voice", "chat"]
    assert len(set(spans)) == 3


@both
def test_what_is_not_recorded(package: Any, server: WireServer, recorder: Recorded) -> None:
    ask(package, server.url + CHAT, "lines", {**QUESTION, "stream": False})
    ask(package, server.url + CHAT, "lines", {"messages": [{"content": '"stream": true'}]})
    ask(package, server.url + "/v1/embeddings", "lines")
    with suppress_instrumentation():
        ask(package, server.url + CHAT, "lines")
    assert recorder.spans() == ()
    assert all("traceparent" not in sent.headers for sent in server.requests)


@both
def test_a_request_that_cannot_be_seen_is_known_by_its_answer(
    package: Any, server: WireServer, recorder: Recorded
) -> None:
    def pieces() -> Iterator[bytes]:
        yield json.dumps(QUESTION).encode()

    with package.Client() as client:
        assert client.post(server.url + CHAT, content=pieces()).content == b"".join(bodies.chat())
    assert json.loads(server.requests[0].body) == QUESTION
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)
    [request] = recorder.requests()
    assert request.name == "chat"


def test_the_sdk_s_own_streams_are_recorded_once(server: WireServer, recorder: Recorded) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none") as client:
        chunks = list(client.chat.completions.create(model="m", messages=[], stream=True))
    assert len(chunks) == len(bodies.chat()) - 2
    assert (recorder.stream().outcome, len(recorder.requests())) == ("completed", 1)


@both
def test_an_open_inference_span_is_attached_to(package: Any, server: WireServer, recorder: Recorded) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("theirs")
    with tracer.start_as_current_span("chat m", attributes={semconv.GEN_AI_OPERATION_NAME: "chat"}) as span:
        ask(package, server.url + CHAT, "lines")
        assert trace.get_current_span() is span
    assert recorder.stream().parents == [ids(span.get_span_context())]
    assert recorder.requests() == []


@both
def test_a_bug_while_parsing_is_one_warning(
    package: Any,
    server: WireServer,
    recorder: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bug(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr("otel_llm.instrumentation.parse.sse.SseParser.feed", bug)
    for way in WAYS:
        assert ask(package, server.url + CHAT, way)
    told = [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["otel_llm"]
    assert [stream.outcome for stream in recorder.streams()] == [None] * len(WAYS)


@both
def test_uninstrumenting_leaves_the_bare_library(package: Any) -> None:
    before = package.Client.send, package.AsyncClient.send
    otel_llm.instrument(exporter=InMemorySpanExporter())
    assert package.Client.send is not before[0]
    otel_llm.uninstrument()
    assert (package.Client.send, package.AsyncClient.send) == before


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream": true, "model": "m", "n": 3}', StreamRequest(stream=True, model="m", wishes=Wishes(3))),
        ('{"stream":true}', StreamRequest(stream=True)),
        ({"stream": True, "model": 3, "n": True}, StreamRequest(stream=True)),
        ({"stream": True, "n": MAX_CHOICES + 1}, StreamRequest(stream=True)),
        (b'{"a": {"stream": true}}', None),
        (b'{"stream": false}', None),
        (b'{"stream": true', None),
        (b"", None),
        ({}, None),
        (None, UNSEEN),
        (object(), UNSEEN),
    ],
)
def test_what_a_request_asks_for(body: object, expected: StreamRequest | None) -> None:
    assert client_request.stream_request(sse_chunks.CHAT, CHAT, body) == expected
