"""Reading a backend's answer: a connection that is lost between two reads is a break like any other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader

from otel_llm.relay.backends.upstream import read_some


def test_a_connection_lost_just_before_a_read_breaks_the_body() -> None:
    """The connection is gone, and the body does not know it yet: aiohttp's reader then raises a RuntimeError."""

    async def go() -> None:
        loop = asyncio.get_running_loop()
        protocol = BaseProtocol(loop)  # it has no transport: not connected
        body = StreamReader(protocol, 2**15, loop=loop)
        response: Any = SimpleNamespace(content=body)
        with pytest.raises(RuntimeError, match="Connection closed"):
            await body.readany()
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_some(cast("aiohttp.ClientResponse", response))
        body.feed_data(b"there")
        assert await read_some(cast("aiohttp.ClientResponse", response)) == b"there"
        body.feed_eof()
        assert await read_some(cast("aiohttp.ClientResponse", response)) == b""

    asyncio.run(go())
