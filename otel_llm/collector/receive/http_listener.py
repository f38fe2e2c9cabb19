"""An HTTP server for an ASGI application, in a thread of its own, with limits on its connections."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from otel_llm.collector.settings import Limits
from otel_llm.shared.web.acceptor import FULL, Acceptor, bare_answer
from otel_llm.shared.web.address import Address, listen

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from starlette.types import ASGIApp
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from otel_llm.shared.web.acceptor import ConnectionTracker

CONNECTION_AGE_S: Final = 3600.0
_CHECK_S: Final = 0.25
_STOP_S: Final = 2.0
"""The time that uvicorn needs to notice a stop and to carry it out."""


class HttpServer:
    """An HTTP server in a background thread.

    Args:
        app: the ASGI application.
        address: where to listen; port 0 lets the system pick one.
        option: the command's flag for the address, for the message when the port is in use.
        limits: of connections, and their timeouts.
        context: returns the TLS context for a connection that begins now; None: plain text.
        age_s: a connection of this age is closed after the answer in progress: certificates are checked again.
    """

    def __init__(
        self,
        app: ASGIApp,
        address: Address,
        *,
        option: str,
        limits: Limits | None = None,
        context: Callable[[], ssl.SSLContext] | None = None,
        age_s: float = CONNECTION_AGE_S,
    ) -> None:
        self._address = address
        self._option = option
        self._socket: socket.socket | None = None
        self._server = _Server(app, Limits() if limits is None else limits, context, age_s)
        self._thread = Thread(target=self._run, name=f"http{option}", daemon=True)

    @property
    def address(self) -> Address:
        """Return the address, with the port that the system picked."""
        if self._socket is None:
            return self._address
        return Address(self._address.host, self._socket.getsockname()[1])

    @property
    def port(self) -> int:
        """Return the port; 0 before `bind` if the system picks it."""
        return self.address.port

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        return len(self._server.acceptor.connections) if self._server.acceptor is not None else 0

    @property
    def turned_away(self) -> int:
        """Return how many connections were refused since the start."""
        return self._server.acceptor.turned_away if self._server.acceptor is not None else 0

    def bind(self) -> None:
        """Bind the port; connections wait until `start`.

        Raises:
            AddressError: it is in use, or the address is not this machine's.
        """
        if self._socket is None:
            self._socket = listen(self._address, self._option)

    def start(self) -> None:
        """Serve, and return when requests are answered; bind first if that was not done."""
        self.bind()
        self._thread.start()
        self._server.up.wait()
        if not self._server.started:
            raise RuntimeError(f"the HTTP server at {self.address} did not start")

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new requests, and return when the others are answered, after `grace_s` seconds at the latest."""
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(max(1.0, grace_s) + _STOP_S)
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        assert self._socket is not None  # noqa: S101 - start binds
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._server.up.set()


class _Server(uvicorn.Server):
    """Uvicorn's server with our `Connection` and `Acceptor`, and an event for its start."""

    def __init__(
        self, app: ASGIApp, limits: Limits, context: Callable[[], ssl.SSLContext] | None, age_s: float
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                lifespan="off",
                ws="none",
                log_config=None,
                log_level=logging.ERROR,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=max(1, round(limits.idle_connection_s)),
            )
        )
        self.up = Event()
        self.acceptor: Acceptor[Connection] | None = None
        self._limits = limits
        self._context = context
        self._age_s = age_s
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections."""
        await super().startup(sockets=[])
        assert sockets is not None  # noqa: S101 - HttpServer has one
        loop = asyncio.get_running_loop()
        limits = self._limits
        timeouts = ConnectionTimeouts(limits.header_s, limits.body_s, self._age_s)
        self.acceptor = Acceptor(
            sockets[0],
            lambda tracker: Connection(self.config, self.server_state, timeouts, tracker),
            most=limits.connections,
            most_per_peer=limits.connections_per_peer,
            handshake_s=limits.header_s,
            context=self._context,
        )
        self._tasks = [loop.create_task(self.acceptor.run()), loop.create_task(_check_deadlines(self.acceptor))]
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and wait for the open ones."""
        accepting, checking = self._tasks
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        await super().shutdown(sockets)
        checking.cancel()


