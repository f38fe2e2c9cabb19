"""What ASGI allows and servers do: any iterable of headers, anything like bytes, other messages, any order."""

from __future__ import annotations

import array
import asyncio
import http.client
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Self

import hypercorn
import hypercorn.trio
import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from support.instrumentation.asgi_by_hand import (
    ASKED,
    END,
    QUESTION,
    START,
    App,
    Message,
    Server,
    piece,
    replies,
    scope_of,
    serve,
)
from support.instrumentation.asgi_server import Served
from support.instrumentation.recorded import Recorded
from support.logs import ours
from support.patience import WAIT_S

from otel_llm import semconv
from otel_llm.instrumentation.server.asgi import StreamMiddleware

HEADERS = [(b"set-cookie", b"a=1"), (b"content-type", b"text/event-stream"), (b"x-tag", b"7")]
GONE: Message = {"type": "http.disconnect"}


def with_headers(headers: object) -> App:
    return replies({**START, "headers": headers}, piece("one"), piece("two"), END)


def recorded(recorder: Recorded) -> tuple[object, object]:
    stream = recorder.stream()
    return stream.outcome, stream.last[semconv.TOKENS]


# Headers.


class OneShot:
    """An iterable that can be read once, and does not look like an iterator."""

    def __init__(self, pairs: list[Any]) -> None:
        self._pairs = iter(pairs)

    def __iter__(self) -> Iterator[Any]:
        return self._pairs


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat", "/other"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: (pair for pair in HEADERS),
        lambda: map(list, HEADERS),
        lambda: OneShot(HEADERS),
        lambda: [iter(pair) for pair in HEADERS],
        lambda: dict(HEADERS).items(),
    ],
    ids=["a generator", "a map", "read once", "pairs read once", "a view"],
)
def test_headers_of_any_iterable_reach_the_server(path: str, make: Callable[[], Any], recorder: Recorded) -> None:
    server = Server()
    serve(with_headers(make()), server, scope_of(path), paths=["/chat"])
    assert [tuple(pair) for pair in server.sent[0]["headers"]] == HEADERS
    assert [(s.outcome, s.last[semconv.TOKENS]) for s in recorder.streams()] == [("completed", 2)] * (path != "/other")


@pytest.mark.parametrize("whole", [list, tuple])
def test_headers_in_a_list_or_a_tuple_are_passed_on_as_they_are(whole: Any, recorder: Recorded) -> None:
    server, headers = Server(), whole(HEADERS)
    serve(with_headers(headers), server)
    assert server.sent[0]["headers"] is headers


def test_an_error_of_the_applications_own_headers_is_the_applications(recorder: Recorded) -> None:
    def headers() -> Iterator[tuple[bytes, bytes]]:
        yield HEADERS[0]
        raise KeyError("private words")

    server = Server()
    with pytest.raises(KeyError):
        serve(with_headers(headers()), server)
    assert server.sent == []
    assert recorder.stream().outcome == "error"


