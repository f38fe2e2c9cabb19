"""A connection to a port of the relay: closed when its first request is late, or its client stops reading."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import termios
from contextlib import suppress
from struct import unpack
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from otel_llm.relay.answers import error_response
from otel_llm.relay.headers import Newest
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.web.acceptor import Acceptor

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Sequence

    from otel_llm.relay.settings import Limits
    from otel_llm.shared.web.acceptor import ConnectionTracker

EVALUATION_EVERY_S: Final = 1.0
"""The interval of checks whether a client reads that does not keep up."""
log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """One connection to `server`, made when `door` accepts it; a handler calls `begun` first."""

    __slots__ = ("_door", "_established", "_evaluation", "_late", "_newest", "_stall_s", "_unread", "_unread_s")

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
        self._stall_s = limits.client_stall_s
        self._evaluation: asyncio.TimerHandle | None = None
        self._unread = 0
        self._unread_s = 0.0
        self._newest = Newest()
        # From the instant of acceptance: the limit covers the TLS handshake.
        self._late: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(limits.header_s, self._give_up)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget a connection."""
        self._in_time()
        self._stop_evaluating()
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

    def data_received(self, data: bytes) -> None:
        """Parse what was received, and keep the newest bytes for trailers."""
        self._newest.add(data)
        super().data_received(data)

    def trailers(self) -> Sequence[bytes]:
        """Return the trailers of the chunked body that has just ended; none if more requests are here already."""
        return () if self._messages else self._newest.trailers()

    # A client that stops reading.

    @property
    def stalled_s(self) -> float:
        """Return for how long the client has read nothing of what waits for it (s), 0 if nothing waits."""
        return 0.0 if self._evaluation is None else monotonic_s() - self._unread_s

    def cut(self) -> None:
        """Close the connection at once: the client reads nothing."""
        self._stop_evaluating()
        if self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Note that the kernel takes no more for the client."""
        super().pause_writing()
        self._unread, self._unread_s = self._waiting(), monotonic_s()
        self._evaluate_later()

    def resume_writing(self) -> None:
        """Note that the kernel has taken all of it."""
        super().resume_writing()
        self._stop_evaluating()

    def _evaluate_later(self) -> None:
        self._evaluation = asyncio.get_running_loop().call_later(
            min(EVALUATION_EVERY_S, self._stall_s / 4), self._evaluate
        )

    def _evaluate(self) -> None:
        unread = self._waiting()
        if unread < self._unread:
            self._unread_s = monotonic_s()
        self._unread = unread
        if self.stalled_s >= self._stall_s:
            self.cut()
        else:
            self._evaluate_later()

    def _stop_evaluating(self) -> None:
        if self._evaluation is not None:
            self._evaluation.cancel()
            self._evaluation = None

    def _waiting(self) -> int:
        """Return how many bytes the client has not taken: those in the process, and those in the kernel."""
        transport = self.transport
        if transport is None:
            return 0
        count = transport.get_write_buffer_size()
        with suppress(OSError):  # the kernel does not tell
            number = transport.get_extra_info("socket").fileno()
            count += unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, bytes(4)))[0]
        return count

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request, or one that a bug of ours left unanswered; the answer reveals nothing of ours."""
        transport = request.transport
        if isinstance(exc, ConnectionError) and (transport is None or transport.is_closing()):
            raise exc  # the client has left: there is nothing to answer, and nothing to report
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
