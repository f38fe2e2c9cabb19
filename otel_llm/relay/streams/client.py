"""The client's side of one owned request: only this module begins, writes and ends its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aiohttp import web

from otel_llm.relay.answers import CLIENT_LEFT, Passed, pass_response, reader_headers
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import aiohttp
    from aiohttp.http import StreamWriter

    from otel_llm.relay.recording.recorded import Recorded


class Client:
    """The answer to a client. While bytes wait for its socket, `recorded` is marked as blocked.

    `begun`: it has headers, so no other answer can be passed on.
    """

    def __init__(self, request: web.BaseRequest, recorded: Recorded) -> None:
        self._request = request
        self._recorded = recorded
        self._response: web.StreamResponse | None = None
        self._first: aiohttp.ClientResponse | None = None
        """The backend's answer whose headers it has."""

    @property
    def begun(self) -> bool:
        """Tell whether the client has headers."""
        return self._response is not None

    @property
    def code(self) -> int:
        """Return the status that the client got; 499 if it left before it had one."""
        return CLIENT_LEFT if self._response is None else self._response.status

    @property
    def answer(self) -> web.StreamResponse:
        """Return the client's answer."""
        return self._response or web.Response()  # unread: the client has left

    async def begin(self, upstream: aiohttp.ClientResponse) -> None:
        """Begin the answer, once, with the headers of the backend that served first."""
        if self._response is not None:
            return
        response = Passed(status=upstream.status, reason=upstream.reason, headers=reader_headers(upstream))
        await response.prepare(self._request)
        self._response, self._first = response, upstream
        if self._request.transport is not None:
            # All that the kernel does not take at once counts as waiting for the client.
            self._request.transport.set_write_buffer_limits(high=0)

    async def write(self, data: bytes) -> int:
        """Write, as fast as the client reads; return the instant at which the kernel had it all (monotonic ns)."""
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        # The writer's own drain waits only now and then, and would not be noted as blocked.
        await cast("StreamWriter", self._request.writer).write(data, drain=False)
        if transport.get_write_buffer_size():  # the kernel did not take all of it: the client reads slowly
            self._recorded.blocked(True)
            await self._request.writer.drain()
            self._recorded.blocked(False)
        return monotonic_ns()

    async def end(self, upstream: aiohttp.ClientResponse) -> None:
        """End a complete answer; trailers are passed on if all of it is from this backend."""
        assert self._response is not None  # noqa: S101
        if upstream is self._first and isinstance(self._response, Passed):
            await self._response.end(upstream)
        else:
            await self._response.write_eof()

    async def cut(self, event: bytes) -> None:
        """End an incomplete answer: one error event, and the connection."""
        assert self._response is not None  # noqa: S101
        await self._response.write(event)
        self._response.force_close()
        await self._response.write_eof()

    def refuse(self, response: web.Response) -> None:
        """Answer with a response of the relay's own."""
        self._response = response

    async def pass_on(
        self, upstream: aiohttp.ClientResponse, begun: bytes, seen: Callable[[bytes], Awaitable[None]]
    ) -> bool:
        """Pass on an answer that is no stream; return whether the client has all of it. See `pass_response`."""
        self._response, whole = await pass_response(self._request, upstream, begun, seen)
        return whole
