"""The ASGI application of the web port, which is read-only."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from otel_llm.collector.receive.errors import answer, challenge
from otel_llm.live.page import PAGE_HEADERS, PIECE_BYTES
from otel_llm.shared.errors import RefusalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from otel_llm.shared.web.guard import Guard

PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Probes need no token and may use any host name here: the answers hold no telemetry."""
_log = logging.getLogger(__name__)


def web_app(
    *,
    metrics: Callable[[], bytes],
    streams: Callable[[], Any],
    requests: Callable[[], Any],
    page: Callable[[], str],
    healthy: Callable[[], str | None],
    ready: Callable[[], str | None],
    guard: Guard | None = None,
) -> Starlette:
    """Return the ASGI application of the web port.

    Args:
        metrics: returns Prometheus text.
        streams, requests: return values that JSON can hold; a NaN in them is a bug, answered 500.
        page: returns HTML.
        healthy, ready: return None, or the reason why not.
        guard: checks requests to all paths but `OPEN_PATHS`.

    Each is called in a thread, at each request. A TimeoutError is answered 503.
    """

    def state(reason: str | None) -> Response:
        http = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
        return _response(f"{reason or 'ok'}\n", "text/plain; charset=utf-8", http)

    def as_json(value: Any) -> Response:
        return _response(json.dumps(value, allow_nan=False), "application/json")

    answers: dict[str, Callable[[], Response]] = {
        "/": lambda: _response(page(), "text/html; charset=utf-8"),
        "/metrics": lambda: _response(metrics(), PROMETHEUS_TEXT),
        "/healthz": lambda: state(healthy()),
        "/readyz": lambda: state(ready()),
        "/v1/streams": lambda: as_json(streams()),
        "/v1/requests": lambda: as_json(requests()),
    }

    def endpoint(request: Request) -> Response:
        try:
            if guard is not None and request.url.path not in OPEN_PATHS:
                guard.check(request.headers)
            return answers[request.url.path]()
        except RefusalError as refusal:
            made = _plain(str(refusal), HTTPStatus(answer(refusal).http))
            made.headers.update(challenge(refusal))
            return made
        except TimeoutError:
            return _plain("busy, try again", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:  # noqa: BLE001 - logged, and answered 500
            _log.exception("%s could not be answered: this is a bug", request.url.path)
            return _plain("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)

    def refuse_route(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
        made = _plain(f"{error.detail}: there are {', '.join(answers)}", HTTPStatus(error.status_code))
        made.headers.update(error.headers or {})
        return made

    app = Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path in answers],
        exception_handlers={HTTPException: refuse_route},
    )
    app.router.redirect_slashes = False
    return app


def _plain(text: str, http: HTTPStatus) -> Response:
    return _response(f"{text}\n", "text/plain; charset=utf-8", http)


def _response(content: str | bytes, media_type: str, http: HTTPStatus = HTTPStatus.OK) -> Response:
    return _Pieces(content, http, headers=dict(PAGE_HEADERS), media_type=media_type)


class _Pieces(Response):
    """An answer that is sent in pieces, as its client reads it.

    A connection buffers a copy of an answer that is sent whole: each unread scrape would hold one.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the answer."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = max(0, len(self.body) - 1) // PIECE_BYTES * PIECE_BYTES
        for begin in range(0, last + 1, PIECE_BYTES):
            piece = self.body[begin : begin + PIECE_BYTES]
            await send({"type": "http.response.body", "body": piece, "more_body": begin < last})
