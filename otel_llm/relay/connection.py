"""A connection to a port of the relay: closed when its first request is late."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from otel_llm.relay.answers import error_response
from otel_llm.shared.web.acceptor import Acceptor

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from otel_llm.relay.settings import Limits
    from otel_llm.shared.web.acceptor import ConnectionTracker

log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """One connection to `server`, made when `door` accepts it; a handler calls `begun` first."""

    __slots__ = ("_door", "_established", "_late")

    def __init__(self, server: web.Server, limits: Limits, door: ConnectionTracker[Connection], **more: Any) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_connection_s,
            access_log=None,  # type: ignore[arg-type]  # none is written
            lingering_time=1.0,
            auto_decompress=False,  # a body is passed on and signed as received; a compressed bomb is never expanded
            **more,
        )
        self._door = door
        self._established = False
        # From the instant of acceptance: the limit covers the TLS handshake.
        self._late: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(limits.header_s, self._give_up)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget a connection."""
        self._in_time()
        self._door.left(self)
        super().connection_lost(exc)

    def begun(self) -> bool:
        """Note that a request's headers were received; return whether this peer may have the connection."""
        self._in_time()
        if not self._established:
            self._established = self._door.established(self)
        return self._established

    def _give_up(self) -> None:
        self._late = None
        if self.transport is not None:  # else it is in a TLS handshake, which has the same limit
            self.transport.close()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request, or one that a bug of ours left unanswered; the answer reveals nothing of ours."""
        if isinstance(exc, LineTooLong):
            status, message = 431, "the headers are too large"
        elif status < 500:
            message = "this is no HTTP request"
        else:
            log.error("otel-llm: a request could not be served", exc_info=exc)
            message = "internal error"
        if request.writer.output_size > 0:  # the answer has begun: it can only be cut
            raise ConnectionError(message)
        response = error_response(status, message, "invalid_request_error" if status < 500 else "internal_error")
        response.force_close()
        return self.answer(response)

    def answer(self, error: web.Response) -> web.Response:
        """Return the answer to a request that could not be served."""
        return error


def acceptor_of(
    listener: socket.socket,
    limits: Limits,
    make: Callable[[ConnectionTracker[Connection]], Connection],
    context: Callable[[], ssl.SSLContext] | None,
) -> Acceptor[Connection]:
    """Return the acceptor of connections for a port of the relay; `context`: of TLS, None without."""
    return Acceptor(
        listener,
        make,
        most=limits.connections,
        most_per_peer=limits.connections_per_peer,
        handshake_s=limits.header_s,
        context=context,
    )


async def stop_accepting(accepting: asyncio.Task[None] | None) -> None:
    """End the task of an acceptor, if there is one."""
    if accepting is not None:
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)


def too_many_connections() -> web.Response:
    """Return the answer on a connection beyond what its peer may have."""
    response = error_response(503, "too many connections", "unavailable", retry=True)
    response.force_close()
    return response
