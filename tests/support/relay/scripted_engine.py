"""A backend that answers each generation request with given bytes, headers included."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

from aiohttp import web
from support.relay.fake_engine import EngineRequest, FakeEngine

COMMENTS = "comments"
Part = bytes | asyncio.Event | Literal["comments"] | None
"""Bytes of the body; an event that is awaited first; comments until the client leaves; None: the connection breaks."""
SSE = {"Content-Type": "text/event-stream"}


class ScriptedEngine(FakeEngine):
    """A backend of kind `openai`, unless `kind` says otherwise, with one answer for all."""

    def __init__(self, *parts: Part, headers: Mapping[str, str] = SSE, kind: str = "openai", status: int = 200) -> None:
        super().__init__()
        self.kind = kind
        self.parts = parts
        self.headers = headers
        self.status = status

    async def _answer(self, request: web.Request, asked: EngineRequest) -> web.StreamResponse:
        transport = request.transport
        assert transport is not None
        lines = [f"HTTP/1.1 {self.status} OK", "Transfer-Encoding: chunked", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        transport.write("\r\n".join([*lines, "", ""]).encode())
        for part in self.parts:
            if part is None:
                transport.abort()
            elif isinstance(part, str):
                while not transport.is_closing():
                    transport.write(b"e\r\n: keep-alive\n\n\r\n")
                    await asyncio.sleep(0.01)
            elif isinstance(part, bytes):
                transport.write(b"%x\r\n%s\r\n" % (len(part), part))
                await asyncio.sleep(0)
            else:
                await part.wait()
        transport.write(b"0\r\n\r\n")
        asked.finished = True
        transport.close()
        return web.Response()  # goes nowhere
