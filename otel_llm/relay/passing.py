"""Requests that the relay does not own: passed on unchanged in both directions, and only counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from otel_llm.relay.answers import CLIENT_LEFT, NO_BACKEND, pass_response, unserved
from otel_llm.relay.backends.backend import ANYTHING, Needs
from otel_llm.relay.backends.blame import Blame
from otel_llm.relay.backends.upstream import REFUSED, TRY_ELSEWHERE, UpstreamError
from otel_llm.scheduling.placement import Demand
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web
    from multidict import CIMultiDict

    from otel_llm.relay.backends.pool import Pool

SAFE: Final = frozenset({"GET", "HEAD"})
"""Methods that may be repeated though a backend has received them."""


class Passing:
    """The handler of requests that are not owned."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def serve(
        self, request: web.BaseRequest, path: str, headers: CIMultiDict[str], body: bytes | None, client: str
    ) -> web.StreamResponse:
        """Pass on a request of a client; `body`: the part that was read already, None where it is streamed.

        Its body weighs as a prompt does: without a weight all would go to the backend whose streams have fewer tokens.
        After a refused connection another backend is tried; for GET and HEAD after a broken one too.
        """
        served, code = "", CLIENT_LEFT
        pool, tried, reason = self._pool, set[str](), NO_BACKEND
        tokens = pool.lengths.prompt(None, (request.content_length or 0) if body is None else len(body))
        needs = ANYTHING if body is None or pool.backends.alike else Needs(_model_of(body))
        blame = Blame(pool.backends, client)
        again = request.method in SAFE and (body is not None or not request.body_exists)
        try:
            while len(tried) <= pool.settings.failover.connect_retries:
                backend = pool.backends.choose(pool.settings.direct_placement, tried, Demand(tokens), needs)
                if backend is None:
                    break
                tried.add(backend.name)
                pool.backends.begin(backend, tokens)
                try:
                    data = body if body is not None else _chunks(request) if request.body_exists else None
                    response = await pool.upstream.open(backend, request.method, path, headers, data)
                    served, code = backend.name, response.status
                    pool.backends.heard(backend, monotonic_s())
                    if code not in TRY_ELSEWHERE and request.method not in SAFE:
                        pool.backends.worked(backend)
                    if response.ok:
                        blame.served(backend)
                    try:
                        return (await pass_response(request, response))[0]
                    finally:
                        response.close()
                except UpstreamError as problem:
                    reason = problem.reason
                    pool.metrics.failed_over(reason)
                    blame.failed(backend, broke=reason != REFUSED, refused=reason == REFUSED)
                    if reason != REFUSED and not again:
                        break
                finally:
                    pool.backends.end(backend, tokens)
            answer = unserved(reason)
            code = answer.status
            return answer
        finally:
            pool.metrics.request(served, code)


def _model_of(body: bytes) -> str:
    """Return the model that a completion asks for, "" if that cannot be read."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else ""


async def _chunks(request: web.BaseRequest) -> AsyncIterator[bytes]:
    while data := await request.content.readany():
        yield data
