"""Run an ASGI application in a thread of its own, and the application of the web port.

The web port answers people and scrapers; nothing can be changed through it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from http import HTTPStatus
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from otel_llm.collector.address import Address, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_HEADERS: Final = {
    # The page is HTML and its own style: no script, no frame, nothing from elsewhere.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_log = logging.getLogger(__name__)


class HttpServer:
    """An HTTP server in a background thread.

    Args:
        app: the ASGI application.
        address: where to listen; port 0 lets the system pick one.
        option: the command's flag that moves this door, for the message when the port is in use.
    """

    def __init__(self, app: ASGIApp, address: Address, *, option: str) -> None:
        self._address = address
        self._option = option
        self._socket: socket.socket | None = None
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="asyncio",
                lifespan="off",
                ws="none",
                log_config=None,
                log_level=logging.ERROR,
                access_log=False,
                server_header=False,
            )
        )
        self._thread = Thread(target=self._run, name=f"http{option}", daemon=True)

    @property
    def address(self) -> Address:
        """Return where it listens, with the port that the system picked."""
        if self._socket is None:
            return self._address
        return Address(self._address.host, self._socket.getsockname()[1])

    @property
    def port(self) -> int:
        """Return the port; 0 before `bind` where the system picks it."""
        return self.address.port

    def bind(self) -> None:
        """Take the port; connections wait until `start`.

        Raises:
            AddressError: it is in use, or the address is not this machine's.
        """
        if self._socket is None:
            self._socket = listen(self._address, self._option)

    def start(self) -> None:
        """Bind, if that was not done, and return when requests are served."""
        self.bind()
        self._thread.start()
        self._server.up.wait()
        if not self._server.started:
            raise RuntimeError(f"the HTTP server at {self.address} did not start")

    def stop(self, grace_s: float = 5.0) -> None:
        """Take no more requests, and return when those begun are answered, at the latest after `grace_s` seconds."""
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        assert self._socket is not None  # noqa: S101 - start binds
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            self._server.up.set()


class _Server(uvicorn.Server):
    """Uvicorn's server, and a signal that it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


def web_app(
    *,
    metrics: Callable[[], bytes],
    streams: Callable[[], Any],
    requests: Callable[[], Any],
    page: Callable[[], str],
    healthy: Callable[[], str | None],
    ready: Callable[[], str | None],
) -> Starlette:
    """Return the ASGI application of the web port.

    Every callable is called in a thread, at each request. `metrics` gives Prometheus text, `streams` and `requests`
    what JSON can hold (a NaN in it is an error of ours, answered 500), `page` HTML; `healthy` and `ready` give None,
    or the reason why not. One that raises TimeoutError is answered 503.
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
            return answers[request.url.path]()
        except TimeoutError:
            return _plain("busy, try again", HTTPStatus.SERVICE_UNAVAILABLE)
        except Exception:  # noqa: BLE001 - said in the log and to the client
            _log.exception("%s could not be answered: this is a bug", request.url.path)
            return _plain("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)

    def elsewhere(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
        made = _plain(f"{error.detail}: there are {', '.join(answers)}", HTTPStatus(error.status_code))
        made.headers.update(error.headers or {})
        return made

    app = Starlette(
        routes=[Route(path, endpoint, methods=["GET"]) for path in answers],
        exception_handlers={HTTPException: elsewhere},
    )
    app.router.redirect_slashes = False
    return app


def _plain(text: str, http: HTTPStatus) -> Response:
    return _response(f"{text}\n", "text/plain; charset=utf-8", http)


def _response(content: str | bytes, media_type: str, http: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(content, http, headers=dict(_HEADERS), media_type=media_type)
