"""The port for clients: authorization, limits, and whether a request is owned, passed on or refused."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiohttp import HttpVersion11, web

from otel_llm.relay.answers import CLIENT_LEFT, error_response, pass_interim
from otel_llm.relay.backends.backend_connection import passes_interim
from otel_llm.relay.bodies import Bodies, Body, BodyError
from otel_llm.relay.callers import Caller, Shares, caller_of
from otel_llm.relay.connection import EVALUATION_EVERY_S, Connection, acceptor_of, stop_accepting, too_many_connections
from otel_llm.relay.headers import path_of, to_backend
from otel_llm.relay.paths import normal_path
from otel_llm.relay.splice.request import RequestError, endpoint_of
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.errors import UnauthenticatedError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping

    from multidict import CIMultiDict

    from otel_llm.config.tls import Certificates
    from otel_llm.relay.passing import Passing
    from otel_llm.relay.paths import Passthrough
    from otel_llm.relay.settings import Limits
    from otel_llm.relay.splice.request import OwnedRequest
    from otel_llm.shared.web.acceptor import ConnectionTracker
    from otel_llm.shared.web.tokens import Tokens

READ_BYTES: Final = 2**15
MAX_HEADERS: Final = 256
SWITCHES: Final = frozenset({"websocket", "tcp"})
"""Protocols that need a switch; a client that offers another one, as h2c, is served without it."""
BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
GIVES_WAY_S: Final = 5.0
"""A client that has read nothing for so long gives its slot to a new request, if all are taken."""
SHORT_BYTES: Final = 2**16
"""A body of at most this length is read before it is passed on."""
BUSY: Final = 429
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
ORIGIN: Final = web.RequestKey("origin", str)
_PREFLIGHT_S: Final = 600


class ClientRequest(web.BaseRequest):
    """A request of a client; the answers to a page that may ask say so to its browser."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        origin = self.get(ORIGIN)
        if origin is not None:
            _allow(response.headers, origin)


def checked_origin(request: web.BaseRequest, allowed: frozenset[str]) -> web.Response | None:
    """Return the answer to a page that may not ask, and to a browser that asks whether one may; None for the others.

    Only browsers send the header, and cannot be kept from it: it stops DNS rebinding, too.
    """
    stated = request.headers.getall("Origin", [])
    if not stated:
        return None
    if len(stated) > 1 or stated[0] not in allowed:
        message = "no page of this origin may ask: list it in the settings file (cors: origins)"
        return error_response(403, message, "invalid_request_error", "unknown_origin")
    request[ORIGIN] = stated[0]
    if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
        return None
    response = web.Response(status=204)
    response.headers["Access-Control-Allow-Methods"] = "GET, POST"
    response.headers["Access-Control-Allow-Headers"] = request.headers.get("Access-Control-Request-Headers", "")
    response.headers["Access-Control-Max-Age"] = str(_PREFLIGHT_S)
    return response


