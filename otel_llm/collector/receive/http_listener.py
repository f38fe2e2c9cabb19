"""An HTTP server for an ASGI application, in a thread of its own, with limits on its connections."""

from __future__ import annotations

import asyncio
import logging
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import uvicorn

from otel_llm.collector.receive.http_connection import Connection, ConnectionTimeouts
from otel_llm.collector.settings import Limits
from otel_llm.shared.web.acceptor import Acceptor
from otel_llm.shared.web.address import Address, listen

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from starlette.types import ASGIApp

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
        age_s: a connection of this age is closed after the answer in progress: certificates are looked at again.
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
        """Return the port; 0 before `bind` where the system picks it."""
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
        """Serve, and return when requests are answered; bind first where that was not done."""
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
