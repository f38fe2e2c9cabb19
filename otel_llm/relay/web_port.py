"""The web port of a relay: the live page, metrics, streams and backends as JSON, drain and undrain."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiohttp import web

from otel_llm.actions.settings import RELAY_PATH
from otel_llm.live.exposition import SharedText
from otel_llm.live.feed import MOST_VIEWERS, Feed
from otel_llm.live.page import EVENTS_PATH, EVENTS_TYPE, PAGE_HEADERS
from otel_llm.live.selection import SelectionError
from otel_llm.live.web_routes import WebRoutes, pieces
from otel_llm.relay.callers import caller_of
from otel_llm.relay.connection import Connection, acceptor_of, stop_accepting, too_many_connections
from otel_llm.shared.errors import ForbiddenError, RefusalError, UnauthenticatedError, UnavailableError

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from prometheus_client.core import Metric

    from otel_llm.formats.records import StreamKey
    from otel_llm.live.feed import Collected
    from otel_llm.live.selection import Filter, Selection
    from otel_llm.relay.backends.backends import Backends
    from otel_llm.relay.settings import Limits
    from otel_llm.shared.web.guard import Guard
    from otel_llm.shared.web.tokens import KnownTokens

STOP_S: Final = 1.0
"""How long an answer may take that is under way when the port is closed."""
COLLECT_S: Final = 5.0
"""How long the live page waits for the loop."""
UNREAD_S: Final = 30.0
"""A viewer that reads nothing for this time is cut."""
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
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
        """Return why no request should be sent here now; None if they may be."""

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
        self._backends = backends
        self._operators = operators
        self._alone = alone
        self._actions = actions
        self._feed = Feed(self._collect, now_ns=shown.now_ns, service="relay", links=LINKS, most_viewers=most_viewers)
        self._routes = WebRoutes(
            SharedText(shown.families, shown.now_ns).text,
            shown.streams,
            {"/v1/backends": lambda _: {"backends": backends.rows()}},
            self._feed,
            healthy=lambda: None,
            ready=shown.unready,
            guard=guard,
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._checked], client_max_size=65_536)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._stop)
        for path in self._routes.paths:
            app.router.add_get(path, self._reply)
        app.router.add_get(EVENTS_PATH, self._events)
        app.router.add_post("/v1/backends/{name}/drain", self._drain)
        app.router.add_post("/v1/backends/{name}/undrain", self._undrain)
        if self._actions is not None:
            app.router.add_post(RELAY_PATH, self._actions)
        return app

    @web.middleware
    async def _checked(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if isinstance(request.protocol, Connection) and not request.protocol.begun():
            return too_many_connections()
        try:
            if request.path != RELAY_PATH:  # signed messages authenticate themselves
                self._routes.check(request.path, _Headers(request))
                if request.method == "POST":
                    self._check_post(request)
            response = await handler(request)
        except SelectionError as problem:
            return _refused(400, str(problem))
        except UnauthenticatedError as problem:
            return _refused(401, str(problem), {"WWW-Authenticate": "Bearer"})
        except UnavailableError as problem:
            return _refused(503, str(problem), {"Retry-After": str(problem.retry_after_s)})
        except RefusalError as problem:
            return _refused(403, str(problem))
        except web.HTTPException as problem:  # no such path, or method
            problem.headers.update(PAGE_HEADERS)
            raise
        if not response.prepared:
            response.headers.update(PAGE_HEADERS)
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
        viewer = self._routes.join(None, request.query, self._owner(request))
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
            with suppress(UnauthenticatedError):  # not asked for if the page is open
                bearer = self._operators.check(given)
        return caller_of(request.remote or "", bearer, {}).name

    async def _reply(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of the common routes; a relay has no tenants, so each viewer sees all."""
        reply = self._routes.reply(request.path, None, request.query)
        body = reply.body if isinstance(reply.body, bytes) else await asyncio.wrap_future(reply.body)
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.media_type, **reply.headers})
        response.content_length = len(body)
        await response.prepare(request)
        if request.method != "HEAD":
            await _write(response, body)
        return response

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


def _refused(status: int, message: str, headers: Mapping[str, str] = NO_HEADERS) -> web.Response:
    return web.json_response({"error": message}, status=status, headers={**headers, **PAGE_HEADERS})


async def _write(response: web.StreamResponse, body: bytes) -> None:
    """Write a body, or a part of one, in pieces, each when the last was read."""
    for piece in pieces(body):
        await response.write(piece)
