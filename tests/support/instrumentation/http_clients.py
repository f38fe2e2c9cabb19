"""The HTTP clients of Python whose streams are recorded: how each posts a request, and every way to read its reply."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import io
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import httpx2
import lm15
import requests
import urllib3
from lm15.transports import StdlibAsyncTransport, StdlibTransport, TransportRequest
from support.instrumentation.wire_bodies import QUESTION
from support.patience import WAIT_S

Read = Sequence[Any]
"""What a caller got, piece by piece."""
Headers = Mapping[str, str]
JSON: Headers = {"Content-Type": "application/json"}
BODY = json.dumps(QUESTION).encode()
PAST = "past http.client"
"""The way to read that waits for the end of the connection, and that no hook sees as anything but bytes."""


@dataclass(frozen=True)
class HttpClient:
    """One client. `post(url, body, headers)` returns the whole body of the reply, unpacked if the client does that."""

    post: Callable[[str, Any, Headers], bytes]
    ways: Mapping[str, Callable[[str], Read]]
    refused: type[Exception]
    """The error when no server listens."""
    cut: Collection[str] = ()
    """The ways whose pieces depend on the network: only their bytes are compared."""


async def every(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def until_empty(read: Callable[[], Awaitable[bytes]]) -> list[bytes]:
    items = []
    while item := await read():
        items.append(item)
    return items


def of_httpx(package: Any) -> HttpClient:
    def post(url: str, body: Any, headers: Headers) -> bytes:
        with package.Client(timeout=WAIT_S) as client:
            return bytes(client.post(url, content=body, headers={**JSON, **headers}).content)

    def way(read: Callable[[Any], Any]) -> Callable[[str], Read]:
        def ask(url: str) -> Read:
            with package.Client() as client, client.stream("POST", url, json=QUESTION) as response:
                return list(read(response))

        return ask

    ways = {
        "lines": way(lambda response: response.iter_lines()),
        "text": way(lambda response: response.iter_text()),
        "bytes": way(lambda response: response.iter_bytes()),
        "bytes of 7": way(lambda response: response.iter_bytes(chunk_size=7)),
        "raw": way(lambda response: response.iter_raw()),
        "raw of 7": way(lambda response: response.iter_raw(chunk_size=7)),
        "read": way(lambda response: [response.read()]),
    }
    return HttpClient(post, ways, package.ConnectError)


async def whole(response: Any) -> AsyncIterator[bytes]:
    yield await response.aread()


def of_httpx_async(package: Any) -> HttpClient:
    def post(url: str, body: Any, headers: Headers) -> bytes:
        async def ask() -> bytes:
            sent = body if isinstance(body, bytes) else later(body)
            async with package.AsyncClient(timeout=WAIT_S) as client:
                return bytes((await client.post(url, content=sent, headers={**JSON, **headers})).content)

        return asyncio.run(ask())

    def way(read: Callable[[Any], AsyncIterator[Any]]) -> Callable[[str], Read]:
        async def ask(url: str) -> Read:
            async with package.AsyncClient() as client, client.stream("POST", url, json=QUESTION) as response:
                return await every(read(response))

        return lambda url: asyncio.run(ask(url))

    ways = {
        "lines": way(lambda response: response.aiter_lines()),
        "text": way(lambda response: response.aiter_text()),
        "bytes": way(lambda response: response.aiter_bytes()),
        "bytes of 7": way(lambda response: response.aiter_bytes(chunk_size=7)),
        "raw": way(lambda response: response.aiter_raw()),
        "raw of 7": way(lambda response: response.aiter_raw(chunk_size=7)),
        "read": way(whole),
    }
    return HttpClient(post, ways, package.ConnectError)


async def later(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def ask_aiohttp(url: str, read: Callable[[aiohttp.ClientResponse], Awaitable[Any]], **sent: Any) -> Any:
    """Return what a reader gets of the reply to a request over aiohttp."""

    async def ask() -> Any:
        given = {"data": BODY, "headers": JSON, **sent}
        async with aiohttp.ClientSession() as session, session.post(url, **given) as response:
            return await read(response)

    return asyncio.run(ask())


def of_aiohttp() -> HttpClient:
    def post(url: str, body: Any, headers: Headers) -> bytes:
        data = body if isinstance(body, bytes) else later(body)
        return bytes(ask_aiohttp(url, lambda response: response.read(), data=data, headers={**JSON, **headers}))

    async def by_readexactly(response: aiohttp.ClientResponse) -> list[Any]:
        items: list[Any] = []
        try:
            while True:
                items.append(await response.content.readexactly(11))
        except asyncio.IncompleteReadError as end:
            return [*items, end.partial]

    async def by_read_nowait(response: aiohttp.ClientResponse) -> list[Any]:
        await response.content.wait_eof()
        return [response.content.read_nowait(5), response.content.read_nowait()]

    async def by_unread(response: aiohttp.ClientResponse) -> list[Any]:
        first = await response.content.readline()
        rest = await response.read()
        assert response.content.at_eof()
        return [first, rest]

    async def chunks(response: aiohttp.ClientResponse) -> list[Any]:
        return [piece async for piece, _ in response.content.iter_chunks()]

    async def once(read: Callable[[], Awaitable[Any]]) -> list[Any]:
        return [await read()]

    reads: dict[str, Callable[[aiohttp.ClientResponse], Awaitable[list[Any]]]] = {
        "lines": lambda response: every(aiter(response.content)),
        "any": lambda response: every(response.content.iter_any()),
        "chunks": chunks,
        "chunked": lambda response: every(response.content.iter_chunked(7)),
        "readline": lambda response: until_empty(response.content.readline),
        "readuntil": lambda response: until_empty(lambda: response.content.readuntil(b"\n\n")),
        "readany": lambda response: until_empty(response.content.readany),
        "read of 7": lambda response: until_empty(lambda: response.content.read(7)),
        "readexactly": by_readexactly,
        "read_nowait": by_read_nowait,
        "a line, then all": by_unread,
        "read": lambda response: once(response.read),
        "text": lambda response: once(response.text),
        "content.read": lambda response: once(response.content.read),
    }
    ways = {name: functools.partial(ask_aiohttp, read=read) for name, read in reads.items()}
    cut = {"any", "chunks", "chunked", "readany", "read of 7"}
    return HttpClient(post, ways, aiohttp.ClientConnectorError, cut)


def open_bare(url: str, body: Any = BODY, headers: Headers = JSON) -> http.client.HTTPResponse:
    """Return the response of a connection of `http.client`."""
    connection = connected(url)
    connection.request("POST", path_of(url), body, dict(headers))
    return connection.getresponse()


def connected(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.partition("//")[2].partition("/")[0], timeout=WAIT_S)


def path_of(url: str) -> str:
    return "/" + url.partition("//")[2].partition("/")[2]


def open_urllib3(url: str, body: Any = BODY, headers: Headers = JSON) -> Any:
    pool = urllib3.PoolManager(timeout=WAIT_S, retries=False)
    return pool.request("POST", url, body=body, headers=headers, preload_content=False)


def open_requests(url: str, body: Any = BODY, headers: Headers = JSON) -> requests.Response:
    return requests.post(url, data=body, headers=headers, stream=True, timeout=WAIT_S)


def by_readinto(response: Any) -> Iterator[bytes]:
    buffer = bytearray(7)
    while count := response.readinto(buffer):
        yield bytes(buffer[:count])


def taken(read: Callable[..., bytes], *args: int) -> list[bytes]:
    return list(iter(functools.partial(read, *args), b""))


def of_http_client() -> HttpClient:
    ways: dict[str, Callable[[str], Read]] = {
        "read": lambda url: [open_bare(url).read()],
        "read of 7": lambda url: taken(open_bare(url).read, 7),
        "read1": lambda url: taken(open_bare(url).read1),
        "readline": lambda url: taken(open_bare(url).readline),
        "readinto": lambda url: list(by_readinto(open_bare(url))),
        "lines": lambda url: list(open_bare(url)),
        "buffered": lambda url: list(io.TextIOWrapper(io.BufferedReader(open_bare(url)))),
        "urllib.request": lambda url: list(urllib.request.urlopen(urllib.request.Request(url, BODY, dict(JSON)))),
    }

    def post(url: str, body: Any, headers: Headers) -> bytes:
        with contextlib.closing(connected(url)) as connection:
            connection.request("POST", path_of(url), body, {**JSON, **headers})
            return connection.getresponse().read()

    return HttpClient(post, ways, ConnectionRefusedError, {"read1", "readinto", "read of 7"})


def of_urllib3() -> HttpClient:
    ways: dict[str, Callable[[str], Read]] = {
        "stream": lambda url: list(open_urllib3(url).stream()),
        "stream of 7": lambda url: list(open_urllib3(url).stream(7)),
        "read_chunked": lambda url: list(open_urllib3(url).read_chunked()),
        "read of 7": lambda url: taken(open_urllib3(url).read, 7),
        "data": lambda url: [open_urllib3(url).data],
        "lines": lambda url: list(open_urllib3(url)),
    }

    def post(url: str, body: Any, headers: Headers) -> bytes:
        return bytes(open_urllib3(url, body, {**JSON, **headers}).data)

    return HttpClient(post, ways, urllib3.exceptions.NewConnectionError, ways.keys() - {"data", "lines"})


def past(url: str) -> list[bytes]:
    """Read as old SSE clients do, the framing of the chunks with the rest."""
    response = open_requests(url)
    return taken(response.raw._fp.fp.read1, 100)


def of_requests() -> HttpClient:
    ways: dict[str, Callable[[str], Read]] = {
        "lines": lambda url: list(open_requests(url).iter_lines()),
        "content of 7": lambda url: list(open_requests(url).iter_content(7)),
        "content": lambda url: [open_requests(url).content],
        "raw": lambda url: [open_requests(url).raw.read()],
        "no stream": lambda url: [requests.post(url, json=QUESTION, timeout=WAIT_S).content],
        PAST: past,
    }

    def post(url: str, body: Any, headers: Headers) -> bytes:
        return open_requests(url, body, {**JSON, **headers}).content

    return HttpClient(post, ways, requests.ConnectionError, {PAST, "content of 7"})


def lm15_request(url: str, body: bytes = BODY, headers: Headers = JSON) -> TransportRequest:
    return TransportRequest("POST", url, list(headers.items()), body)


def of_lm15() -> HttpClient:
    def way(read: Callable[[Any], Any]) -> Callable[[str], Read]:
        def ask(url: str) -> Read:
            with StdlibTransport() as transport, transport.stream(lm15_request(url)) as response:
                return list(read(response))

        return ask

    def post(url: str, body: Any, headers: Headers) -> bytes:
        request = lm15_request(url, body, {**JSON, **headers})
        with StdlibTransport() as transport, transport.stream(request) as response:
            return response.read()

    ways = {
        "pieces": way(iter),
        "lines": way(lambda response: response.iter_lines()),
        "read": way(lambda response: [response.read()]),
    }
    return HttpClient(post, ways, lm15.transports.ConnectError, ways)


def of_lm15_async() -> HttpClient:
    async def asked(request: TransportRequest, read: Callable[[Any], Awaitable[Any]]) -> Any:
        async with StdlibAsyncTransport() as transport, transport.stream(request) as response:
            return await read(response)

    def way(read: Callable[[Any], Awaitable[Any]]) -> Callable[[str], Read]:
        return lambda url: asyncio.run(asked(lm15_request(url), read))

    async def once(response: Any) -> list[bytes]:
        return [await response.read()]

    def post(url: str, body: Any, headers: Headers) -> bytes:
        return bytes(asyncio.run(asked(lm15_request(url, body, {**JSON, **headers}), lambda one: one.read())))

    ways = {
        "pieces": way(lambda response: every(aiter(response))),
        "lines": way(lambda response: every(response.aiter_lines())),
        "read": way(once),
    }
    return HttpClient(post, ways, lm15.transports.ConnectError, ways)


CLIENTS: Mapping[str, HttpClient] = {
    "httpx": of_httpx(httpx),
    "httpx async": of_httpx_async(httpx),
    "httpx2": of_httpx(httpx2),
    "httpx2 async": of_httpx_async(httpx2),
    "aiohttp": of_aiohttp(),
    "http.client": of_http_client(),
    "urllib3": of_urllib3(),
    "requests": of_requests(),
    "lm15": of_lm15(),
    "lm15 async": of_lm15_async(),
}
