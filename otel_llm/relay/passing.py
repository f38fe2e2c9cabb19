"""Requests that the relay does not own: passed on unchanged in both directions, and only counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from otel_llm.relay.answers import CLIENT_LEFT, NO_BACKEND, pass_response, unserved
from otel_llm.relay.backends.backend import ANYTHING, Needs
from otel_llm.relay.backends.blame import Blame
from otel_llm.relay.backends.upstream import REFUSED, TRY_ELSEWHERE, UpstreamError
from otel_llm.relay.splice.large_body import LARGE_BYTES
from otel_llm.relay.splice.request import model_of
from otel_llm.scheduling.placement import Demand
from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web
    from multidict import CIMultiDict

    from otel_llm.relay.backends.pool import Pool
    from otel_llm.relay.bodies import Body

SAFE: Final = frozenset({"GET", "HEAD"})
"""Methods that may be repeated though a backend has received them."""


class Passing:
    """The handler of requests that are not owned."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def serve(
        self, request: web.BaseRequest, path: str, headers: CIMultiDict[str], body: Body
    ) -> web.StreamResponse:
        """Pass on a request of a client; a `body` that was not received is streamed.

        Its body weighs as a prompt does: without a weight all would go to the backend whose streams have fewer tokens.
        After a refused connection another backend is tried; for GET and HEAD after a broken one too.
        """
        served, code = "", CLIENT_LEFT
        pool, tried, reason = self._pool, set[str](), NO_BACKEND
        received = body.received
        tokens = pool.lengths.prompt(None, (request.content_length or 0) if received is None else len(received))
        blame = Blame(pool.backends, body.caller.name)
        again = request.method in SAFE and (received is not None or not request.body_exists)
        begun, needs = b"", ANYTHING
        try:
            if not pool.backends.alike:
                if received is None and request.body_exists:
                    begun = await _beginning(request)
                needs = Needs(await _model_of(begun if received is None else received))
            while len(tried) <= pool.settings.failover.connect_retries:
                backend = pool.backends.choose(pool.settings.direct_placement, tried, Demand(tokens), needs)
                if backend is None:
                    break
                tried.add(backend.name)
                pool.backends.begin(backend, tokens)
                try:
                    data = _chunks(request, begun) if received is None and request.body_exists else received
                    response = await pool.upstream.open(backend, request.method, path, headers, data, body.trailers)
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


async def _model_of(body: bytes) -> str:
    """Return the model that a body names, "" if that cannot be read."""
    return await asyncio.to_thread(model_of, body) if len(body) > LARGE_BYTES else model_of(body)


async def _beginning(request: web.BaseRequest) -> bytes:
    """Return the beginning of a body that is streamed, as much as is read for its model."""
    begun = bytearray()
    while len(begun) < LARGE_BYTES and (data := await request.content.read(LARGE_BYTES - len(begun))):
        begun += data
    return bytes(begun)


async def _chunks(request: web.BaseRequest, begun: bytes) -> AsyncIterator[bytes]:
    if begun:
        yield begun
    while data := await request.content.readany():
        yield data
