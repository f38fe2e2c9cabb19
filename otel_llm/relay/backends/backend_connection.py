"""A connection to a backend, with what aiohttp leaves out: any byte in headers, trailers, interim answers, its age."""

from __future__ import annotations

import errno
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp
from aiohttp import client_reqrep
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import StreamWriter

from otel_llm.relay.headers import Newest, head_bytes
from otel_llm.shared.clock import monotonic_ns, monotonic_s

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from aiohttp.connector import Connection
    from aiohttp.http import RawResponseMessage
    from aiohttp.streams import StreamReader
    from multidict import CIMultiDict

IDLE_CLOSE_S: Final = 1.0
"""A close that crossed a request on its way comes within this time; one later may be the work of the request."""
CONTINUE: Final = 100
SWITCHING: Final = 101
INTERIM: Final = range(100, 200)

passes_interim: ContextVar[Callable[[RawResponseMessage], None] | None] = ContextVar("passes_interim", default=None)
"""Gets each interim answer (1xx, but not 100 and 101) to the requests of a task."""
sends_trailers: ContextVar[Sequence[bytes]] = ContextVar("sends_trailers", default=())
"""The trailer fields of the request that a task sends now, whose body is chunked."""


class IdleClosedError(aiohttp.ServerDisconnectedError):
    """A connection that had served before ended at a request, without a byte: the backend had closed it as idle."""


class BackendProtocol(ResponseHandler):
    """The protocol of a connection to a backend."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._newest = Newest()
        self._answers = 0
        self._asked_s = 0.0
        self.received_ns = 0
        """When the newest bytes were received (monotonic ns)."""

    def set_response_params(self, **params: Any) -> None:
        """Begin a request."""
        self._newest.clear()
        self._asked_s = monotonic_s()
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse what was received, and keep the newest bytes; without data aiohttp goes on where it paused."""
        if data:
            self.received_ns = monotonic_ns()
            self._newest.add(data)
        super().data_received(data)

    async def read(self) -> tuple[RawResponseMessage, StreamReader]:
        """Return the next head with its body; interim ones are passed on. Raises IdleClosedError."""
        try:
            message, body = await super().read()
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as problem:
            # One that was closed before ends as closed, and not as reset (Linux: EOF, or EPIPE).
            closed = not isinstance(problem, OSError) or problem.errno != errno.ECONNRESET
            if self._answers and not self._newest and closed and monotonic_s() - self._asked_s < IDLE_CLOSE_S:
                raise IdleClosedError from problem
            raise
        if message.code not in INTERIM:
            self._answers += 1
        elif message.code not in (CONTINUE, SWITCHING) and (pass_on := passes_interim.get()) is not None:
            pass_on(message)
        return message, body

    def trailers(self) -> Sequence[bytes]:
        """Return the trailers of the chunked body that has just ended."""
        return self._newest.trailers()


class Answer(aiohttp.ClientResponse):
    """A backend's answer; `trailers`: its trailer fields as they were received, known once its body has ended."""

    trailers: Sequence[bytes] = ()
    _source: BackendProtocol | None = None

    @property
    def received_ns(self) -> int | None:
        """Return when its newest bytes were received (monotonic ns), None if that is not known."""
        return None if self._source is None else self._source.received_ns

    async def start(self, connection: Connection) -> Answer:
        """Read the head."""
        protocol = connection.protocol
        await super().start(connection)
        if not isinstance(protocol, BackendProtocol):
            return self
        self._source = protocol
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            # Not later: at the end of the body another request gets the connection.
            self.content.on_eof(partial(self._ended, protocol))
        return self

    def _ended(self, protocol: BackendProtocol) -> None:
        self.trailers = protocol.trailers()


class _Writer(StreamWriter):
    """A writer of requests that keeps the bytes of headers that are no UTF-8, and ends a chunked one with trailers."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._trailers = sends_trailers.get()

    async def write_headers(self, status_line: str, headers: CIMultiDict[str]) -> None:
        await super().write_headers(status_line, headers)
        self._headers_buf = head_bytes(status_line, headers)

    async def write_eof(self, chunk: bytes = b"") -> None:
        if self._trailers and self.chunked:
            await self.write(chunk)
            self.send_headers()
            self.chunked = False  # the last chunk is written here
            chunk = b"\r\n".join([b"0", *self._trailers, b"", b""])
        await super().write_eof(chunk)


class Request(aiohttp.ClientRequest):
    """A request that is written by our writer: aiohttp has no parameter for that."""

    send = cast(
        "Any", FunctionType(aiohttp.ClientRequest.send.__code__, {**vars(client_reqrep), "StreamWriter": _Writer})
    )


class BackendConnector(aiohttp.TCPConnector):
    """A pool of connections to backends."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(BackendProtocol, loop=self._loop))
