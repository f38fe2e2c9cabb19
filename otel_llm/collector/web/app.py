"""The ASGI application of the web port, which is read-only."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from otel_llm.collector.receive.errors import BadRequestError, answer, challenge
from otel_llm.live.page import EVENTS_PATH, EVENTS_TYPE, PAGE_HEADERS, static_files
from otel_llm.live.selection import SelectionError
from otel_llm.live.web_routes import PLAIN_TEXT, Reply, WebRoutes, pieces
from otel_llm.shared.errors import RefusalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from otel_llm.live.feed import Feed
    from otel_llm.live.selection import Selection
    from otel_llm.live.viewers import Viewer
    from otel_llm.shared.web.guard import Guard

_log: Final = logging.getLogger(__name__)


def web_app(
    *,
    metrics: Callable[[], bytes],
    streams: Callable[[Selection], Any],
    requests: Callable[[str | None], Any],
    feed: Feed,
    healthy: Callable[[], str | None],
    ready: Callable[[], str | None],
    guard: Guard | None = None,
) -> Starlette:
    """Return the ASGI application of the web port; the arguments are those of `WebRoutes`.

    Each function is called in a thread, at each request. A TimeoutError is answered 503.
    """
    routes = WebRoutes(metrics, streams, {"/v1/requests": requests}, feed, healthy, ready, guard)

    def endpoint(request: Request) -> Response:
        path = request.scope["path"]
        try:
            return _response(routes.reply(path, routes.check(path, request.headers), request.query_params))
        except SelectionError as error:
            return _refused(BadRequestError(str(error)))
        except RefusalError as refusal:
            return _refused(refusal)
        except TimeoutError:
            return _plain("busy, try again", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:  # noqa: BLE001 - logged, and answered 500
            _log.exception("%s could not be answered: this is a bug", path)
            return _plain("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)

    async def events(request: Request) -> Response:
        try:
            tenant = routes.check(EVENTS_PATH, request.headers)
            if request.method == "HEAD":
                return _response(Reply(b"", EVENTS_TYPE))
            return _Events(feed, routes.join(tenant, request.query_params))
        except SelectionError as error:
            return _refused(BadRequestError(str(error)))
        except RefusalError as refusal:
            return _refused(refusal)

    def refuse_route(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
        shown = [path for path in routes.paths if path == "/" or path not in static_files()]
        made = _plain(f"{error.detail}: there are {', '.join((*shown, EVENTS_PATH))}", HTTPStatus(error.status_code))
        made.headers.update(error.headers or {})
        return made

    app = Starlette(
        routes=[
            *(Route(path, endpoint, methods=["GET"]) for path in routes.paths),
            Route(EVENTS_PATH, events, methods=["GET"]),
        ],
        exception_handlers={HTTPException: refuse_route},
    )
    app.router.redirect_slashes = False
    return app


def _refused(refusal: RefusalError) -> Response:
    made = _plain(str(refusal), HTTPStatus(answer(refusal).http))
    made.headers.update(challenge(refusal))
    if refusal.retry_after_s:
        made.headers["Retry-After"] = str(refusal.retry_after_s)
    return made


def _plain(text: str, http: HTTPStatus) -> Response:
    return _response(Reply(f"{text}\n".encode(), PLAIN_TEXT, http))


def _response(reply: Reply) -> Response:
    body = reply.body if isinstance(reply.body, bytes) else reply.body.result()
    return _Pieces(body, reply.status, headers=dict(reply.headers), media_type=reply.media_type)


async def _in_pieces(send: Callable[[Any], Awaitable[None]], body: bytes, *, more: bool = False) -> None:
    """Send a body, or with `more` a part of one, in pieces, as the client reads it."""
    left = len(body)
    for piece in pieces(body):
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": more or left > 0})


class _Pieces(Response):
    """An answer that is sent in pieces, as its client reads it.

    A connection buffers a copy of an answer that is sent whole: each unread scrape would hold one.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the answer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _in_pieces(send, bytes(self.body))


class _Events(Response):
    """The events of one viewer, until it leaves, or the feed drops it.

    A send that the client does not read waits, and the viewer's mailbox overflows: the feed forgets the viewer, and the
    connection's own timeout of an unread answer ends the send.
    """

    def __init__(self, feed: Feed, viewer: Viewer) -> None:
        super().__init__(headers=dict(PAGE_HEADERS), media_type=EVENTS_TYPE)
        del self.headers["content-length"]
        self._feed = feed
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the events as they are offered."""
        leaving = asyncio.create_task(self._close_on_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for message in self._viewer.messages():
                await _in_pieces(send, message, more=True)
            await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            self._feed.leave(self._viewer)

    async def _close_on_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._viewer.close()
