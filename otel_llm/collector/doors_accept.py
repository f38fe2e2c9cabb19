"""Let connections into an HTTP door: so many at once, TLS handshakes counted in and bounded in time.

`asyncio.Server` bounds neither, and keeps the TLS context it began with.
"""

from __future__ import annotations

import asyncio
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from otel_llm.collector.doors_connection import Connection, bare_answer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

RETRY_AFTER_S: Final = 1
_LINGERING: Final = 64
"""Connections turned away that are kept open for a moment, so that the answer is not lost to a reset."""
_LINGER_S: Final = 0.5
_OUT_OF_FILES_S: Final = 0.2
_FULL: Final = bare_answer(HTTPStatus.SERVICE_UNAVAILABLE, f"retry-after: {RETRY_AFTER_S}")


class Acceptor:
    """Take connections from a listening socket, within the event loop that runs `run`.

    Args:
        listener: a listening socket; who made it closes it.
        make: makes the protocol of a connection; what it is given is to be called with it when the connection is gone.
        most: more are turned away: with 503 in plain text, by closing where TLS would have to begin first.
        handshake_s: a TLS handshake takes at most this.
        context: returns the TLS context for a connection that begins now; None: plain text.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[Callable[[Connection], None]], Connection],
        *,
        most: int,
        handshake_s: float,
        context: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._listener = listener
        self._make = make
        self._most = most
        self._handshake_s = handshake_s
        self._context = context
        self._beginning: set[asyncio.Task[None]] = set()
        self._lingering: set[socket.socket] = set()
        self.connections: set[Connection] = set()
        """Those that are there, TLS handshakes included."""
        self.turned_away = 0

    async def run(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        try:
            while True:
                try:
                    connection, _ = await loop.sock_accept(self._listener)
                except OSError:  # no file left for it; or it is gone again
                    await asyncio.sleep(_OUT_OF_FILES_S)
                    continue
                if len(self.connections) >= self._most:
                    self._turn_away(connection, loop)
                else:
                    made = self._make(self.connections.discard)
                    self.connections.add(made)
                    task = loop.create_task(self._begin(connection, made, loop))
                    self._beginning.add(task)
                    task.add_done_callback(self._beginning.discard)
                await asyncio.sleep(0)  # a flood of connections leaves turns to those that are there
        finally:
            for task in self._beginning:
                task.cancel()
            for connection in list(self._lingering):
                self._let_go(connection)

    async def _begin(self, connection: socket.socket, made: Connection, loop: asyncio.AbstractEventLoop) -> None:
        try:
            if self._context is None:
                await loop.connect_accepted_socket(lambda: made, connection)
            else:
                await loop.connect_accepted_socket(
                    lambda: made, connection, ssl=self._context(), ssl_handshake_timeout=self._handshake_s
                )
        except (OSError, ssl.SSLError, TimeoutError):  # theirs: no TLS, no certificate, or gone
            self.connections.discard(made)
            connection.close()

    def _turn_away(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.turned_away += 1
        if self._context is not None or len(self._lingering) >= _LINGERING:
            connection.close()
            return
        try:
            connection.send(_FULL)
        except OSError:
            connection.close()
            return
        self._lingering.add(connection)
        loop.call_later(_LINGER_S, self._let_go, connection)

    def _let_go(self, connection: socket.socket) -> None:
        self._lingering.discard(connection)
        connection.close()
