"""The routes of a web port, whatever serves them: who may read a path, what is answered, and the live page's events.

`collect` serves them by Starlette in threads, `relay` by aiohttp in its loop. Each turns a `Reply` and the errors into
answers of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.live.page import FILE_HEADERS, PAGE_HEADERS, PIECE_BYTES, static_files
from otel_llm.live.selection import selection_of
from otel_llm.shared.errors import ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future

    from otel_llm.live.feed import Feed
    from otel_llm.live.selection import Selection
    from otel_llm.live.viewers import Viewer
    from otel_llm.shared.web.guard import Guard, Headers

METRICS_PATH: Final = "/metrics"
STREAMS_PATH: Final = "/v1/streams"
PROMETHEUS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
"""Probes need no token and may use any host name here: the answers hold no telemetry."""


class Reply(NamedTuple):
    """An answer; a body that is not there yet is waited for."""

    body: bytes | Future[bytes]
    media_type: str
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = PAGE_HEADERS


@dataclass(frozen=True, slots=True)
class WebRoutes:
    """The routes that are read.

    `metrics` gives Prometheus text. `streams`, and each of `lists` by its path, return what JSON can hold; NaN is a
    bug. `streams` gets the selection of the request's parameters, a list the tenant that the viewer is confined to, or
    None. `healthy` and `ready` return None, or the reason why not. `guard` checks all paths but `OPEN_PATHS`; the files
    of the page need its host name, but no token.
    """

    metrics: Callable[[], bytes | Future[bytes]]
    streams: Callable[[Selection], Any]
    lists: Mapping[str, Callable[[str | None], Any]]
    feed: Feed
    healthy: Callable[[], str | None]
    ready: Callable[[], str | None]
    guard: Guard | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return all paths that `reply` answers, the page's files first."""
        return (*static_files(), METRICS_PATH, "/healthz", "/readyz", *self.lists, STREAMS_PATH)

    def check(self, path: str, headers: Headers) -> str | None:
        """Return the tenant that the viewer is confined to; None: all. Raises: as `Guard.check`."""
        if self.guard is None or path in OPEN_PATHS:
            return None
        if path in static_files():
            self.guard.check_host(headers)
            return None
        return self.guard.check(headers)

    def reply(self, path: str, tenant: str | None, parameters: Mapping[str, str]) -> Reply:
        """Answer a request for one of `paths`, which was checked.

        Raises:
            SelectionError: the parameters cannot be used.
            ForbiddenError: the viewer may not see it.
            TimeoutError: the service is busy.
        """
        if (file := static_files().get(path)) is not None:
            return Reply(file.content, file.media_type, headers=FILE_HEADERS)
        if path == METRICS_PATH:
            if tenant is not None:
                raise ForbiddenError(
                    "metrics are of all tenants: use the token of an operator (operators: tokens_file)"
                )
            return Reply(self.metrics(), PROMETHEUS_TEXT)
        if path in OPEN_PATHS:
            reason = self.healthy() if path == "/healthz" else self.ready()
            status = HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE
            return Reply(f"{reason or 'ok'}\n".encode(), PLAIN_TEXT, status)
        if path == STREAMS_PATH:
            found = self.streams(selection_of(parameters).within(tenant))
        else:
            found = self.lists[path](tenant)
        return Reply(json.dumps(found, allow_nan=False).encode(), JSON)

    def join(self, tenant: str | None, parameters: Mapping[str, str], owner: str | None = None) -> Viewer:
        """Return a viewer of the live page, who leaves the feed later.

        Raises:
            SelectionError: the parameters cannot be used.
            UnavailableError: there are too many viewers.
        """
        return self.feed.join(selection_of(parameters).within(tenant), owner)


def pieces(body: bytes) -> Iterator[bytes]:
    """Yield a body, or a part of one, in pieces, at least one: a connection keeps a copy of what is not read yet."""
    for begin in range(0, max(1, len(body)), PIECE_BYTES):
        yield body[begin : begin + PIECE_BYTES]
