"""Answers to the client: a backend's headers and body as they are, or the relay's own errors."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import aiohttp
from aiohttp import HttpVersion11, web
from aiohttp.http import StreamWriter

from otel_llm.relay.backends.backend_connection import Answer
from otel_llm.relay.backends.upstream import read_some
from otel_llm.relay.headers import end_to_end, head_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.http import RawResponseMessage
    from multidict import CIMultiDict

RETRY_AFTER_S: Final = 1
NO_BACKEND: Final = "unavailable"
QUEUE_FULL: Final = "queue_full"
QUEUE_TIMEOUT: Final = "queue_timeout"
STOPPING: Final = "shutting_down"
NONE_OPEN: Final = "no backend takes requests: each is drained"
NOT_MODIFIED: Final = 304
MOST_INTERIM_BYTES: Final = 2**16
CLIENT_LEFT: Final = 499
"""The status that proxies count for a request whose client left before the answer."""


def error_response(
    status: int, message: str, kind: str, code: str | None = None, *, param: str | None = None, retry: bool = False
) -> web.Response:
    """Return an error of the relay's own, in the shape that OpenAI's clients read."""
    body = {"error": {"message": message, "type": kind, "param": param, "code": code or kind}}
    headers = {"Retry-After": str(RETRY_AFTER_S)} if retry else None
    return web.Response(status=status, text=json.dumps(body), content_type="application/json", headers=headers)


def unserved(reason: str) -> web.Response:
    """Return the error for a request that no backend serves, with the last backend's reason."""
    if reason == NO_BACKEND:
        return error_response(503, NONE_OPEN, "unavailable", retry=True)
    if reason == QUEUE_FULL:
        return error_response(429, "too many requests wait: try again", "rate_limit_error", reason, retry=True)
    if reason == QUEUE_TIMEOUT:
        return error_response(429, "no backend had a slot in time: try again", "rate_limit_error", reason, retry=True)
    return error_response(502, f"no backend answered: {reason}", "upstream_error", reason)


def cut_unserved(kind: str, message: str, code: str) -> web.Response:
    """Return the error for a request that was ended by the relay while it waited for a backend."""
    return error_response(503, message, kind, code, retry=code == STOPPING)


def reader_headers(response: aiohttp.ClientResponse) -> CIMultiDict[str]:
    """Return the headers of a backend's event stream for the client; its length may change on the way."""
    headers = end_to_end(response.headers, "content-length")
    headers["X-Accel-Buffering"] = "no"  # nginx would hold events back
    return headers


class Passed(web.StreamResponse):
    """A backend's answer: it has no content type but the backend's, its length, its bytes in headers, its trailers."""

    _send_headers_immediately = False

    async def _prepare_headers(self) -> None:
        typed, length = "Content-Type" in self.headers, self.headers.get("Content-Length")
        await super()._prepare_headers()
        if not typed:
            self.headers.popall("Content-Type", None)
        if self.status == NOT_MODIFIED and length is not None:  # that of the body that the client has
            self.headers["Content-Length"] = length

    async def _write_headers(self) -> None:
        await super()._write_headers()
        request, writer = self._req, self._payload_writer
        assert request is not None  # noqa: S101
        assert isinstance(writer, StreamWriter)  # noqa: S101
        major, minor = request.version
        writer._headers_buf = head_bytes(f"HTTP/{major}.{minor} {self.status} {self.reason}", self.headers)
        writer.send_headers()

    async def end(self, upstream: aiohttp.ClientResponse) -> None:
        """End the answer as its backend did: with its trailers."""
        trailers, writer = upstream.trailers if isinstance(upstream, Answer) else (), self._payload_writer
        if trailers and isinstance(writer, StreamWriter) and writer.chunked:
            writer.chunked = False  # the last chunk is written here
            await writer.write(b"\r\n".join([b"0", *trailers, b"", b""]))
        await self.write_eof()


def pass_interim(request: web.BaseRequest, message: RawResponseMessage) -> None:
    """Pass on an interim answer (1xx), unless the answer has begun, or the client's HTTP has none.

    It is left out for a client that does not take the ones before it, and where a header has a control character.
    """
    transport = request.transport
    if request.version < HttpVersion11 or request.writer.output_size or transport is None or transport.is_closing():
        return
    if transport.get_write_buffer_size() < MOST_INTERIM_BYTES:
        with suppress(ValueError):
            transport.write(head_bytes(f"HTTP/1.1 {message.code} {message.reason}", end_to_end(message.headers)))


async def pass_response(
    request: web.BaseRequest,
    response: aiohttp.ClientResponse,
    begun: bytes = b"",
    seen: Callable[[bytes], Awaitable[None]] | None = None,
) -> tuple[web.StreamResponse, bool]:
    """Pass on a backend's answer chunk by chunk, as fast as the client reads it; return it, and whether it is whole.

    `begun`: the part of the body that was read already; `seen` gets each part. If the backend breaks off, so does
    the connection to the client: a cut answer never looks complete.
    """
    answer = Passed(status=response.status, reason=response.reason, headers=end_to_end(response.headers))
    await answer.prepare(request)
    transport = request.transport
    if transport is not None:
        transport.set_write_buffer_limits(high=0)
    try:
        while data := begun or await read_some(response):
            begun = b""
            if seen is not None:
                await seen(data)
            await answer.write(data)
            await request.writer.drain()
        await answer.end(response)
    except aiohttp.ClientConnectionResetError:
        raise
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, TimeoutError):
        answer.force_close()
        if request.transport is not None:
            request.transport.abort()
        return answer, False
    return answer, True
