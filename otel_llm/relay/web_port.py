"""The web port of a relay: the live page, metrics, streams and backends as JSON, drain and undrain."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import web

from otel_llm.actions.settings import RELAY_PATH
from otel_llm.live.exposition import SharedText
from otel_llm.live.feed import MOST_VIEWERS, Feed
from otel_llm.live.page import EVENTS_PATH, EVENTS_TYPE, FILE_HEADERS, PAGE_HEADERS, PIECE_BYTES, static_files
from otel_llm.live.selection import SelectionError, selection_of
from otel_llm.relay.callers import caller_of
from otel_llm.relay.connection import Connection, acceptor_of, stop_accepting, too_many_connections
from otel_llm.shared.errors import ForbiddenError, RefusalError, UnauthenticatedError, UnavailableError

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from prometheus_client.core import Metric

    from otel_llm.formats.records import StreamKey
    from otel_llm.live.feed import Collected
    from otel_llm.live.selection import Filter, Selection
    from otel_llm.relay.backends.backends import Backends
    from otel_llm.relay.settings import Limits
    from otel_llm.shared.web.guard import Guard
    from otel_llm.shared.web.tokens import KnownTokens

OPEN_PATHS = frozenset({"/healthz", "/readyz", RELAY_PATH})
STOP_S: Final = 1.0
"""How long an answer may take that is under way when the port is closed."""
COLLECT_S: Final = 5.0
"""How long the live page waits for the loop."""
UNREAD_S: Final = 30.0
"""A viewer that reads nothing for this time is cut."""
LINKS: Final = {"metrics": "/metrics", "streams (JSON)": "/v1/streams", "backends (JSON)": "/v1/backends"}


class Shown(Protocol):
    """The contents of the port; called in the loop."""

    def streams(self, selection: Selection) -> dict[str, Any]:
        """Return the selected streams in flight, the last verdicts and decisions."""

    def live(self, filters: Collection[Filter], followed: Collection[StreamKey]) -> Collected:
        """Return the state for the live page."""

    def families(self) -> Iterable[Metric]:
        """Return all metrics; they may be iterated in another thread."""

    def now_ns(self) -> int:
        """Return the current time, which never goes backwards."""

    def unready(self) -> str | None:
        """Return why no request should be sent here now; None where they may be."""

    def drained(self, name: str) -> None:
        """Handle a drained backend."""


class WebPort:
    """The handlers of the web port.

    A changing request needs a token of `operators`; without any, the port must be on a loopback address (`alone`).
    `actions` answers signed messages, which authenticate themselves; without it their path does not exist.
    """

    def __init__(
        self,
        shown: Shown,
        backends: Backends,
        guard: Guard,
        operators: KnownTokens | None,
        *,
        alone: bool,
        actions: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None,
        most_viewers: int = MOST_VIEWERS,
    ) -> None:
        self._shown = shown
        self._text = SharedText(shown.families, shown.now_ns)
        self._backends = backends
        self._guard = guard
        self._operators = operators
        self._alone = alone
        self._actions = actions
        self._feed = Feed(self._collect, now_ns=shown.now_ns, service="relay", links=LINKS, most_viewers=most_viewers)
        self._loop: asyncio.AbstractEventLoop | None = None

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._checked], client_max_size=65_536)
        for path in static_files():
            app.router.add_get(path, self._file)
        app.router.add_get(EVENTS_PATH, self._events)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._stop)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/streams", self._streams)
        app.router.add_get("/v1/backends", self._list)
        app.router.add_post("/v1/backends/{name}/drain", self._drain)
        app.router.add_post("/v1/backends/{name}/undrain", self._undrain)
        if self._actions is not None:
            app.router.add_post(RELAY_PATH, self._actions)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        return app

    @web.middleware
    async def _checked(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if isinstance(request.protocol, Connection) and not request.protocol.begun():
            return too_many_connections()
        try:
            if request.path in static_files():
                self._guard.check_host(_Headers(request))
            elif request.path not in OPEN_PATHS:
                self._guard.check(_Headers(request))
            if request.method == "POST" and request.path != RELAY_PATH:
                self._check_post(request)
        except UnauthenticatedError as problem:
            headers = {"WWW-Authenticate": "Bearer", **PAGE_HEADERS}
            return web.json_response({"error": str(problem)}, status=401, headers=headers)
        except RefusalError as problem:
            return web.json_response({"error": str(problem)}, status=403, headers=PAGE_HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as problem:  # no such path, or method
            problem.headers.update(PAGE_HEADERS)
            raise
        if not response.prepared:
            response.headers.update(FILE_HEADERS if request.path in static_files() else PAGE_HEADERS)
        return response

    def _check_post(self, request: web.Request) -> None:
        """Raise ForbiddenError for an unauthorized change: from another site's page, or without a token."""
        origin = request.headers.get("Origin")
        if origin is not None and origin.rpartition("://")[2].lower() != request.headers.get("Host", "").lower():
            raise ForbiddenError("not from a page of another site")
        if request.content_type != "application/json":
            raise ForbiddenError("send Content-Type: application/json: a page of another site cannot")
        if self._operators is not None:
            self._operators.check(request.headers.getall("Authorization", []))
        elif not self._alone:
            raise ForbiddenError(
                "the port is not this machine's alone and has no tokens (auth and operators in the settings file)"
            )

    async def _file(self, request: web.Request) -> web.Response:
        file = static_files()[request.path]
        return web.Response(body=file.content, headers={"Content-Type": file.media_type})

    async def _start(self, _app: web.Application) -> None:
        """Start the feed of the live page."""
        self._loop = asyncio.get_running_loop()
        self._feed.start()

    async def _stop(self, _app: web.Application) -> None:
        """Close the viewers, before the port waits for answers under way."""
        await asyncio.to_thread(self._feed.stop)

    def _collect(self, filters: Collection[Filter], followed: Collection[StreamKey]) -> Collected:
        """Collect the state in the loop; called in the feed's thread."""
        assert self._loop is not None  # noqa: S101

        async def collect() -> Collected:
            return self._shown.live(filters, followed)

        pending = asyncio.run_coroutine_threadsafe(collect(), self._loop)
        try:
            return pending.result(COLLECT_S)
        finally:
            pending.cancel()

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send the events of the live page, until the viewer leaves, or the feed drops it."""
        if request.method == "HEAD":
            return web.Response(headers={"Content-Type": EVENTS_TYPE})
        try:
            viewer = self._feed.join(selection_of(request.query), self._owner(request))
        except SelectionError as problem:
            return web.json_response({"error": str(problem)}, status=400)
        except UnavailableError as problem:
            retry = {"Retry-After": str(problem.retry_after_s)}
            return web.json_response({"error": str(problem)}, status=503, headers=retry)
        response = web.StreamResponse(headers={"Content-Type": EVENTS_TYPE, **PAGE_HEADERS})
        try:
            await response.prepare(request)
            async for message in viewer.messages():
                async with asyncio.timeout(UNREAD_S):
                    await _write(response, message)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._feed.leave(viewer)
        return response

    def _owner(self, request: web.Request) -> str:
        """Return whose viewer a request is: of its token, else of its address."""
        given, bearer = request.headers.getall("Authorization", []), None
        if self._operators is not None:
            with suppress(UnauthenticatedError):  # not asked for where the page is open
                bearer = self._operators.check(given)
        return caller_of(request.remote or "", bearer, {}).name

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        text = await asyncio.wrap_future(self._text.text())
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8", **PAGE_HEADERS}
        response = web.StreamResponse(headers=headers)
        response.content_length = len(text)
        await response.prepare(request)
        if request.method != "HEAD":
            await _write(response, text)
        return response

    async def _streams(self, request: web.Request) -> web.Response:
        try:
            selection = selection_of(request.query)
        except SelectionError as problem:
            return web.json_response({"error": str(problem)}, status=400)
        return web.json_response(self._shown.streams(selection))

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response({"backends": self._backends.rows()})

    async def _drain(self, request: web.Request) -> web.Response:
        return self._set_draining(request.match_info["name"], draining=True)

    async def _undrain(self, request: web.Request) -> web.Response:
        return self._set_draining(request.match_info["name"], draining=False)

    def _set_draining(self, name: str, *, draining: bool) -> web.Response:
        if not self._backends.drain(name, draining=draining):
            return web.json_response({"error": "there is no backend of this name"}, status=404)
        if draining:
            self._shown.drained(name)
        return web.json_response({"backends": [row for row in self._backends.rows() if row["name"] == name]})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        reason = self._shown.unready()
        return web.Response(text="ok\n" if reason is None else f"{reason}\n", status=200 if reason is None else 503)


class WebServer:
    """The server of the web port: `start` and `stop`, each once. Connections have the limits of clients'."""

    def __init__(self, port: WebPort, limits: Limits) -> None:
        self._runner = web.AppRunner(port.application(), handle_signals=False, shutdown_timeout=STOP_S)
        self._limits = limits
        self._accepting: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket, context: Callable[[], ssl.SSLContext] | None) -> None:
        """Accept connections; `context`: of TLS, None without."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None  # noqa: S101
        limits = self._limits
        acceptor = acceptor_of(listener, limits, lambda door: Connection(server, limits, door), context)
        self._accepting = asyncio.get_running_loop().create_task(acceptor.run())

    async def close_listener(self) -> None:
        """Accept no new connections."""
        await stop_accepting(self._accepting)
        self._accepting = None

    async def stop(self) -> None:
        """Close the connections; answers under way have `STOP_S`."""
        await self.close_listener()
        await self._runner.cleanup()


class _Headers:
    """The headers of a request, in the form that the guard reads."""

    def __init__(self, request: web.Request) -> None:
        self._request = request

    def getlist(self, key: str) -> list[str]:
        """Return all values of a header; the host that a target names counts as one (RFC 9112, section 3.2.2)."""
        values = self._request.headers.getall(key, [])
        return [*values, self._request.host] if values and key == "host" else list(values)


async def _write(response: web.StreamResponse, body: bytes) -> None:
    """Write a body, or a part of one, in pieces: the connection keeps what is not read yet."""
    for begin in range(0, len(body), PIECE_BYTES):
        await response.write(body[begin : begin + PIECE_BYTES])
