"""The ASGI application of the web port, which is read-only."""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from otel_llm.collector.receive.errors import BadRequestError, answer, challenge
from otel_llm.live.page import EVENTS_PATH, EVENTS_TYPE, FILE_HEADERS, PAGE_HEADERS, PIECE_BYTES, static_files
from otel_llm.live.selection import SelectionError, selection_of
from otel_llm.shared.errors import ForbiddenError, RefusalError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from otel_llm.live.feed import Feed
    from otel_llm.live.selection import Selection
    from otel_llm.live.viewers import Viewer
    from otel_llm.shared.web.guard import Guard

STREAMS_PATH: Final = "/v1/streams"
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Probes need no token and may use any host name here: the answers hold no telemetry."""
_log = logging.getLogger(__name__)


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
    """Return the ASGI application of the web port.

    Args:
        metrics: returns Prometheus text.
        streams, requests: return values that JSON can hold; a NaN in them is a bug, answered 500. `streams` gets the
            selection of the request's parameters, `requests` the tenant that the viewer is confined to, or None.
        feed: gives the events of the live page.
        healthy, ready: return None, or the reason why not.
        guard: checks requests to all paths but `OPEN_PATHS`; the files of the page need its host name, but no token.

    Each function is called in a thread, at each request. A TimeoutError is answered 503.
    """
    files = static_files()

    def state(reason: str | None) -> Response:
        http = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(f"{reason or 'ok'}\n", "text/plain; charset=utf-8", http)

    def as_json(value: Any) -> Response:
        return _response(json.dumps(value, allow_nan=False), "application/json")

    def scrape(tenant: str | None) -> Response:
        if tenant is not None:
            raise ForbiddenError("metrics are of all tenants: use the token of an operator (operators: tokens_file)")
        return _response(metrics(), PROMETHEUS_TEXT)

    answers: dict[str, Callable[[str | None], Response]] = {
        "/metrics": scrape,
        "/healthz": lambda _: state(healthy()),
        "/readyz": lambda _: state(ready()),
        "/v1/requests": lambda tenant: as_json(requests(tenant)),
    }

    def check(request: Request) -> str | None:
        """Return the tenant that the viewer is confined to; None: all."""
        if guard is None or request.scope["path"] in OPEN_PATHS:
            return None
        if request.scope["path"] in files:
            guard.check_host(request.headers)
            return None
        return guard.check(request.headers)

    def endpoint(request: Request) -> Response:
        try:
            tenant, path = check(request), request.scope["path"]
            if path == STREAMS_PATH:
                return as_json(streams(selection_of(request.query_params).within(tenant)))
            return answers[path](tenant) if path in answers else _file(path)
        except SelectionError as error:
            return _refused(BadRequestError(str(error)))
        except RefusalError as refusal:
            return _refused(refusal)
        except TimeoutError:
            return _plain("busy, try again", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:  # noqa: BLE001 - logged, and answered 500
            _log.exception("%s could not be answered: this is a bug", request.scope["path"])
            return _plain("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)

    async def events(request: Request) -> Response:
        try:
            tenant = check(request)
            if request.method == "HEAD":
                return _response("", EVENTS_TYPE)
            return _Events(feed, feed.join(selection_of(request.query_params).within(tenant)))
        except SelectionError as error:
            return _refused(BadRequestError(str(error)))
        except RefusalError as refusal:
            return _refused(refusal)

    def refuse_route(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
        paths = ", ".join(("/", *answers, STREAMS_PATH, EVENTS_PATH))
        made = _plain(f"{error.detail}: there are {paths}", HTTPStatus(error.status_code))
        made.headers.update(error.headers or {})
        return made

    plain = [Route(path, endpoint, methods=["GET"]) for path in (*files, *answers, STREAMS_PATH)]
    app = Starlette(
        routes=[*plain, Route(EVENTS_PATH, events, methods=["GET"])],
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


def _file(path: str) -> Response:
    file = static_files()[path]
    return _Pieces(file.content, headers=dict(FILE_HEADERS), media_type=file.media_type)


def _plain(text: str, http: HTTPStatus) -> Response:
    return _response(f"{text}\n", "text/plain; charset=utf-8", http)


def _response(content: str | bytes, media_type: str, http: HTTPStatus = HTTPStatus.OK) -> Response:
    return _Pieces(content, http, headers=dict(PAGE_HEADERS), media_type=media_type)


async def _in_pieces(send: Callable[[Any], Awaitable[None]], body: bytes, *, more: bool = False) -> None:
    """Send a body, or with `more` a part of one, in pieces, as the client reads it."""
    last = max(0, len(body) - 1) // PIECE_BYTES * PIECE_BYTES
    for begin in range(0, last + 1, PIECE_BYTES):
        piece = body[begin : begin + PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": more or begin < last})


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
