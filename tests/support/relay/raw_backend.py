"""A backend of bytes: it keeps what each request looked like, and answers with bytes as they are given."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine

Answer = bytes | None
"""What a request gets; None: its connection ends without an answer."""
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


class RawBackend(FakeEngine):
    """A backend of kind `openai`; `answer` is called with the number of a request's connection and its bytes.

    `requests`: the bytes of each request, its body included, with the number of its connection.
    """

    kind = "openai"

    def __init__(self, answer: Callable[[int, bytes], Answer]) -> None:
        super().__init__()
        self.answer = answer
        self.requests: list[tuple[int, bytes]] = []
        self.connections = 0

    async def start(self, port: int = 0) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        try:
            while request := await read_message(reader):
                self.requests.append((number, request))
                answer = self.answer(number, request)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except ConnectionError:  # the relay has closed it
            pass
        finally:
            writer.close()


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """Read one HTTP message with its body, as it is framed; b"" at the end of the connection."""
    try:
        async with asyncio.timeout(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            if length := _LENGTH.search(head):
                return head + await reader.readexactly(int(length[1]))
            body = b""
            if _CHUNKED.search(head):
                line = b""
                while not line.startswith(b"0"):
                    line = await reader.readuntil(b"\r\n")
                    body += line
                    body += await reader.readexactly(int(line, 16) + 2) if not line.startswith(b"0") else b""
                while line != b"\r\n":
                    line = await reader.readuntil(b"\r\n")
                    body += line
            return head + body
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def ask(url: str, request: bytes) -> bytes:
    """Send a request as it is, with `Connection: close`; return all bytes of the answer."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    finally:
        writer.close()
