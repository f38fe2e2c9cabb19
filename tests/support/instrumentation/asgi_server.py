"""A Starlette application that streams OpenAI-compatible replies by script behind the middleware, on a real uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Literal, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.patience import WAIT_S
from support.sse_server import Raw, chunk

Json = dict[str, Any]
Step = Json | Raw | BaseException | Callable[[], None]
"""A chunk, bytes as they are, an exception to raise, or what is to be done in the application's own task."""

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")


def sent(steps: Sequence[Step]) -> list[bytes]:
    """Return the bytes that a stream of these steps puts on the wire."""
    return [data_of(step) for step in steps if isinstance(step, dict | Raw)]


def data_of(step: Json | Raw) -> bytes:
    if isinstance(step, Raw):
        return step.data
    return b"data: " + json.dumps(step, separators=(",", ":")).encode() + b"\n\n"


class Application:
    """Answers every path of the API with the steps given; `endless` goes on until it is cancelled.

    `closed` counts the streams that came to their end, whatever it was.
    """

    def __init__(
        self,
        steps: Sequence[Step] = (),
        *,
        status: int = 200,
        endless: bool = False,
        fails: BaseException | None = None,
    ) -> None:
        self.steps = steps
        self.status = status
        self.endless = endless
        self.fails = fails
        self.closed = 0
        self.asked: list[Json] = []
        self.app = Starlette(routes=[Route(path, self.answer, methods=["POST"]) for path in PATHS])

    async def answer(self, request: Request) -> Response:
        if self.fails is not None:
            raise self.fails
        body = await request.body()
        with contextlib.suppress(ValueError):
            self.asked.append(json.loads(body))
        if self.status >= 400:
            return JSONResponse({"error": {"message": "no", "type": "refused"}}, self.status)
        if not (self.asked and self.asked[-1].get("stream")) and not request.query_params.get("always"):
            return JSONResponse({"id": "whole", "choices": [{"message": {"content": "one two"}}]})
        return StreamingResponse(self.body(), media_type="text/event-stream")

    async def body(self) -> AsyncIterator[bytes]:
        try:
            for step in self.steps:
                if isinstance(step, BaseException):
                    raise step
                if callable(step):
                    step()
                else:
                    yield data_of(step)
            while self.endless:
                yield data_of(chunk({"content": "tick "}))
                await asyncio.sleep(0.002)
        finally:
            self.closed += 1


class Served:
    """A server on `port` of this machine, and how a test asks it."""

    port: int

    def connect(self, body: Json | bytes, path: str = "/v1/chat/completions", **headers: str) -> socket.socket:
        """Send a request; return the connection, still unread."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        connection = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
        head = f"POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {len(data)}\r\n{named}\r\n"
        connection.sendall(head.encode() + data)
        return connection

    def post(self, body: Json | bytes, path: str = "/v1/chat/completions", **headers: str) -> bytes:
        """Return all that the server says to a request, to the end of the connection."""
        with self.connect(body, path, **headers) as connection:
            return b"".join(iter(lambda: connection.recv(65536), b""))


class AsgiServer(Served):
    """Runs an ASGI application on uvicorn, on a free port, in a thread of its own."""

    def __init__(self, app: Any, lifespan: Literal["auto", "on", "off"] = "on") -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        config = uvicorn.Config(app, log_config=None, lifespan=lifespan, timeout_graceful_shutdown=5)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._server.started)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join(WAIT_S)
        self._listener.close()


def until(happened: Callable[[], object]) -> None:
    """Wait for something that happens in another thread; fail when it never does."""
    limit = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < limit, "it never happened"
        time.sleep(0.005)
