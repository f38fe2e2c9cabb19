"""The HTTP client: requests to backends, on one unlimited pool of connections."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from typing import TYPE_CHECKING, Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from otel_llm.config.secret_files import read_bearer
from otel_llm.relay.backends.backend_connection import (
    SWITCHING,
    Answer,
    BackendConnector,
    IdleClosedError,
    Request,
    sends_trailers,
)
from otel_llm.relay.headers import names_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.settings import BackendSettings

CONNECT_S: Final = 5.0
REFUSED: Final = "refused"
PIECE_BYTES: Final = 2**16
"""A larger body is written in pieces of this size."""
TRY_ELSEWHERE: Final = frozenset({429, 500, 502, 503, 504})
"""Statuses after which another backend is tried."""
READ_BYTES: Final = 2**15
"""Reading a stream pauses when twice as much, and one more read, waits in the process."""
ANSWER_BYTES: Final = 2**20
"""An answer of a backend to the relay itself is read up to here."""
_OWN_HEADERS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add to a request without them."""


Sendable = bytes | tuple[bytes | memoryview, ...]
"""A body of a known length, whole or in parts."""


class UpstreamError(Exception):
    """A backend does not serve a request (further); `reason` is one word, or an HTTP status.

    `refused`: no connection, so nothing was sent; `broken`, `silent`, `tls`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Upstream:
    """The client of the backends; made in the running loop.

    A request on a kept connection that the backend had closed meanwhile is sent once more, on a new one.

    Raises:
        ConfigError: a key file cannot be used.
        OSError, ssl.SSLError: a file of certificates cannot be used.
    """

    def __init__(self, backends: Mapping[str, BackendSettings]) -> None:
        self._session = _session(BackendConnector(limit=0, keepalive_timeout=4.0, ttl_dns_cache=10))
        self._anew = _session(BackendConnector(limit=0, force_close=True, ttl_dns_cache=10))
        """Makes a new connection for each request."""
        self._key_files = {name: one.api_key_file for name, one in backends.items() if one.api_key_file is not None}
        self._tls = {
            name: ssl.create_default_context(cafile=str(one.ca)) for name, one in backends.items() if one.ca is not None
        }
        self._keys: dict[str, str] = {}
        self.reload_keys()

    def reload_keys(self) -> int:
        """Read the keys of backends anew; return their number. Raises ConfigError: then the old ones stay."""
        self._keys = {name: read_bearer(path) for name, path in self._key_files.items()}
        return len(self._keys)

    async def open(
        self,
        backend: Backend,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Sendable | AsyncIterator[bytes] | None,
        trailers: Sequence[bytes] = (),
    ) -> aiohttp.ClientResponse:
        """Send a request and return the answer once its headers are received; `path`: unchanged, with its query.

        `headers`: those to send, see `to_backend`; a body of a known length needs none, and is chunked if there are
        `trailers`. Raises UpstreamError.
        """
        sent = CIMultiDict(headers)
        if isinstance(body, (bytes, tuple)):
            parts = (body,) if isinstance(body, bytes) else body
            size = sum(map(len, parts))
            if trailers:
                sent["Trailer"] = names_of(trailers)
            else:
                sent["Content-Length"] = str(size)
            # A large body is written as fast as the backend reads it, and not copied as a whole.
            body = b"".join(parts) if size <= PIECE_BYTES and not trailers else _pieces(parts)
        key = self._keys.get(backend.name)
        if key is not None:
            sent.popall("Authorization", None)
            sent["Authorization"] = f"Bearer {key}"
        send = partial(
            aiohttp.ClientSession.request,
            method=method,
            url=URL(backend.url + path, encoded=True),
            headers=sent,
            data=body,
            allow_redirects=False,
            ssl=self._tls.get(backend.name, True),
        )
        ends = sends_trailers.set(trailers)
        try:
            if body is None or isinstance(body, bytes):
                try:
                    response = await send(self._session)
                except IdleClosedError:
                    response = await send(self._anew)
            else:  # it cannot be sent once more
                response = await send(self._anew)
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as problem:
            raise UpstreamError("tls") from problem
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as problem:
            raise UpstreamError(REFUSED) from problem
        except TimeoutError as problem:
            raise UpstreamError("silent") from problem
        except (aiohttp.ClientError, OSError, ValueError) as problem:
            raise UpstreamError("broken") from problem
        finally:
            sends_trailers.reset(ends)
        if response.status == SWITCHING:  # the relay sends no Upgrade, so this answer is wrong
            response.close()
            raise UpstreamError("broken")
        _bound_reads(response)
        _follow_connection(response)
        return response

    async def request(
        self,
        backend: Backend,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Sendable | None,
        within_s: float,
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer to the relay itself, and close it.

        Raises UpstreamError.
        """
        try:
            async with asyncio.timeout(within_s):
                response = await self.open(backend, method, path, headers, body)
                try:
                    answer = b""
                    while len(answer) < ANSWER_BYTES and (data := await read_some(response)):
                        answer += data
                    return response.status, answer
                finally:
                    response.close()
        except TimeoutError:
            raise UpstreamError("silent") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise UpstreamError("broken") from problem

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await self._anew.close()
        await asyncio.sleep(0)


def _session(connector: BackendConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=_OWN_HEADERS,
        read_bufsize=READ_BYTES,
        trust_env=False,
        max_line_size=2**16,
        max_field_size=2**16,
        request_class=Request,
        response_class=Answer,
    )


async def _pieces(parts: Iterable[bytes | memoryview]) -> AsyncIterator[bytes]:
    for part in parts:
        for begin in range(0, len(part), PIECE_BYTES):
            yield bytes(part[begin : begin + PIECE_BYTES])
            await asyncio.sleep(0)  # a backend that takes all at once does not hold the loop


async def read_some(response: aiohttp.ClientResponse) -> bytes:
    """Return the received part of an answer's body, waiting for at least a byte; b"" at its end.

    Raises aiohttp.ClientError or OSError if it broke off.
    """
    try:
        return await response.content.readany()
    except RuntimeError as problem:  # aiohttp's error for a connection lost at this very instant
        raise aiohttp.ClientPayloadError("the connection was closed") from problem


def _bound_reads(response: aiohttp.ClientResponse) -> None:
    """Read less from a socket at once than asyncio does: it counts towards the limit of a stream."""
    connection = response.connection
    transport = None if connection is None else connection.transport
    if transport is not None and hasattr(transport, "max_size"):
        transport.max_size = 2 * READ_BYTES


def _follow_connection(response: aiohttp.ClientResponse) -> None:
    """Break off the body when its connection ends first.

    aiohttp closes the connection on malformed framing in mid-body, but does not notify the reader of the body, which
    would then wait for ever.
    """
    connection, body = response.connection, response.content
    closed = None if connection is None or connection.protocol is None else connection.protocol.closed
    if closed is None:
        return

    def end(_closed: asyncio.Future[None]) -> None:
        if not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection was closed"))

    def leave() -> None:
        closed.remove_done_callback(end)

    closed.remove_done_callback(_retrieve)  # of an earlier request on this connection
    closed.add_done_callback(_retrieve)
    closed.add_done_callback(end)
    body.on_eof(leave)


def _retrieve(closed: asyncio.Future[None]) -> None:
    """Retrieve the exception of an ended connection: asyncio logs exceptions that are never retrieved."""
    if not closed.cancelled():
        closed.exception()
