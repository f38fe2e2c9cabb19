"""A connection to a port of the relay: closed where its first request does not come in time, or there are too many."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from otel_llm.relay.answers import error_response

if TYPE_CHECKING:
    from otel_llm.relay.settings import Limits

log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """One connection to `server`; who serves its first request calls `begun`."""

    __slots__ = ("_late", "_limits", "_server")

    def __init__(self, server: web.Server, limits: Limits, **more: Any) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_connection_s,
            access_log=None,  # type: ignore[arg-type]  # none is written
            lingering_time=1.0,
            auto_decompress=False,  # a body is passed on as it comes, and signed as it comes; nobody may send a bomb
            **more,
        )
        self._server = server
        self._limits = limits
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self._server.connections) > self._limits.connections:
            transport.close()
            return
        self._late = asyncio.get_running_loop().call_later(self._limits.header_s, transport.close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget a connection."""
        self.begun()
        super().connection_lost(exc)

    def begun(self) -> None:
        """Note that the headers of a request have come."""
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
        """Answer what is no request, or what a bug of ours left unanswered; nothing of ours is in it."""
        if isinstance(exc, LineTooLong):
            status, message = 431, "the headers are too large"
        elif status < 500:
            message = "this is no HTTP request"
        else:
            log.error("otel-llm: a request could not be served", exc_info=exc)
            message = "internal error"
        if request.writer.output_size > 0:  # the answer has begun: all that can be said is that it is cut
            raise ConnectionError(message)
        response = error_response(status, message, "invalid_request_error" if status < 500 else "internal_error")
        response.force_close()
        return self.answer(response)

    def answer(self, error: web.Response) -> web.Response:
        """Return the answer to what could not be served."""
        return error
