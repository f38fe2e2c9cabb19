"""lm15, the engine of DSPy, in the matrix; apart from the others, since LiteLLM's environment has no lm15."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from lm15.transports import StdlibAsyncTransport, StdlibTransport, TransportRequest
from support.instrumentation.stack_sse import BODY, JSON, RawChat


class Lm15Lines(RawChat):
    """`transport.stream(...)` and `iter_lines`, of the engine of DSPy."""

    name = "lm15"

    @staticmethod
    def _request(url: str) -> TransportRequest:
        return TransportRequest("POST", f"{url}/chat/completions", list(JSON.items()), json.dumps(BODY).encode())

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with StdlibTransport() as transport:
            yield transport, url

    def open(self, client: Any) -> Any:
        transport, url = client
        return transport.stream(self._request(url))

    def items(self, stream: Any) -> Iterator[Any]:
        lines: Iterator[Any] = stream.iter_lines()
        return lines

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        async with StdlibAsyncTransport() as transport:
            yield transport, url

    async def aopen(self, client: Any) -> Any:
        return await self.open(client).__aenter__()

    def aitems(self, stream: Any) -> AsyncIterator[Any]:
        lines: AsyncIterator[Any] = stream.aiter_lines()
        return lines

    async def aclose(self, stream: Any) -> None:
        await stream.aclose()

    def aentered(self, client: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        opened: contextlib.AbstractAsyncContextManager[Any] = self.open(client)
        return opened
