"""An HTTP connection of uvicorn with timeouts for headers, body and unread answers, and a limit on headers.

Uvicorn has a timeout between two requests only. Here every other state of a connection has a deadline too; the
listener checks the deadlines of all connections (`check_deadlines`) a few times a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from otel_llm.shared.web.acceptor import FULL, bare_answer

if TYPE_CHECKING:
    import asyncio

    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from otel_llm.shared.web.acceptor import ConnectionTracker

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
    """A connection with timeouts, created at accept; it reports its first request and its end to `tracker`."""

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
        """Close the connection where it is overdue; `now`: the loop's time, s."""
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
        """Answer without the application, and close; abort instead where an answer is in progress."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write(bare_answer(http))
            self.transport.close()
