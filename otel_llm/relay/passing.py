"""Requests that the relay does not own: passed on both ways as they come, and only counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.relay.answers import CLIENT_LEFT, NO_BACKEND, pass_response, unserved
from otel_llm.relay.opening import TRY_ELSEWHERE
from otel_llm.relay.seam.request import CHARACTERS_PER_TOKEN
from otel_llm.relay.upstream import UpstreamError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp
    from aiohttp import web
    from multidict import CIMultiDict

    from otel_llm.relay.backends import Backend
    from otel_llm.relay.pool import Pool

SAFE: Final = frozenset({"GET", "HEAD"})
"""Methods that may be sent again though a backend has seen them."""


class Passing:
    """Pass on requests that are not owned."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def serve(
        self, request: web.BaseRequest, headers: CIMultiDict[str], body: bytes | None
    ) -> web.StreamResponse:
        """Pass on a request; `body`: what was read of it already, None where it is passed on as it comes.

        Its body weighs as a prompt does: without a weight all would go to the backend whose streams have fewer tokens.
        A connection that was refused has another backend tried; of GET and HEAD one that broke, too.
        """
        pool, tried, reason = self._pool, set[str](), NO_BACKEND
        size = (request.content_length or 0) if body is None else len(body)
        tokens = size // CHARACTERS_PER_TOKEN
        instance, code = "", CLIENT_LEFT
        try:
            while len(tried) <= pool.settings.failover.connect_retries:
                backend = pool.backends.choose(pool.settings.placement, tried)
                if backend is None:
                    break
                tried.add(backend.name)
                pool.backends.begin(backend, tokens)
                try:
                    response = await self._open(request, headers, body, backend)
                    instance, code = backend.name, response.status
                    return await self._pass(request, response)
                except UpstreamError as problem:
                    reason = problem.reason
                    pool.metrics.failed_over(reason)
                    pool.backends.failed(backend)
                    if reason != "refused" and request.method not in SAFE:
                        break
                finally:
                    pool.backends.end(backend, tokens)
            answer = unserved(reason)
            code = answer.status
            return answer
        finally:
            pool.metrics.request(instance, code)

    async def _open(
        self, request: web.BaseRequest, headers: CIMultiDict[str], body: bytes | None, backend: Backend
    ) -> aiohttp.ClientResponse:
        data = body if body is not None else _chunks(request) if request.body_exists else None
        response = await self._pool.upstream.open(backend, request.method, request.raw_path, headers, data)
        if response.status not in TRY_ELSEWHERE:
            self._pool.backends.worked(backend)
        return response

    async def _pass(self, request: web.BaseRequest, response: aiohttp.ClientResponse) -> web.StreamResponse:
        try:
            return await pass_response(request, response)
        finally:
            response.close()


async def _chunks(request: web.BaseRequest) -> AsyncIterator[bytes]:
    while data := await request.content.readany():
        yield data
