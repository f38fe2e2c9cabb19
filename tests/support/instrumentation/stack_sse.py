"""Raw server-sent events in the matrix: read by each HTTP client as applications do."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, ClassVar

import aiohttp
import httpx
import httpx2
import requests
import urllib3
from support.instrumentation.matrix import MODEL, Stack
from support.patience import WAIT_S
from support.sse_server import DONE, Raw, Step, chunk, words

JSON = {"Content-Type": "application/json"}
BODY: dict[str, Any] = {"model": MODEL, "messages": [], "stream": True}


class RawChat(Stack):
    """What the server of all these sends."""

    # One reads from an iterator over the response: dropping it is leaving the loop, whatever becomes of the response.
    outcomes: ClassVar[dict[str, str]] = {"gc": "cancelled"}

    def before(self) -> Sequence[Step]:
        return [chunk({"role": "assistant", "content": ""})]

    def words(self, count: int) -> Sequence[Step]:
        return words(count)

    def after(self) -> Sequence[Step]:
        return [chunk(finish="stop"), DONE]

    def error(self) -> Sequence[Step]:
        return [Raw(b'data: {"error": {"message": "overloaded", "code": 503}}\n\n')]

    def pulls(self, stream: Any) -> Iterator[Any]:
        return self.items(stream)

    def apulls(self, stream: Any) -> AsyncIterator[Any]:
        return self.aitems(stream)


class HttpxLines(RawChat):
    """`client.send(..., stream=True)` and `iter_lines`, of either httpx."""

    def __init__(self, package: Any) -> None:
        self.name = package.__name__  # type: ignore[misc]
        self.package = package

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with self.package.Client(base_url=url, timeout=WAIT_S) as client:
            yield client

    def _request(self, client: Any) -> Any:
        return client.build_request("POST", "/chat/completions", json=BODY)

    def open(self, client: Any) -> Any:
        return client.send(self._request(client), stream=True)

    def items(self, stream: Any) -> Iterator[Any]:
        lines: Iterator[Any] = stream.iter_lines()
        return lines

    @contextlib.contextmanager
    def entered(self, client: Any) -> Iterator[Any]:
        with client.stream("POST", "/chat/completions", json=BODY) as response:
            yield response

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        async with self.package.AsyncClient(base_url=url, timeout=WAIT_S) as client:
            yield client

    async def aopen(self, client: Any) -> Any:
        return await client.send(self._request(client), stream=True)

    def aitems(self, stream: Any) -> AsyncIterator[Any]:
        lines: AsyncIterator[Any] = stream.aiter_lines()
        return lines

    async def aclose(self, stream: Any) -> None:
        await stream.aclose()

    @contextlib.asynccontextmanager
    async def aentered(self, client: Any) -> AsyncIterator[Any]:
        async with client.stream("POST", "/chat/completions", json=BODY) as response:
            yield response

    def closed(self, stream: Any) -> object:
        return (stream.is_closed, stream.is_stream_consumed)


class AiohttpLines(RawChat):
    """`session.post(...)` and `async for line in response.content`."""

    name = "aiohttp"
    modes = ("async",)

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        async with aiohttp.ClientSession(base_url=url + "/") as session:
            yield session

    async def aopen(self, client: Any) -> Any:
        return await client.post("chat/completions", json=BODY)

    def aitems(self, stream: Any) -> AsyncIterator[Any]:
        return aiter(stream.content)

    async def aclose(self, stream: Any) -> None:
        stream.close()

    @contextlib.asynccontextmanager
    async def aentered(self, client: Any) -> AsyncIterator[Any]:
        async with client.post("chat/completions", json=BODY) as response:
            yield response

    def closed(self, stream: Any) -> object:
        return stream.closed


class OverHttpClient(RawChat):
    modes = ("sync",)


class RequestsLines(OverHttpClient):
    """`requests.Session.post(..., stream=True)` and `iter_lines`."""

    name = "requests"

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with requests.Session() as session:
            yield session, url

    def open(self, client: Any) -> Any:
        session, url = client
        response = session.post(f"{url}/chat/completions", json=BODY, stream=True, timeout=WAIT_S)
        response.raise_for_status()
        return response

    def items(self, stream: Any) -> Iterator[Any]:
        lines: Iterator[Any] = stream.iter_lines(chunk_size=None)
        return lines

    def closed(self, stream: Any) -> object:
        return stream.raw.closed


class Urllib3Pieces(OverHttpClient):
    """`PoolManager.request(..., preload_content=False)` and `stream`."""

    name = "urllib3"

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with urllib3.PoolManager(timeout=WAIT_S, retries=False) as pool:
            yield pool, url

    def open(self, client: Any) -> Any:
        pool, url = client
        body = json.dumps(BODY).encode()
        return pool.request("POST", f"{url}/chat/completions", body=body, headers=JSON, preload_content=False)

    @contextlib.contextmanager
    def entered(self, client: Any) -> Iterator[Any]:
        with self.open(client) as response:
            yield response

    def items(self, stream: Any) -> Iterator[Any]:
        pieces: Iterator[Any] = stream.stream()
        return pieces

    def closed(self, stream: Any) -> object:
        return stream.closed


class UrllibLines(OverHttpClient):
    """`urllib.request.urlopen` and its lines."""

    name = "urllib.request"
    # The response is its own iterator: that a loop was left does not show, and its end is that of the response.
    outcomes: ClassVar[dict[str, str]] = {"caller, no with": "abandoned"}

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        yield url

    def open(self, client: Any) -> Any:
        question = urllib.request.Request(f"{client}/chat/completions", json.dumps(BODY).encode(), JSON)
        return urllib.request.urlopen(question, timeout=WAIT_S)

    def items(self, stream: Any) -> Iterator[Any]:
        return iter(stream)

    def closed(self, stream: Any) -> object:
        return stream.isclosed()


STACKS: list[Stack] = [
    HttpxLines(httpx),
    HttpxLines(httpx2),
    AiohttpLines(),
    RequestsLines(),
    Urllib3Pieces(),
    UrllibLines(),
]
