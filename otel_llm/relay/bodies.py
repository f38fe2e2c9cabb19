"""The bodies of requests: received within one budget of bytes, and read in a thread if they are large."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from otel_llm.instrumentation.parse.http_body import coding_of, unpacked
from otel_llm.relay.callers import Shares
from otel_llm.relay.connection import Connection
from otel_llm.relay.splice.large_body import LARGE_BYTES
from otel_llm.relay.splice.request import OwnedRequest, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from otel_llm.relay.callers import Caller
    from otel_llm.relay.settings import Limits

MAX_RATIO: Final = 100
"""Unpacked bytes of a body for each compressed byte: an owned one is kept as long as its stream."""
FREE_BYTES: Final = 2**16
"""A body may unpack to this size whatever its ratio."""
ROOM_S: Final = 5.0
"""How long a body is not read on while there is no room for its bytes."""


class BodyError(Exception):
    """A body that is not received: the status of the answer, its message and code."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Bodies:
    """The bytes of all bodies in memory: of those that are received, and of those whose requests are served."""

    def __init__(self, limits: Limits, room_s: float = ROOM_S) -> None:
        self.limits = limits
        self._shares = Shares(limits.receiving_bytes)
        self._room_s = room_s
        self._freed = asyncio.Event()

    @property
    def taken(self) -> int:
        """Return the bytes in memory."""
        return self._shares.taken

    async def take(self, caller: Caller, amount: int) -> None:
        """Take room for bytes, and wait for it. Raises: BodyError if it does not come."""
        if self._shares.take(caller, amount):
            return
        try:
            async with asyncio.timeout(self._room_s):
                while not self._shares.take(caller, amount):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            raise BodyError(429, "too many bytes of bodies are here: try again", "rate_limit_error") from None

    def give_back(self, caller: Caller, amount: int) -> None:
        """Give room back."""
        self._shares.give_back(caller, amount)
        self._freed.set()


class Body:
    """The body of one request of a client. `close` it with the request: its bytes count until then."""

    def __init__(self, bodies: Bodies, caller: Caller, request: web.BaseRequest) -> None:
        self.received: bytes | None = None
        """The body as it came; None while it is not read."""
        self.packed = False
        """Whether the body is compressed."""
        self.trailers: Sequence[bytes] = ()
        """The trailer fields behind it, known once it is read."""
        self._bodies = bodies
        self.caller = caller
        self._request = request
        self._held = 0

    async def read(self) -> None:
        """Receive it. Raises: BodyError if it is too large or too slow, or there is no room."""
        limits = self._bodies.limits
        limit_s = None if self._request.content.is_eof() else limits.body_s
        parts: list[bytes] = []
        if self._request.headers.get("Transfer-Encoding"):
            self._request.content.on_eof(self._ended)
        try:
            async with asyncio.timeout(limit_s):
                while data := await self._part(limits.idle_connection_s):
                    if self._held + len(data) > limits.body_bytes:
                        raise BodyError(413, f"the body is larger than {limits.body_bytes} bytes", "too_large")
                    await self._take(len(data))
                    parts.append(data)
        except TimeoutError:
            raise BodyError(408, f"the body is not here after {limits.body_s:g} s", "too_slow") from None
        # Beyond a mebibyte `join` lets go of the interpreter's lock, so in a thread it does not hold the loop.
        self.received = _joined(parts) if self._held <= LARGE_BYTES else await asyncio.to_thread(_joined, parts)

    async def request(self, path: str) -> OwnedRequest | None:
        """Return the streamed completion that a received body asks for, None if it asks for no stream.

        Raises: RequestError for a body that is refused, BodyError if there is no room for it unpacked.
        """
        received = self.received or b""
        coding = ",".join(self._request.headers.getall("Content-Encoding", []))
        self.packed = bool(coding_of(coding))
        limits = self._bodies.limits
        if not self.packed and len(received) <= LARGE_BYTES:
            return OwnedRequest.parse(path, received, limits.choices)
        plain = received
        if self.packed:
            most = min(limits.body_bytes, max(FREE_BYTES, MAX_RATIO * len(received)))
            found = await asyncio.to_thread(unpacked, received, coding, most)
            if found is None:  # a backend that does not read the header might serve it
                raise RequestError("the body cannot be unpacked within the limits: send it as plain JSON")
            plain = found
            await self._take(len(plain))
        return await asyncio.to_thread(OwnedRequest.parse, path, plain, limits.choices)

    def close(self) -> None:
        """Give its room back."""
        if self._held:
            self._bodies.give_back(self.caller, self._held)
            self._held = 0

    def _ended(self) -> None:
        """Note the trailers at once: more of the connection may be here soon."""
        connection = self._request.protocol
        if isinstance(connection, Connection):
            self.trailers = connection.trailers()

    async def _take(self, amount: int) -> None:
        await self._bodies.take(self.caller, amount)
        self._held += amount

    async def _part(self, within_s: float) -> bytes:
        content = self._request.content
        if content.is_eof():  # all of it is here: no timer for what needs no wait
            return await content.readany()
        try:
            async with asyncio.timeout(within_s):
                return await content.readany()
        except TimeoutError:
            raise BodyError(408, f"the body did not go on within {within_s:g} s", "too_slow") from None


def _joined(parts: list[bytes]) -> bytes:
    """Return the parts of a body as one, and free them."""
    whole = b"".join(parts)
    parts.clear()
    return whole
