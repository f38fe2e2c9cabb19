"""Proxies that do nothing but pass streams on, on the HTTP stacks that the relay could stand on.

`python -m relay_load.stacks STACK BACKEND_PORT PORT`. STACK: `bytes` (no HTTP at all, the floor of asyncio), `aiohttp`
(both sides, as the relay), `httptools` (its parser under protocols of our own); with `+uvloop` behind it on that event
loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import httptools
from aiohttp import ClientSession, TCPConnector, web
from multidict import CIMultiDict

Factory = Callable[[], asyncio.BaseProtocol]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Backwards(asyncio.Protocol):
    """The backend's side of a connection whose bytes are passed on as they are."""

    def __init__(self, client: asyncio.Transport) -> None:
        self.client = client

    def data_received(self, data: bytes) -> None:
        self.client.write(data)


class Bytes(asyncio.Protocol):
    """A connection of a client, joined to one of the backend."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.waiting: list[bytes] = []
        self.backend: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client: Any = transport
        self.task = asyncio.ensure_future(self.connect())

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        self.backend, _ = await loop.create_connection(lambda: Backwards(self.client), "127.0.0.1", self.port)
        self.backend.writelines(self.waiting)

    def data_received(self, data: bytes) -> None:
        if self.backend is None:
            self.waiting.append(data)
        else:
            self.backend.write(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.backend is not None:
            self.backend.close()


class Response(asyncio.Protocol):
    """The backend's side: a response is parsed, and its body passed on in chunks of our own."""

    def __init__(self, client: asyncio.Transport) -> None:
        self.client = client
        self.parser = httptools.HttpResponseParser(self)
        self.body: list[bytes] = []

    def on_headers_complete(self) -> None:
        self.client.write(HEAD)

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        self.flush()
        self.client.write(b"0\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        self.flush()

    def flush(self) -> None:
        if self.body:
            body = b"".join(self.body)
            self.body.clear()
            self.client.write(b"%x\r\n%b\r\n" % (len(body), body))


class Request(asyncio.Protocol):
    """A client's side: a request is parsed and sent on over a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.client: Any = transport
        self.backend: Any = None
        self.parser = httptools.HttpRequestParser(self)
        self.headers: list[bytes] = []
        self.body = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.task = asyncio.ensure_future(self.send())

    async def send(self) -> None:
        loop = asyncio.get_running_loop()
        self.backend, _ = await loop.create_connection(lambda: Response(self.client), "127.0.0.1", self.port)
        path = self.parser.get_method() + b" /v1/chat/completions HTTP/1.1\r\n"
        self.backend.write(path + b"".join(self.headers) + b"\r\n" + self.body)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, _exc: Exception | None) -> None:
        if self.backend is not None:
            self.backend.close()


async def serve_aiohttp(port: int) -> Factory:
    session = ClientSession(connector=TCPConnector(limit=0), auto_decompress=False)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        headers = CIMultiDict(request.headers)
        headers.pop("Host", None)
        async with session.post(
            f"http://127.0.0.1:{port}{request.raw_path}", data=await request.read(), headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": "text/event-stream"})
            response.enable_chunked_encoding()
            await response.prepare(request)
            while data := await answer.content.readany():
                await response.write(data)
            await response.write_eof()
            return response

    return web.Server(handle)


async def run(stack: str, backend: int, port: int) -> None:
    factory: Factory
    if stack == "aiohttp":
        factory = await serve_aiohttp(backend)
    else:
        kind = {"bytes": Bytes, "httptools": Request}[stack]
        factory = lambda: kind(backend)  # noqa: E731
    server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def main() -> None:
    stack, _, loop = sys.argv[1].partition("+")
    if loop == "uvloop":
        import uvloop  # type: ignore[import-not-found, unused-ignore]

        starting = uvloop.run
    else:
        starting = asyncio.run
    starting(run(stack, int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