async def _check_deadlines(acceptor: Acceptor[Connection]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(_CHECK_S)
        now = loop.time()
        for connection in list(acceptor.connections):
            connection.check_deadlines(now)


MAX_HEAD_BYTES: Final = 64 * 1024
"""The request line, headers and trailers of a request."""
_ONE_READ: Final = 256 * 1024
"""The most that asyncio reads at once: it may hold a whole body beside a piece of a header."""
_FLUSH_S: Final = 5.0
"""The timeout of a closing connection."""
_UNREAD_SHARE: Final = 1.25
"""The application answers a slow body itself (408). A body that it does not read may take this many times longer."""


@dataclass(frozen=True, slots=True)
class ConnectionTimeouts:
    """The timeouts of a connection, in seconds."""

    header_s: float
    body_s: float
    age_s: float = 3600.0
    """A connection of this age is closed after the answer in progress, so that certificates are checked again."""


class _Part(Enum):
    """The part of a request that is expected next."""

    HEAD = 1
    BODY = 2
    NONE = 3
    """A request is complete, or the next has not begun: uvicorn's timeout between requests applies."""


class _Parser:
    """A request parser that ignores an offer of another protocol, as a server may (RFC 9110, section 7.8).

    The parser of httptools ends at such an offer and leaves the body unread, although a client that offers HTTP/2, as
    Java's does, sends it. A new parser then reads the same head without the offer, and the body.
    """

    def __init__(self, protocol: Connection) -> None:
        self._protocol = protocol
        self._parser = httptools.HttpRequestParser(protocol)

    def feed_data(self, data: bytes) -> None:
        """Apply the next bytes. Raises `httptools.HttpParserError`."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if self.get_method() == b"CONNECT":
                    raise httptools.HttpParserError("this is no proxy") from None
                head = self._head()
                self._parser = httptools.HttpRequestParser(self._protocol)
                self._parser.feed_data(head)
                data = data[offer.args[0] :]
            else:
                return

    def get_method(self) -> bytes:
        """Return the request's method."""
        method: bytes = self._parser.get_method()
        return method

    def get_http_version(self) -> str:
        """Return the version of HTTP."""
        version: str = self._parser.get_http_version()
        return version

    def should_keep_alive(self) -> bool:
        """Return whether the connection may serve another request."""
        return bool(self._parser.should_keep_alive())

    def should_upgrade(self) -> bool:
        """Return whether the request offers another protocol."""
        return bool(self._parser.should_upgrade())

    def _head(self) -> bytes:
        """Return the head that was read, without `Upgrade`."""
        protocol = self._protocol
        lines = [b"%b %b HTTP/%b" % (self.get_method(), protocol.url, self.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in protocol.headers if header[0] != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))


class Connection(HttpToolsProtocol):
    """A connection with timeouts for headers, body and unread answers, and a limit on headers; created at accept.

    Uvicorn has a timeout between two requests only. Here every other state of a connection has a deadline too; the
    listener checks the deadlines of all connections (`check_deadlines`) a few times a second. A connection reports its
    first request and its end to `tracker`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        timeouts: ConnectionTimeouts,
        tracker: ConnectionTracker[Connection],
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self._timeouts = timeouts
        self._tracker = tracker
        self.parser = _Parser(self)  # type: ignore[assignment]  # httptools has no other type
        self._established = self._too_many = False
        self._accepted_at = self.loop.time()
        self._part = _Part.NONE
        self._head_bytes = 0
        self._unparsed_bytes = 0
        """Bytes since the parser's last callback: it buffers a header or trailer until its end."""
        self._overdue_at = self._stuck_at = self._gone_at = self._retire_at = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self._retire_at = self.loop.time() + self._timeouts.age_s
        self._expect_head()
        self._overdue_at = self._accepted_at + self._timeouts.header_s  # includes the TLS handshake

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        super().connection_lost(exc)
        self._tracker.left(self)

    def data_received(self, data: bytes) -> None:
        """Parse; any byte begins a request, also a byte that the parser skips."""
        if self._part is _Part.NONE:
            self._expect_head()
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES + _ONE_READ:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def pause_writing(self) -> None:
        """Start the timeout of an unread answer."""
        super().pause_writing()
        self._stuck_at = self.loop.time() + self._timeouts.body_s

    def resume_writing(self) -> None:
        """End it: the peer reads again."""
        super().resume_writing()
        self._stuck_at = math.inf

    # The parser's callbacks.
    def on_message_begin(self) -> None:
        """Expect the headers."""
        self._unparsed_bytes = 0
        super().on_message_begin()
        if self._part is not _Part.HEAD:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Count a piece of the request line."""
        self._count_head(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count_head(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Expect the body, and start the application."""
        if self.parser.should_upgrade():
            self._part = _Part.NONE
            return  # an offer of another protocol: the parser reads this request again, without it
        if not self._established:
            self._established = self._tracker.established(self)
            if not self._established:
                self._too_many = True
                raise ValueError("too many connections of this peer")  # as in `_count_head`
        self._part = _Part.BODY
        self._overdue_at = self.loop.time() + self._timeouts.body_s * _UNREAD_SHARE
        if not self.url.startswith(b"/") and (named := httptools.parse_url(self.url).host) is not None:
            self.headers.append((b"host", named))  # what a target names counts as well (RFC 9112, section 3.2.2)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Leave the timeout to uvicorn until the next request."""
        self._unparsed_bytes = 0
        if self.parser.should_upgrade():
            return
        self._part = _Part.NONE
        self._overdue_at = math.inf
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, or whose parsing a limit has ended."""
        if self._too_many:
            self.transport.write(FULL)
            self.transport.close()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            super().send_400_response(msg)

    def check_deadlines(self, now: float) -> None:
        """Close the connection if it is overdue; `now`: the loop's time, s."""
        if self.transport is None:
            return  # a TLS handshake, which has its own timeout
        if self.transport.is_closing():
            self._gone_at = min(self._gone_at, now + _FLUSH_S)
        if now > min(self._stuck_at, self._gone_at):
            self.transport.abort()
        elif now > self._overdue_at:
            if self._part is _Part.HEAD:
                self._refuse(HTTPStatus.REQUEST_TIMEOUT)
            else:
                self.transport.abort()
        elif now > self._retire_at:
            self._retire_at = math.inf
            self.shutdown()

    def _expect_head(self) -> None:
        self._part = _Part.HEAD
        self._head_bytes = 0
        self._overdue_at = self.loop.time() + self._timeouts.header_s

    def _count_head(self, *pieces: bytes) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += sum(map(len, pieces))
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("too many headers")  # the parser then calls `send_400_response`

    def _refuse(self, http: HTTPStatus) -> None:
        """Answer without the application, and close; abort instead if an answer is in progress."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write(bare_answer(http))
            self.transport.close()
