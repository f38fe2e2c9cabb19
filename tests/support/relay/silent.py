"""A backend that takes connections and never answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


@asynccontextmanager
async def silent() -> AsyncIterator[str]:
    """Listen on a free port of this machine, whose URL is given; every connection is closed at the end."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _reader, writer: writers.append(writer), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in writers:
            await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
