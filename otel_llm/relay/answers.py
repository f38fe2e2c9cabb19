"""Answers to the client: a backend's headers and body as they are, or the relay's own errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp import web

from otel_llm.relay.backends.upstream import read_some
from otel_llm.relay.headers import end_to_end

if TYPE_CHECKING:
    from multidict import CIMultiDict

RETRY_AFTER_S: Final = 1
NO_BACKEND: Final = "unavailable"
QUEUE_FULL: Final = "queue_full"
QUEUE_TIMEOUT: Final = "queue_timeout"
STOPPING: Final = "shutting_down"
NONE_OPEN: Final = "no backend takes requests: each is unhealthy, ejected or drained"
CLIENT_LEFT: Final = 499
"""The status that proxies count for a request whose client left before the answer."""


def error_response(
    status: int, message: str, kind: str, code: str | None = None, *, retry: bool = False
) -> web.Response:
    """Return an error of the relay's own, in the shape that OpenAI's clients read."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": code or kind}}
    headers = {"Retry-After": str(RETRY_AFTER_S)} if retry else None
    return web.Response(status=status, text=json.dumps(body), content_type="application/json", headers=headers)


def unserved(reason: str) -> web.Response:
    """Return the error for a request that no backend serves, with the last backend's reason."""
    if reason == NO_BACKEND:
        return error_response(503, NONE_OPEN, "unavailable", retry=True)
    if reason == QUEUE_FULL:
        return error_response(429, "too many requests wait: try again", "rate_limit_error", reason, retry=True)
    if reason == QUEUE_TIMEOUT:
        return error_response(429, "no backend had a place in time: try again", "rate_limit_error", reason, retry=True)
    return error_response(502, f"no backend answered: {reason}", "upstream_error", reason)


def cut_unserved(kind: str, message: str, code: str) -> web.Response:
    """Return the error for a request that was ended by the relay while it waited for a backend."""
    return error_response(503, message, kind, code, retry=code == STOPPING)


def reader_headers(response: aiohttp.ClientResponse) -> CIMultiDict[str]:
    """Return the headers of a backend's event stream for the client; its length may change on the way."""
    headers = end_to_end(response.headers, "content-length")
    headers["X-Accel-Buffering"] = "no"  # nginx would hold events back
    return headers


async def pass_response(request: web.BaseRequest, response: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass on a backend's answer chunk by chunk, as fast as the client reads it.

    Where the backend breaks off, so does the connection to the client: a cut answer never looks complete.
    """
    answer = web.StreamResponse(status=response.status, reason=response.reason, headers=end_to_end(response.headers))
    await answer.prepare(request)
    transport = request.transport
    if transport is not None:
        transport.set_write_buffer_limits(high=0)
    try:
        while data := await read_some(response):
            await answer.write(data)
            await request.writer.drain()
        await answer.write_eof()
    except aiohttp.ClientConnectionResetError:
        raise
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, TimeoutError):
        answer.force_close()
        if request.transport is not None:
            request.transport.abort()
    return answer
