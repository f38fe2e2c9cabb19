"""Connections of the load client: bytes are stamped where they are read from the socket, and decoded afterwards.

The event loop reads all sockets that have data before anything is decoded, and decodes for a bounded time between two
such rounds: the time stamps stay those of the reads while the decoding lags behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.bench.client.http_exchange import Exchange

READ_BYTES: Final = 1 << 18
"""What one read takes at most."""
DECODE_NS: Final = 500_000
"""How long the loop decodes before it looks at the sockets again."""


class Piece(NamedTuple):
    """Bytes of a connection, read at `at_ns`; None: it has ended."""

    connection: Connection
    at_ns: int
    data: bytes | None


class Decoder:
    """The queue of what was read and not yet decoded; all connections of a loop share it.

    Args:
        on_piece: decodes a piece.
    """

    def __init__(self, on_piece: Callable[[Piece], None]) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._on_piece = on_piece
        self._pieces: deque[Piece] = deque()
        self._scheduled = False

    @property
    def oldest_ns(self) -> int | None:
        """Return when the oldest piece was read that is not decoded; None where none waits."""
        return self._pieces[0].at_ns if self._pieces else None

    def put(self, piece: Piece) -> None:
        """Queue a piece."""
        self._pieces.append(piece)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._decode)

    def _decode(self) -> None:
        until_ns = monotonic_ns() + DECODE_NS
        try:
            while self._pieces:
                self._on_piece(self._pieces.popleft())
                if monotonic_ns() >= until_ns:
                    break
        finally:  # a piece that cannot be decoded must not stop the others
            self._scheduled = bool(self._pieces)
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
        self._decoder.put(Piece(self, at_ns, bytes(self._decoder.buffer[:nbytes])))

    def eof_received(self) -> None:
        """Let the connection end."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Note the end, behind all that was read."""
        self._decoder.put(Piece(self, monotonic_ns(), None))
