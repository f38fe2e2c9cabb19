"""One HTTP connection: uvicorn's, and what it may not do: dawdle over headers or a body, never read, send huge headers.

Uvicorn limits the time between two requests only. Here every other state of a connection has a limit too, kept as the
instant at which it is overdue; who looks after all connections asks (`tend`) a few times a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from otel_llm.shared.web.acceptor import FULL, bare_answer

if TYPE_CHECKING:
    import asyncio

    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from otel_llm.shared.web.acceptor import Door

MAX_HEAD_BYTES: Final = 64 * 1024
"""The request line, headers and trailers of a request."""
_ONE_READ: Final = 256 * 1024
"""What asyncio reads at once, and may hold a whole body beside a piece of a header."""
_FLUSH_S: Final = 5.0
"""How long a connection that is being closed may take over it."""
_UNREAD_SHARE: Final = 1.25
"""The application answers a slow body itself (408); the rest of one that it does not wait for may take this longer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a connection may take, in seconds."""

    header_s: float
    body_s: float
    age_s: float = 3600.0
    """Closed after the answer in progress at this age, so that certificates are looked at again."""


class _Part(Enum):
    """What of a request is expected next."""

    HEAD = 1
    BODY = 2
    NONE = 3
    """The whole of a request is there, or the next has not begun: uvicorn's own time limit between requests holds."""


class Connection(HttpToolsProtocol):
    """A connection with time limits, made when it is accepted; `door` is told of its first request and its end."""

    def __init__(self, config: Config, server_state: ServerState, patience: Patience, door: Door[Connection]) -> None:
        super().__init__(config=config, server_state=server_state, app_state={})
        self._patience = patience
        self._door = door
        self._established = self._too_many = False
        self._accepted_at = self.loop.time()
        self._part = _Part.NONE
        self._head_bytes = 0
        self._unparsed_bytes = 0
        """Since the parser last told anything: it keeps what it cannot name yet, a header or trailer without an end."""
        self._overdue_at = self._stuck_at = self._gone_at = self._retire_at = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self._retire_at = self.loop.time() + self._patience.age_s
        self._expect_head()
        self._overdue_at = self._accepted_at + self._patience.header_s  # a TLS handshake has its part of it

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so to whoever counts."""
        super().connection_lost(exc)
        self._door.left(self)

    def data_received(self, data: bytes) -> None:
        """Parse; any byte begins a request, also one that the parser skips."""
        if self._part is _Part.NONE:
            self._expect_head()
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > MAX_HEAD_BYTES + _ONE_READ:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def pause_writing(self) -> None:
        """Note that the peer does not read what it asked for."""
        super().pause_writing()
        self._stuck_at = self.loop.time() + self._patience.body_s

    def resume_writing(self) -> None:
        """Note that it does."""
        super().resume_writing()
        self._stuck_at = math.inf

    # The parser's callbacks.
    def on_message_begin(self) -> None:
        """Begin a head."""
        self._unparsed_bytes = 0
        super().on_message_begin()
        if self._part is not _Part.HEAD:
            self._expect_head()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the request line."""
        self._count_head(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count_head(name, value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Expect the body, and start the application."""
        if not self._established:
            self._established = self._door.established(self)
            if not self._established:
                self._too_many = True
                raise ValueError("too many connections of this peer")  # as in `_count_head`
        self._part = _Part.BODY
        self._overdue_at = self.loop.time() + self._patience.body_s * _UNREAD_SHARE
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect nothing in particular."""
        self._unparsed_bytes = 0
        self._part = _Part.NONE
        self._overdue_at = math.inf
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, or what we stopped parsing."""
        if self._too_many:
            self.transport.write(FULL)
            self.transport.close()
        elif self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            super().send_400_response(msg)

    def tend(self, now: float) -> None:
        """End the connection where it is overdue; `now` is the loop's time."""
        if self.transport is None:
            return  # a TLS handshake, which has its own limit
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
        self._overdue_at = self.loop.time() + self._patience.header_s

    def _count_head(self, *pieces: bytes) -> None:
        self._unparsed_bytes = 0
        self._head_bytes += sum(map(len, pieces))
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("too many headers")  # the parser turns it into its own error, see send_400_response

    def _refuse(self, http: HTTPStatus) -> None:
        """Answer without the application, and close; an answer in progress is cut instead of followed by another."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write(bare_answer(http))
            self.transport.close()
