"""The port for clients: authorization, limits, and whether a request is owned or passed on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from otel_llm.relay.answers import CLIENT_LEFT, error_response
from otel_llm.relay.connection import Connection, acceptor_of, stop_accepting, too_many_connections
from otel_llm.relay.headers import path_of, to_backend
from otel_llm.relay.seam.request import endpoint_of
from otel_llm.shared.errors import UnauthenticatedError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from otel_llm.relay.passing import Passing
    from otel_llm.relay.settings import Limits
    from otel_llm.shared.web.acceptor import ConnectionTracker
    from otel_llm.shared.web.tls import Certificates
    from otel_llm.shared.web.tokens import Tokens

READ_BYTES: Final = 2**15
MAX_HEADERS: Final = 256
SWITCHES: Final = frozenset({"websocket", "tcp"})
"""Protocols that need a switch; a client that offers another one, as h2c, is served without it."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(Connection):
    """A client's connection."""

    __slots__ = ("_clients",)

    def __init__(self, clients: ClientServer, door: ConnectionTracker[Connection], **more: Any) -> None:
        super().__init__(clients, clients.limits, door, **more)
        self._clients = clients

    def answer(self, error: web.Response) -> web.Response:
        """Return the answer; errors of the client are counted."""
        return self._clients.refuse(error) if error.status < 500 else error


class ClientServer(web.Server):
    """The server for clients. `owned` gets each request that it may own with its path and body; None: it is passed on.

    The server calls `counted` with the backend ("": none) and the status of each request that it refuses. `passing` and
    `owned` count the requests that they serve.
    """

    def __init__(
        self,
        limits: Limits,
        passing: Passing,
        owned: Callable[[web.BaseRequest, str, bytes], Awaitable[web.StreamResponse | None]],
        tokens: Tokens | None,
        counted: Callable[[str, int], None],
    ) -> None:
        super().__init__(self._serve, handler_cancellation=True)
        self.limits = limits
        self.serving = 0
        self._passing = passing
        self._owned = owned
        self._tokens = tokens
        self._counted = counted
        self._accepting: asyncio.Task[None] | None = None

    def connection(self, door: ConnectionTracker[Connection]) -> ClientConnection:
        """Return the protocol of a new connection."""
        return ClientConnection(
            self,
            door,
            max_line_size=self.limits.header_bytes,
            max_field_size=self.limits.header_bytes,
            max_headers=MAX_HEADERS,
            read_bufsize=READ_BYTES,
        )

    # The handler.

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)  # noqa: S101
        path = path_of(request.raw_path)
        refusal = self._refusal(request, path) if connection.begun() else too_many_connections()
        if refusal is not None:
            return self.refuse(refusal)
        assert path is not None  # noqa: S101
        self.serving += 1
        try:
            if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
                request.transport.write(CONTINUE)
            return await self._pass(request, path)
        finally:
            self.serving -= 1

    def _refusal(self, request: web.BaseRequest, path: str | None) -> web.Response | None:
        """Return the answer to a request that is refused whatever its body; None for the others."""
        headers = request.headers
        if self._tokens is not None:
            try:
                self._tokens.check(headers.getall("Authorization", []))
            except UnauthenticatedError as problem:
                response = error_response(401, str(problem), "invalid_request_error", "invalid_api_key")
                response.headers["WWW-Authenticate"] = "Bearer"
                return response
        if headers.get("Upgrade", "").lower() in SWITCHES or request.method == "CONNECT":
            return error_response(501, "no protocol but HTTP is passed on", "invalid_request_error")
        if headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
            return error_response(501, "no transfer coding but chunked is understood", "invalid_request_error")
        if path is None:
            return error_response(400, "the target of the request is no path", "invalid_request_error")
        if (request.content_length or 0) > self.limits.body_bytes:
            return self._too_large()
        if self.serving >= self.limits.streams:
            return error_response(429, "too many streams: try again", "rate_limit_error", retry=True)
        return None

    async def _pass(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        body: bytes | None = None
        may_own = request.method == "POST" and endpoint_of(path) is not None
        if may_own or request.headers.get("Transfer-Encoding"):
            try:
                body = await self._read(request)
            except TimeoutError:
                return self.refuse(self._too_slow())
            except asyncio.CancelledError:
                self._counted("", CLIENT_LEFT)
                raise
            if body is None:
                return self.refuse(self._too_large())
        if may_own and body is not None and request.headers.get("Content-Encoding", "identity") == "identity":
            response = await self._owned(request, path, body)
            if response is not None:
                return response
        # The token was for us; the body was read, so its length is known.
        without = (
            *(("authorization",) if self._tokens is not None else ()),
            *(("content-length",) if body is not None else ()),
        )
        return await self._passing.serve(request, path, to_backend(request.headers, *without), body)

    async def _read(self, request: web.BaseRequest) -> bytes | None:
        """Return a body, None where it is over the limit. Raises TimeoutError where it stalls."""
        parts: list[bytes] = []
        size = 0
        while True:
            async with asyncio.timeout(self.limits.idle_connection_s):
                data = await request.content.readany()
            if not data:
                return b"".join(parts)
            size += len(data)
            if size > self.limits.body_bytes:
                return None
            parts.append(data)

    def _too_slow(self) -> web.Response:
        return _unread(408, f"the body did not go on within {self.limits.idle_connection_s:g} s", "too_slow")

    def _too_large(self) -> web.Response:
        return _unread(413, f"the body is larger than {self.limits.body_bytes} bytes", "too_large")

    def refuse(self, response: web.Response) -> web.Response:
        """Count an answer of our own."""
        self._counted("", response.status)
        return response

    # Start and stop.

    def listen(self, listener: socket.socket, certificates: Certificates | None) -> None:
        """Accept clients; reloaded certificates apply to new connections."""
        acceptor = acceptor_of(
            listener, self.limits, self.connection, None if certificates is None else certificates.context
        )
        self._accepting = asyncio.get_running_loop().create_task(acceptor.run())

    async def close_listeners(self) -> None:
        """Accept no new clients; connections without a request are closed, streams go on."""
        await stop_accepting(self._accepting)
        self._accepting = None
        self.pre_shutdown()

    async def drained(self, within_s: float) -> bool:
        """Wait until every request is answered, for at most so long; return whether all are."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while self.serving and loop.time() < until_s:
            await asyncio.sleep(min(0.05, within_s))
        return not self.serving


def _unread(status: int, message: str, code: str) -> web.Response:
    """Answer a request whose body is not read to its end: its connection cannot be used again."""
    response = error_response(status, message, "invalid_request_error", code)
    response.force_close()
    return response
