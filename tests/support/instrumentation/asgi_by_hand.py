"""A server by hand, which drives an ASGI application message for message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from support.instrumentation.asgi_server import data_of
from support.sse_server import chunk

from otel_llm.instrumentation.server.asgi import StreamMiddleware

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

QUESTION = json.dumps({"model": "tiny", "stream": True}).encode()
ASKED: Message = {"type": "http.request", "body": QUESTION, "more_body": False}
START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8")],
}
END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


def piece(content: str) -> Message:
    return {"type": "http.response.body", "body": data_of(chunk({"content": content})), "more_body": True}


def replies(*messages: Message) -> App:
    """Return an application that reads its request, and sends these messages."""

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        for message in messages:
            await send(message)

    return app


def scope_of(path: str = "/v1/chat/completions", kind: str = "http", **more: Any) -> dict[str, Any]:
    return {"type": kind, "method": "POST", "path": path, "headers": [], "server": ("127.0.0.1", 8000), **more}


class Server:
    """What a server gives an application; it keeps what it was sent, and fails on command."""

    def __init__(self, *messages: Message, breaks_at: int | None = None) -> None:
        self.messages = list(messages) or [ASKED]
        self.given = 0
        self.sent: list[Message] = []
        self.breaks_at = breaks_at

    async def receive(self) -> Message:
        if self.given == len(self.messages):
            await asyncio.Event().wait()
        self.given += 1
        return self.messages[self.given - 1]

    async def send(self, message: Message) -> None:
        if len(self.sent) == self.breaks_at:
            raise OSError("gone")
        self.sent.append(message)


def serve(app: App, server: Server, scope: dict[str, Any] | None = None, **settings: Any) -> None:
    asyncio.run(StreamMiddleware(app, **settings)(scope or scope_of(), server.receive, server.send))


async def streams(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    for message in (START, piece("one"), piece("two"), END):
        await send(message)
