"""Accepting of connections with limits: their number, by peer, with TLS handshakes, which have a timeout.

`asyncio.Server` has neither limit, and keeps its first TLS context.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from otel_llm.shared.web.peers import Peers, peer_of

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound=asyncio.BaseProtocol)

RETRY_AFTER_S: Final = 1
_LINGERING: Final = 64
"""The most refused connections that stay open for a moment, so that a reset does not discard the answer."""
_LINGER_S: Final = 0.5
_OUT_OF_FILES_S: Final = 0.2


def bare_answer(http: HTTPStatus, *headers: str) -> bytes:
    """Return the bytes of an HTTP answer without content that closes the connection."""
    lines = (f"HTTP/1.1 {http.value} {http.phrase}", "content-length: 0", "connection: close", *headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


FULL: Final = bare_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"retry-after: {RETRY_AFTER_S}")


class ConnectionTracker(Protocol[C]):  # type: ignore[misc]
    """The events that a connection reports to its acceptor."""

    def established(self, connection: C) -> bool:
        """Note the headers of the first request; return False if the connection must be closed instead."""

    def left(self, connection: C) -> None:
        """Note the end of a connection."""


class Acceptor(Generic[C]):
    """Accepts connections from a listening socket, in the event loop that runs `run`.

    Args:
        listener: a listening socket; the caller closes it.
        make: returns the protocol of a connection, which reports its first request and its end to the tracker.
        most: of connections; more are refused: with 503 in plain text, by a close with TLS.
        most_per_peer: established connections of one peer; None: no limit.
        handshake_s: the timeout of a TLS handshake.
        context: returns the TLS context for a new connection; None: plain text.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[ConnectionTracker[C]], C],
        *,
        most: int,
        most_per_peer: int | None = None,
        handshake_s: float,
        context: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._listener = listener
        self._make = make
        self._handshake_s = handshake_s
        self._context = context
        self._peers: Peers[C] = Peers(most, most_per_peer)
        self._beginning: set[asyncio.Task[None]] = set()
        self._lingering: set[socket.socket] = set()
        self.connections: dict[C, socket.socket] = {}
        """The open connections, with TLS handshakes."""
        self.turned_away = 0

    def established(self, connection: C) -> bool:
        """Note the first request of a connection; return False if its peer has too many."""
        return self._peers.established(connection)

    def left(self, connection: C) -> None:
        """Forget a connection."""
        self._peers.left(connection)
        self.connections.pop(connection, None)

    async def run(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listener)
                except OSError:  # no descriptor is free, or the connection is closed again
                    await asyncio.sleep(_OUT_OF_FILES_S)
                    continue
                self._take(connection, peer_of(address[0]), loop)
                await asyncio.sleep(0)  # yields to open connections during a flood of new ones
        finally:
            for task in self._beginning:
                task.cancel()
            for connection in list(self._lingering):
                self._let_go(connection)

    def _take(self, connection: socket.socket, peer: str, loop: asyncio.AbstractEventLoop) -> None:
        made = self._make(self)
        admitted, closing = self._peers.arrived(made, peer)
        for one in closing:
            with suppress(OSError):  # its protocol reads the end of the input, and closes it
                self.connections[one].shutdown(socket.SHUT_RDWR)
        if not admitted:
            self._turn_away(connection, loop)
            return
        self.connections[made] = connection
        task = loop.create_task(self._begin(connection, made, loop))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _begin(self, connection: socket.socket, made: C, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._context is None:
                await loop.connect_accepted_socket(lambda: made, connection)
            else:
                await loop.connect_accepted_socket(
                    lambda: made, connection, ssl=self._context(), ssl_handshake_timeout=self._handshake_s
                )
        except (OSError, ssl.SSLError, TimeoutError):  # the client: no TLS, no certificate, or closed
            self.left(made)
            connection.close()

    def _turn_away(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.turned_away += 1
        if self._context is not None or len(self._lingering) >= _LINGERING:
            connection.close()
            return
        try:
            connection.send(FULL)
        except OSError:
            connection.close()
            return
        self._lingering.add(connection)
        loop.call_later(_LINGER_S, self._let_go, connection)

    def _let_go(self, connection: socket.socket) -> None:
        self._lingering.discard(connection)
        connection.close()
