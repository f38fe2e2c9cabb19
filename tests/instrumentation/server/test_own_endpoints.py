"""Endpoints of the application's own: what counts as a token there, and what is no stream."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from support.instrumentation.asgi_server import AsgiServer, until
from support.instrumentation.gateways import by_async_sdk
from support.instrumentation.recorded import Recorded, ids
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import Gate, Reply, SseServer, whole, words

from otel_llm import semconv
from otel_llm.instrumentation.server.asgi import StreamMiddleware

EVENTS = [b": hello\n\n", b"event: delta\ndata: one\n\n", b"data: two\n\nda", b"ta: three\n\n", b"data: [DONE]\n\n"]
LINES = [b'{"text":"one"}\n{"text":', b'"two"}\r\n\n', b'{"text":"three"}']
TEXT = [b"one ", b"two ", b"three"]


def app(answer: Any, methods: Sequence[str] = ("GET", "POST")) -> Starlette:
    return Starlette(routes=[Route("/{path:path}", answer, methods=list(methods))])


def streaming(pieces: Sequence[bytes], content_type: str | None, **headers: str) -> Starlette:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def answer(request: Request) -> Response:
        stated = {name.replace("_", "-"): value for name, value in headers.items()}
        return StreamingResponse(body(), media_type=content_type, headers=stated)

    return app(answer)


def ask(application: Any, path: str = "/chat", body: bytes = b"hello", **settings: Any) -> bytes:
    with AsgiServer(StreamMiddleware(application, **{"paths": ["/chat"], **settings}), lifespan="auto") as server:
        return server.post(body, path)


@pytest.mark.parametrize(
    ("pieces", "content_type"),
    [
        (EVENTS, "text/event-stream"),
        (LINES, "application/x-ndjson"),
        ([b'\x1e{"token":"one"}\n'] * 3, "application/json-seq"),
        (TEXT, "text/plain; charset=utf-8"),
        (TEXT, None),
    ],
)
def test_what_a_token_is(pieces: Sequence[bytes], content_type: str | None, recorder: Recorded) -> None:
    assert b"three" in ask(streaming(pieces, content_type)) or content_type == "application/json-seq"
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == ("completed", 3, "chunk")
    assert (stream.segments[0].attributes or {})[semconv.MEASURED_AT] == "server"
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.GEN_AI_OPERATION_NAME] == "chat"


LONG = "people read while the model writes "


@pytest.mark.parametrize(
    ("pieces", "content_type", "tokens"),
    [
        ([LONG.encode()] * 14, "text/plain", 133),  # 35 / 3.7 each
        ([b"data: %b\n\n" % LONG.encode()] * 14, "text/event-stream", 133),
        ([b"data: %b\n\n" % json.dumps(LONG).encode()] * 14, "text/event-stream", 133),
        ([b"data: %b\n\n" % json.dumps(" word").encode()] * 14, "text/event-stream", 14),
        ([json.dumps({"delta": LONG}).encode() + b"\n"] * 14, "application/x-ndjson", 133),
        ([json.dumps({"delta": " word"}).encode() + b"\n"] * 14, "application/x-ndjson", 14),
    ],
    ids=["text", "events of text", "events of JSON strings", "a token each", "objects", "objects of a token"],
)
def test_the_tokens_of_a_text_are_estimated(
    pieces: Sequence[bytes], content_type: str, tokens: int, recorder: Recorded
) -> None:
    ask(streaming(pieces, content_type))
    stream = recorder.stream()
    basis = "chunk" if tokens == len(pieces) else "estimated"
    assert (stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == (tokens, basis)


def test_kind_and_count_see_each_chunk_as_text(recorder: Recorded) -> None:
    seen: list[str] = []

    def kind(chunk: str) -> str | None:
        seen.append(chunk)
        found: str | None = json.loads(chunk).get("kind")
        return found

    pieces = [{"status": "searching"}, {"kind": "reasoning", "n": 2}, {"kind": "content", "n": 3}]
    reply = b"".join(b"data: " + json.dumps(piece).encode() + b"\n\n" for piece in pieces)
    ask(streaming([reply], "text/event-stream"), kind=kind, count=lambda chunk: int(json.loads(chunk)["n"]))
    assert [json.loads(chunk) for chunk in seen] == pieces
    stream = recorder.stream()
    assert (stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == (5, "exact")
    events = [event for segment in stream.segments for event in segment.events]
    assert [(e.attributes or {}).get(semconv.TOKEN_KIND) for e in events] == ["reasoning", None]


@pytest.mark.parametrize(
    ("paths", "path", "tokens"),
    [
        (["/chat"], "/chat", 3),
        (["/chat"], "/chats", None),
        (["/api/*"], "/api/rooms/1", 3),
        (["/chat"], "/v1/chat/completions", 0),  # as that API's: a chunk without choices
        (["/v1/*"], "/v1/chat/completions", 0),
        (["/v1/chat/completions"], "/v1/chat/completions", 3),
    ],
)
def test_which_paths(paths: list[str], path: str, tokens: int | None, recorder: Recorded) -> None:
    ask(streaming(EVENTS, "text/event-stream"), path, paths=paths)
    assert [stream.last[semconv.TOKENS] for stream in recorder.streams()] == ([] if tokens is None else [tokens])


@pytest.mark.parametrize(
    "settings",
    [
        {"paths": "/chat"},
        {"paths": ["chat"]},
        {"paths": ["/*/chat"]},
        {"kind": str},
        {"count": len},
        {"model": "m"},
        {"paths": ["/chat"], "model": 7},
        {"paths": ["/chat"], "model": asyncio.sleep},
    ],
)
def test_settings_that_cannot_be(settings: Any) -> None:
    with pytest.raises(ValueError, match="paths"):
        StreamMiddleware(Starlette(), **settings)


# Which endpoint, and which model.


def identity(recorder: Recorded) -> tuple[dict[str, object], dict[str, object]]:
    """Return the attributes of segment 0 and of the request span."""
    [request] = recorder.requests()
    return dict(recorder.stream().segments[0].attributes or {}), dict(request.attributes or {})


@pytest.mark.parametrize(("path", "route"), [("/chat", "/chat"), ("/rooms/7", "/rooms/*")])
def test_the_route_tells_endpoints_apart(path: str, route: str, recorder: Recorded) -> None:
    ask(streaming(EVENTS, "text/event-stream"), path, paths=["/chat", "/rooms/*"])
    assert [attributes[semconv.HTTP_ROUTE] for attributes in identity(recorder)] == [route, route]


def test_a_known_api_has_no_route(recorder: Recorded) -> None:
    ask(streaming(EVENTS, "text/event-stream"), "/v1/chat/completions", paths=["/v1/*"])
    assert [semconv.HTTP_ROUTE in attributes for attributes in identity(recorder)] == [False, False]


def reading(late: bool) -> Any:
    """Return an application that reads the request before its reply, or `late`, while it streams."""
    head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    one, two = (
        {"type": "http.response.body", "body": b"data: %b\n\n" % w, "more_body": True} for w in (b"one", b"two")
    )

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if not late:
            await receive()
        await send(head)
        await send(one)
        if late:
            await receive()
        await send({**two, "more_body": False})

    return application


def stated(body: dict[str, Any] | None) -> str | None:
    return "unread" if body is None else body.get("llm")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("model", "body", "name"),
    [
        ("mine", b"", "mine"),
        (stated, b'{"llm": "theirs"}', "theirs"),
        (stated, b'["llm"]', "unread"),
        (stated, b"hello", "unread"),
        (stated, b"{}", None),
        (stated, b'{"llm": 7}', None),
        (stated, b'{"llm": "%b"}' % (b"m" * 999), "m" * 256),
    ],
    ids=["a name", "a function", "a list", "no JSON", "none", "a number", "long"],
)
def test_the_model(model: Any, body: bytes, name: str | None, late: bool, recorder: Recorded) -> None:
    ask(reading(late), body=body, model=model)
    first, request = identity(recorder)
    assert request.get(semconv.GEN_AI_REQUEST_MODEL) == name
    assert recorder.stream().last[semconv.TOKENS] == 2
    if not late or model == "mine":
        assert first.get(semconv.GEN_AI_REQUEST_MODEL) == name
        assert recorder.requests()[0].name == ("chat" if name is None else f"chat {name}")


def test_the_model_of_a_request_that_is_not_read(recorder: Recorded) -> None:
    ask(streaming(EVENTS, "text/event-stream"), model=stated)
    assert identity(recorder)[1][semconv.GEN_AI_REQUEST_MODEL] == "unread"


def test_the_model_of_a_get(recorder: Recorded) -> None:
    with AsgiServer(StreamMiddleware(streaming(EVENTS, "text/event-stream"), paths=["/chat"], model=stated)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/chat")
        assert b"three" in connection.getresponse().read()
        connection.close()
    assert [one[semconv.GEN_AI_REQUEST_MODEL] for one in identity(recorder)] == ["unread", "unread"]


def test_the_model_of_a_refusal(recorder: Recorded) -> None:
    async def answer(request: Request) -> Response:
        await request.body()
        return JSONResponse({"error": "busy"}, 503)

    ask(app(answer), body=b'{"llm": "theirs"}', model=stated)
    assert recorder.stream().outcome == "error"
    assert [one[semconv.GEN_AI_REQUEST_MODEL] for one in identity(recorder)] == ["theirs", "theirs"]


def test_a_model_that_fails_costs_the_name_alone(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    def model(body: object) -> str:
        raise KeyError("private words")

    with caplog.at_level(logging.WARNING, "otel_llm"):
        assert b"two" in ask(reading(late=False), model=model)
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 2)
    assert semconv.GEN_AI_REQUEST_MODEL not in identity(recorder)[1]
    assert len(ours(caplog)) == 1


# What is no stream.


async def as_json(request: Request) -> Response:
    await request.body()
    return JSONResponse({"answer": "private words"})


async def as_text(request: Request) -> Response:
    return PlainTextResponse("private words")


@pytest.mark.parametrize(
    ("application", "sort"),
    [
        (app(as_json), "application/json"),
        (app(as_text), "text/plain"),
        (streaming([b"\x1f\x8b"], "text/event-stream", content_encoding="gzip"), "text/event-stream"),
    ],
    ids=["JSON", "with a length", "compressed"],
)
def test_a_reply_that_is_no_stream_is_said_once_and_not_recorded(
    application: Any, sort: str, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "otel_llm"):
        for _ in range(2):
            ask(application, paths=["/ch*"])
    assert recorder.spans() == ()
    [warned] = ours(caplog)
    assert "/ch*" in warned
    assert sort in warned
    assert "application/x-ndjson" in warned
    assert "private" not in warned


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "HEAD"])
def test_a_page_or_a_preflight_is_passed_over(
    method: str, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    with AsgiServer(StreamMiddleware(app(as_text, ["GET", "OPTIONS"]), paths=["/chat"])) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request(method, "/chat")
        assert connection.getresponse().status == 200
        connection.close()
    assert recorder.spans() == ()
    assert ours(caplog) == []


@pytest.mark.parametrize(("content_type", "tokens"), [("text/html", []), ("text/event-stream", [3])])
def test_of_a_get_only_a_type_made_for_streams_counts(content_type: str, tokens: list[int], recorder: Recorded) -> None:
    with AsgiServer(StreamMiddleware(streaming(EVENTS, content_type), paths=["/chat"])) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/chat")
        assert b"three" in connection.getresponse().read()
        connection.close()
    assert [stream.last[semconv.TOKENS] for stream in recorder.streams()] == tokens


@pytest.mark.parametrize("status", [204, 307])
def test_a_reply_without_a_body_is_passed_over(
    status: int, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: Request) -> Response:
        return Response(status_code=status)

    ask(app(answer))
    assert recorder.spans() == ()
    assert ours(caplog) == []


def test_a_stream_without_a_token_is_said(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "otel_llm"):
        ask(streaming(EVENTS, "text/event-stream"), kind=lambda chunk: None)
    assert recorder.stream().last[semconv.TOKENS] == 0
    [warned] = ours(caplog)
    assert "`kind`" in warned


def test_a_known_path_that_answers_with_json_though_asked_to_stream(
    recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "otel_llm"):
        ask(app(as_json), "/v1/chat/completions", json.dumps({"model": "m", "stream": True}).encode())
    assert recorder.stream().outcome == "error"
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == "not_a_stream"
    [warned] = ours(caplog)
    assert "/chat/completions" in warned


# How it ends.


def test_a_failure(recorder: Recorded) -> None:
    async def answer(request: Request) -> Response:
        return JSONResponse({"error": "busy"}, 503)

    ask(app(answer))
    assert recorder.stream().outcome == "error"
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == "503"


def test_a_callback_that_fails_costs_the_row_alone(recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    def kind(chunk: str) -> str:
        raise KeyError(chunk)

    with caplog.at_level(logging.WARNING, "otel_llm"):
        assert b"three" in ask(streaming(EVENTS, "text/event-stream"), kind=kind)
    assert len(ours(caplog)) == 1


def test_segment_0_leaves_with_the_head(recorder: Recorded) -> None:
    waits = threading.Event()

    async def body() -> AsyncIterator[bytes]:
        await asyncio.to_thread(waits.wait, WAIT_S)
        yield b"data: one\n\n"

    async def answer(request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    application = StreamMiddleware(app(answer), paths=["/chat"])
    with AsgiServer(application) as server, server.connect(b"hello", "/chat") as connection:
        until(lambda: recorder.streams())
        waits.set()
        assert b"one" in b"".join(iter(lambda: connection.recv(65536), b""))
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 1)


# As a gateway.


def gateway(url: str) -> Starlette:
    async def answer(request: Request) -> Response:
        chunks = by_async_sdk(url)
        first = await anext(chunks)  # the call is made before the reply's head

        async def body() -> AsyncIterator[str]:
            yield first
            async for data in chunks:
                yield data

        return StreamingResponse(body(), media_type="text/event-stream")

    return app(answer)


def test_a_call_before_the_head_is_in_the_requests_trace(server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = whole(3)
    ask(gateway(server.url))
    by_side = {str((span.attributes or {})[semconv.MEASURED_AT]): span for span in recorder.requests()}
    assert ids(by_side["client"].parent) == ids(by_side["server"].context)
    assert [stream.outcome for stream in recorder.streams()] == ["completed", "completed"]


def test_a_call_for_a_reply_that_is_no_stream_keeps_its_parent(server: SseServer, recorder: Recorded) -> None:
    server.replies["m"] = whole(3)

    async def answer(request: Request) -> Response:
        return JSONResponse([data async for data in by_async_sdk(server.url)])

    ask(app(answer))
    assert recorder.stream().outcome == "completed"
    by_side = {(span.attributes or {}).get(semconv.MEASURED_AT): span for span in recorder.requests()}
    assert ids(by_side["client"].parent) == ids(by_side[None].context)
    assert semconv.GEN_AI_OPERATION_NAME not in (by_side[None].attributes or {})  # no row comes of it


def test_a_client_that_leaves_before_the_first_token(server: SseServer, recorder: Recorded) -> None:
    held = Gate()
    server.replies["m"] = Reply([held, *words(1)])
    gone = threading.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        calling = asyncio.ensure_future(anext(by_async_sdk(server.url)))
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        await asyncio.wait([calling])

    with AsgiServer(StreamMiddleware(waits, paths=["/chat"]), lifespan="off") as serving:
        with serving.connect(b"hello", "/chat"):
            until(lambda: recorder.streams())
        until(gone.is_set)
        until(lambda: len([stream for stream in recorder.streams() if stream.outcome]) == 2)
        held.open()
    assert [stream.outcome for stream in recorder.streams()] == ["cancelled", "cancelled"]