def _allow(headers: CIMultiDict[str], origin: str) -> None:
    """Let the page of an origin read an answer, whatever the backend says of pages."""
    headers["Access-Control-Allow-Origin"] = origin
    headers.add("Vary", "Origin")


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
    """The server for clients. `owned` gets each streamed completion with its path and its body.

    The server calls `counted` with the backend ("": none) and the status of each request that it refuses. `passing` and
    `owned` count the requests that they serve.
    """

    def __init__(
        self,
        limits: Limits,
        passing: Passing,
        owned: Callable[[web.BaseRequest, str, OwnedRequest, Body], Awaitable[web.StreamResponse]],
        tokens: Tokens | None,
        classes: Mapping[str, frozenset[str]],
        counted: Callable[[str, int], None],
        passthrough: Passthrough,
        origins: frozenset[str],
    ) -> None:
        super().__init__(self._serve, request_factory=_made, handler_cancellation=True)
        self.limits = limits
        self.streams = Shares(limits.streams)
        self.bodies = Bodies(limits)
        self._passing = passing
        self._owned = owned
        self._tokens = tokens
        self._classes = classes
        self._counted = counted
        self._passthrough = passthrough
        self._origins = origins
        self._accepting: asyncio.Task[None] | None = None
        self._no_room_until_s = 0.0

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
        answer = checked_origin(request, self._origins) if connection.begun() else too_many_connections()
        caller = self._caller(request) if answer is None else answer
        if isinstance(caller, web.Response):
            return self.refuse(caller)
        refusal = self._refusal(request, path)
        if refusal is not None:
            return self.refuse(refusal)
        assert path is not None  # noqa: S101
        if not self.streams.take(caller) and not self._take_with_room_made(caller):
            return self.refuse(error_response(429, "too many streams: try again", "rate_limit_error", retry=True))
        body = Body(self.bodies, caller, request)
        try:
            passes_interim.set(partial(pass_interim, request))
            waits = request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue"
            if waits and request.transport is not None:
                request.transport.write(CONTINUE)
            return await self._pass(request, path, body)
        finally:
            body.close()
            self.streams.give_back(caller)

    def _caller(self, request: web.BaseRequest) -> Caller | web.Response:
        """Return the client of a request, or the answer to one without a token."""
        bearer = None
        if self._tokens is not None:
            try:
                bearer = self._tokens.check(request.headers.getall("Authorization", []))
            except UnauthenticatedError as problem:
                response = error_response(401, str(problem), "invalid_request_error", "invalid_api_key")
                response.headers["WWW-Authenticate"] = "Bearer"
                return response
        return caller_of(request.remote or "", bearer, self._classes)

    def _refusal(self, request: web.BaseRequest, path: str | None) -> web.Response | None:
        """Return the answer to a request that is refused whatever its body; None for the others."""
        headers = request.headers
        if headers.get("Upgrade", "").lower() in SWITCHES or request.method == "CONNECT":
            return error_response(501, "no protocol but HTTP is passed on", "invalid_request_error")
        if headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
            return error_response(501, "no transfer coding but chunked is understood", "invalid_request_error")
        normal = None if path is None else normal_path(path)
        if path is None or normal is None:
            return error_response(400, "the target of the request is no plain path", "invalid_request_error")
        if not self._passthrough.passes(request.method, normal):
            message = "no path for clients of this relay; its settings may add it (passthrough)"
            return error_response(404, message, "invalid_request_error", "unknown_path")
        endpoint = endpoint_of(normal)
        if endpoint_of(path) != endpoint:
            return error_response(400, f"write the path as it is: {normal}", "invalid_request_error")
        if endpoint is not None and (request.body_exists if request.method in BODILESS else request.method != "POST"):
            return error_response(400, "completions are asked for by POST", "invalid_request_error")
        if (request.content_length or 0) > self.limits.body_bytes:
            message = f"the body is larger than {self.limits.body_bytes} bytes"
            return _unread(BodyError(413, message, "too_large"))
        return None

    def _take_with_room_made(self, caller: Caller) -> bool:
        """Take a stream's slot that another client is made to give back; return whether that was done."""
        if not self.streams.has_room(caller, leaving=1) or not self._make_room():
            return False
        return self.streams.take(caller, leaving=1)

    def _make_room(self) -> bool:
        """Cut the client that has read nothing for longest, if there is one that gives its slot; return whether."""
        now_s = monotonic_s()
        if now_s < self._no_room_until_s:  # a flood of requests does not search each time
            return False
        found = [one for one in self.connections if isinstance(one, Connection) and one.stalled_s >= GIVES_WAY_S]
        if not found:
            self._no_room_until_s = now_s + EVALUATION_EVERY_S
            return False
        max(found, key=lambda one: one.stalled_s).cut()
        return True

    async def _pass(self, request: web.BaseRequest, path: str, body: Body) -> web.StreamResponse:
        owned: OwnedRequest | None = None
        may_own = request.method == "POST" and endpoint_of(path) is not None
        # A short body too: it can be sent once more.
        short = 0 < (request.content_length or 0) <= SHORT_BYTES
        if may_own or short or request.headers.get("Transfer-Encoding"):
            try:
                await body.read()
                if may_own:
                    owned = await body.request(path)
            except BodyError as problem:
                return self.refuse(_unread(problem))
            except RequestError as problem:
                return self.refuse(error_response(400, str(problem), "invalid_request_error", param=problem.param))
            except asyncio.CancelledError:
                self._counted("", CLIENT_LEFT)
                raise
        if owned is not None:
            return await self._owned(request, path, owned, body)
        # The token was for us; the body was read, so its length is known.
        without = (
            *(("authorization",) if self._tokens is not None else ()),
            *(("content-length",) if body.received is not None else ()),
        )
        headers = to_backend(body.caller.headers(request.headers), *without)
        return await self._passing.serve(request, path, headers, body)

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
        while self.streams.taken and loop.time() < until_s:
            await asyncio.sleep(min(0.05, within_s))
        return not self.streams.taken


def _made(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    return ClientRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


def _unread(problem: BodyError) -> web.Response:
    """Answer a request whose body is not read to its end: its connection cannot be used again."""
    busy = problem.status == BUSY
    kind = "rate_limit_error" if busy else "invalid_request_error"
    response = error_response(problem.status, str(problem), kind, problem.code, retry=busy)
    response.force_close()
    return response
