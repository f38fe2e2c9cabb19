"""Send requests and follow their replies, in one event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.bench.client.http_exchange import Exchange
from otel_llm.instrumentation.parse.sse_chunks import api_of
from otel_llm.instrumentation.segments.outcomes import DISCONNECTED, ERROR
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.bench.client.target import Target


READ_BYTES: Final = 1 << 18
"""What one read takes at most."""
DECODE_NS: Final = 500_000
"""How long the loop decodes before it looks at the sockets again."""


class Chunk(NamedTuple):
    """Bytes of a connection, read at `at_ns`; None: it has ended."""

    connection: Connection
    at_ns: int
    data: bytes | None


class Decoder:
    """The queue of what was read and not yet decoded; all connections of a loop share it.

    Args:
        on_chunk: decodes a chunk.
    """

    def __init__(self, on_chunk: Callable[[Chunk], None]) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._on_chunk = on_chunk
        self._chunks: deque[Chunk] = deque()
        self._scheduled = False

    @property
    def oldest_ns(self) -> int | None:
        """Return when the oldest chunk was read that is not decoded; None if none waits."""
        return self._chunks[0].at_ns if self._chunks else None

    def put(self, chunk: Chunk) -> None:
        """Queue a chunk."""
        self._chunks.append(chunk)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._decode)

    def _decode(self) -> None:
        until_ns = monotonic_ns() + DECODE_NS
        try:
            while self._chunks:
                self._on_chunk(self._chunks.popleft())
                if monotonic_ns() >= until_ns:
                    break
        finally:  # a chunk that cannot be decoded must not stop the others
            self._scheduled = bool(self._chunks)
            if self._scheduled:
                asyncio.get_running_loop().call_soon(self._decode)


class Connection(asyncio.BufferedProtocol):
    """One connection; `exchange` is the one in progress, None while it is idle."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._transport: asyncio.Transport | None = None
        self.exchange: Exchange | None = None
        self.exchanges = 0

    @property
    def usable(self) -> bool:
        """Return whether a request can be written."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, exchange: Exchange) -> None:
        """Write the request of an exchange."""
        assert self._transport is not None  # noqa: S101  the loop has connected it
        self.exchange = exchange
        self.exchanges += 1
        self._transport.write(exchange.request)

    def close(self) -> None:
        """Close it at once; what is under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Return where the next bytes go: `buffer_updated` takes them before any other read."""
        return self._decoder.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Stamp the bytes that were read."""
        at_ns = monotonic_ns()
        self._decoder.put(Chunk(self, at_ns, bytes(self._decoder.buffer[:nbytes])))

    def eof_received(self) -> None:
        """Let the connection end."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Note the end, behind all that was read."""
        self._decoder.put(Chunk(self, monotonic_ns(), None))


REFUSED: Final = "refused"
UNREACHABLE: Final = "unreachable"
TLS: Final = "tls"
CLIENT_LIMIT: Final = "client_limit"
"""This machine has no socket, port or memory left."""
_OWN_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})


class Address(NamedTuple):
    """A resolved address."""

    host: str
    port: int


async def addresses_of(target: Target) -> list[Address]:
    """Return the addresses of a target. Raises OSError if its name is not known."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return [Address(str(one[4][0]), int(one[4][1])) for one in found]


class Sender:
    """The client of one target; all calls are of one event loop.

    Args:
        target: the server.
        address: where it is.
        on_ended: called with each exchange whose reply has ended; it may call `begin`.
    """

    def __init__(self, target: Target, address: Address, on_ended: Callable[[Exchange], None]) -> None:
        api = api_of(target.path)
        assert api is not None  # noqa: S101  a target has one of two paths
        self._api = api
        self._address = address
        self._tls = target.tls()
        self._host = target.host if self._tls is not None else None
        self._on_ended = on_ended
        self._idle: list[Connection] = []
        self._connections: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self.decoder = Decoder(self._decode)
        self.in_flight: dict[int, Exchange] = {}
        """The exchanges whose reply has not ended, by number."""

    def begin(self, number: int, intended_ns: int | None, request: bytes) -> Exchange:
        """Send a request now, on an open connection or a new one; `intended_ns` None: it is intended now."""
        connection = self._take_idle()
        now_ns = monotonic_ns()
        exchange = Exchange(number, now_ns if intended_ns is None else intended_ns, now_ns, self._api, request)
        self.in_flight[number] = exchange
        if connection is None:
            self._connect(exchange)
        else:
            connection.send(exchange)
        return exchange

    def cancel(self, outcome: str, error: str) -> None:
        """End all exchanges that have not ended."""
        now_ns = monotonic_ns()
        for exchange in tuple(self.in_flight.values()):
            exchange.reply.fail(now_ns, outcome, error)
            self._note_end(exchange)
        for connection in tuple(self._connections):
            connection.close()

    async def close(self) -> None:
        """Close all connections."""
        for task in self._connecting:
            task.cancel()
        for connection in tuple(self._connections):
            connection.close()
        await asyncio.sleep(0)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _connect(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._open(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _open(self, exchange: Exchange) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self.decoder), *self._address, ssl=self._tls, server_hostname=self._host
            )
        except OSError as problem:
            exchange.reply.fail(monotonic_ns(), *_connect_error(problem))
            self._note_end(exchange)
            return
        self._connections.add(connection)
        if exchange.reply.done:  # cancelled meanwhile
            connection.close()
        elif connection.usable:
            connection.send(exchange)
        else:  # the server has closed it, or sent what is no answer, before it was asked
            exchange.closed(monotonic_ns())
            self._note_end(exchange)

    def _decode(self, chunk: Chunk) -> None:
        connection, at_ns, data = chunk
        exchange = connection.exchange
        if data is None:
            self._connections.discard(connection)
            if exchange is not None:
                self._lost(connection, exchange, at_ns)
            return
        if exchange is None:  # bytes that nothing asked for
            connection.close()
            return
        if not exchange.feed(at_ns, data):
            connection.close()
        if exchange.complete:
            connection.exchange = None
            if exchange.keeps_alive:
                self._idle.append(connection)
            else:
                connection.close()
        if exchange.reply.done:
            self._note_end(exchange)

    def _lost(self, connection: Connection, exchange: Exchange, at_ns: int) -> None:
        connection.exchange = None
        if connection.exchanges > 1 and not exchange.begun and not exchange.reply.done:
            self._connect(exchange)  # the server had closed an idle connection when the request was written
            return
        exchange.closed(at_ns)
        self._note_end(exchange)

    def _note_end(self, exchange: Exchange) -> None:
        if self.in_flight.pop(exchange.number, None) is not None:
            self._on_ended(exchange)


def _connect_error(problem: OSError) -> tuple[str, str]:
    """Return the outcome and the kind of a connection that could not be made."""
    if isinstance(problem, ssl.SSLError):
        return ERROR, TLS
    if problem.errno in _OWN_LIMITS:
        return ERROR, CLIENT_LIMIT
    if isinstance(problem, ConnectionRefusedError):
        return DISCONNECTED, REFUSED
    return DISCONNECTED, UNREACHABLE