@pytest.mark.parametrize(
    "like", [bytearray, memoryview, lambda value: array.array("B", value)], ids=["bytearray", "memoryview", "array"]
)
def test_names_values_and_bodies_may_be_anything_like_bytes(
    like: Callable[[bytes], Any], recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    headers = [[like(b"Content-Type"), like(b"text/event-stream")]]
    bodies = [{**piece(word), "body": like(piece(word)["body"])} for word in ("one", "two")]
    server = Server({**ASKED, "body": like(QUESTION)})
    mine = [{**START, "headers": headers}, *bodies, END]
    serve(replies(*mine), server)
    assert [ours is theirs for ours, theirs in zip(server.sent, mine, strict=True)] == [True] * 4
    assert recorded(recorder) == ("completed", 2)
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "tiny"
    assert ours(caplog) == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/other"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_headers_of_a_request_may_be_read_once(path: str, kind: str, recorder: Recorded) -> None:
    pairs = [(b"x-slo-class", b"voice"), (b"cookie", b"b=2")]
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(scope["headers"])
        assert scope["state"] is state
        await with_headers(HEADERS)(scope, receive, send)

    state: dict[str, object] = {}
    serve(app, Server(), scope_of(path, kind, headers=iter(pairs), state=state))
    assert seen == pairs
    for stream in recorder.streams():
        assert (stream.segments[0].attributes or {})[semconv.SLO_CLASS] == "voice"


@pytest.mark.parametrize("headers", [None, [], [(b"lonely",)], [7], 7])
def test_headers_that_are_none_are_the_servers_to_judge(
    headers: object, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    serve(with_headers(headers), server)
    assert server.sent[0]["headers"] is headers
    assert recorded(recorder) == ("completed", 2)  # told by its content
    assert ours(caplog) == []


# Messages.


def test_a_message_without_a_body(recorder: Recorded) -> None:
    server = Server({"type": "http.request", "more_body": True}, ASKED)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()
        for message in (START, {"type": "http.response.body", "more_body": True}, piece("one")):
            await send(message)
        await send({"type": "http.response.body"})

    serve(app, server)
    assert recorded(recorder) == ("completed", 1)


def test_messages_of_extensions_pass_and_end_nothing(recorder: Recorded) -> None:
    mine: list[Message] = [
        {"type": "http.response.early_hint", "links": (link for link in [b"</a.css>; rel=preload"])},
        {"type": "http.response.debug", "info": {"template": "t"}},
        {"type": "http.response.push", "path": "/a.css", "headers": []},
        {**START, "trailers": True},
        piece("one"),
        END,
        {"type": "http.response.trailers", "headers": [(b"x-digest", b"1")], "more_trailers": False},
    ]
    server = Server()
    serve(replies(*mine), server)
    assert [ours is theirs for ours, theirs in zip(server.sent, mine, strict=True)] == [True] * len(mine)
    assert next(mine[0]["links"]) == b"</a.css>; rel=preload"
    assert recorded(recorder) == ("completed", 1)


@pytest.mark.parametrize(
    "file",
    [
        {"type": "http.response.pathsend", "path": "/tmp/recorded"},
        {"type": "http.response.zerocopysend", "file": 7, "more_body": False},
    ],
)
def test_a_reply_from_a_file_is_complete(file: Message, recorder: Recorded) -> None:
    serve(replies(START, file), Server())
    assert recorded(recorder) == ("completed", 0)


def test_a_second_head_is_the_servers_to_refuse(recorder: Recorded) -> None:
    class Strict(Server):
        async def send(self, message: Message) -> None:
            if message in self.sent:
                raise RuntimeError("twice")
            await super().send(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send(piece("one"))
        with pytest.raises(RuntimeError, match="twice"):
            await send(START)
        await send(END)

    serve(app, Strict())
    assert recorded(recorder) == ("completed", 1)


def test_an_error_page_after_the_head_changes_nothing(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send({**START, "status": 500})
        await send(piece("one"))
        await send(END)

    serve(app, Server())
    assert recorded(recorder) == ("completed", 1)


def test_an_application_that_returns_at_once(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        pass

    serve(app, Server())
    assert recorder.spans() == ()


# The end.


class Telling(Server):
    """A server that tells the application of a disconnect while it takes the last piece, as hypercorn on trio does."""

    def __init__(self, then: BaseException | None = None, last: Message = END) -> None:
        super().__init__()
        self.gone = asyncio.Event()
        self.told = asyncio.Event()
        self.then = then
        self.last = last

    async def receive(self) -> Message:
        if self.given:
            await self.gone.wait()
            return GONE
        return await super().receive()

    async def send(self, message: Message) -> None:
        await super().send(message)
        if message is self.last:
            self.gone.set()
            await self.told.wait()
            if self.then is not None:
                raise self.then


def listening(server: Telling, *, cancels: bool = False) -> App:
    """Return an application that listens for a disconnect while it streams, as Starlette does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()

        async def stream() -> None:
            for message in (START, piece("one"), server.last):
                await send(message)

        async def listen() -> None:
            assert await receive() is GONE
            server.told.set()

        streaming = asyncio.ensure_future(stream())
        await listen()
        if cancels:
            streaming.cancel()
        await asyncio.gather(streaming, return_exceptions=True)

    return app


@pytest.mark.parametrize("last", [END, {**piece("two"), "more_body": False}], ids=["empty", "a word"])
@pytest.mark.parametrize("cancels", [False, True])
def test_a_disconnect_while_the_last_piece_is_taken(cancels: bool, last: Message, recorder: Recorded) -> None:
    server = Telling(last=last)
    serve(listening(server, cancels=cancels), server)
    assert recorded(recorder) == ("completed", 1 if last is END else 2)


def test_a_last_piece_that_the_server_could_not_send(recorder: Recorded) -> None:
    server = Telling(OSError("gone"))
    serve(listening(server), server)
    assert recorded(recorder) == ("cancelled", 1)


def test_an_application_that_does_not_wait_for_its_last_send(recorder: Recorded) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send(piece("one"))
        sending.append(asyncio.ensure_future(send(END)))
        await asyncio.sleep(0)

    sending: list[asyncio.Future[None]] = []
    server = Telling()
    serve(app, server)
    assert recorded(recorder) == ("completed", 1)


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_a_send_that_raises_anything_else(error: type[Exception], recorder: Recorded) -> None:
    server = Telling(error())
    server.told.set()

    with pytest.raises(error):
        serve(replies(START, piece("one"), END), server)
    assert recorded(recorder) == ("error", 1)


@pytest.mark.parametrize("error", [trio.BrokenResourceError, ConnectionResetError])
def test_a_send_that_finds_the_client_gone(error: type[Exception], recorder: Recorded) -> None:
    server = Telling(error())
    server.told.set()
    with pytest.raises(error):
        serve(replies(START, piece("one"), END), server)
    assert recorded(recorder) == ("cancelled", 1)


class Hypercorn(Served):
    """Runs an ASGI application on hypercorn with trio, in a thread of its own."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), daemon=True)

    async def _serve(self) -> None:
        self._stop, self._token = trio.Event(), trio.lowlevel.current_trio_token()
        config = hypercorn.Config()
        config.bind = ["127.0.0.1:0"]
        async with trio.open_nursery() as nursery:
            serving = partial(hypercorn.trio.serve, self._app, config, shutdown_trigger=self._stop.wait)
            [address] = await nursery.start(serving)
            self.port = int(address.rpartition(":")[2])
            self._started.set()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(WAIT_S)
        return self

    def __exit__(self, *exc_info: object) -> None:
        trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        self._thread.join(WAIT_S)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat"])
def test_a_reply_over_hypercorn_with_trio(path: str, recorder: Recorded) -> None:
    async def words() -> AsyncIterator[bytes]:
        for word in ("one ", "two "):
            yield piece(word)["body"]

    async def answer(request: Request) -> Response:
        await request.body()
        return StreamingResponse(words(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
    with Hypercorn(StreamMiddleware(app, paths=["/chat"])) as server:
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
            connection.request("POST", path, QUESTION)
            assert b"two" in connection.getresponse().read()
            connection.close()
    served = [s for s in recorder.streams() if (s.segments[0].attributes or {})[semconv.MEASURED_AT] == "server"]
    assert [(s.outcome, s.last[semconv.TOKENS]) for s in served] == [("completed", 2)] * 5
