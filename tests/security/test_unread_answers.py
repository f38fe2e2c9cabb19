"""Scrapes that are asked for and never read hold a piece of the text each, not the text."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp.test_utils import BaseTestServer, TestServer
from prometheus_client.core import GaugeMetricFamily, Metric
from support.collector.http_client import serving
from support.live_feed import Fed
from support.patience import WAIT_S

from otel_llm.collector.receive.http_listener import HttpServer
from otel_llm.collector.web.app import web_app
from otel_llm.formats.records import StreamKey
from otel_llm.live.feed import Collected
from otel_llm.live.selection import Filter, Selection
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.web_port import WebPort
from otel_llm.shared.web.address import Address
from otel_llm.shared.web.guard import Guard

TEXT = b"a_metric 1.0\n" * (16 * 2**20 // 13)
READERS = 24
MOST_BYTES = 8 * len(TEXT)
"""A third of what the readers would hold if each had the text."""


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@contextmanager
def asking(port: int) -> Iterator[socket.socket]:
    """Ask for the metrics and read nothing but that an answer has begun."""
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert made.recv(9) == b"HTTP/1.1 "
        yield made


def test_a_collector_holds_no_copy_for_each_scrape() -> None:
    app = web_app(
        metrics=lambda: TEXT,
        streams=lambda _: {},
        requests=lambda _: {},
        feed=Fed().feed(),
        healthy=lambda: None,
        ready=lambda: None,
    )
    with serving(HttpServer(app, Address("127.0.0.1", 0), option="--web")) as server, ExitStack() as stack:
        before = resident()
        for _ in range(READERS):
            stack.enter_context(asking(server.port))
        assert resident() - before < MOST_BYTES
        with socket.create_connection(("127.0.0.1", server.port), WAIT_S) as honest:
            honest.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            head, _, body = whole(honest).partition(b"\r\n\r\n")
        assert body == TEXT
        assert f"content-length: {len(TEXT)}".encode() in head.lower()


def whole(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(2**20):
        pieces.append(piece)
    return b"".join(pieces)


class Large:
    def streams(self, selection: Selection) -> dict[str, Any]:
        return {}

    def live(self, filters: Collection[Filter], followed: Collection[StreamKey]) -> Collected:
        return Fed().collect(filters, followed)

    def now_ns(self) -> int:
        return 0

    def unready(self) -> str | None:
        return None

    def drained(self, name: str) -> None:
        """It never happens."""

    def families(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("a_metric", "help", labels=["name"])
        family.add_metric(["x" * len(TEXT)], 1)
        return [family]


@asynccontextmanager
async def relay_port() -> AsyncIterator[BaseTestServer]:
    port = WebPort(Large(), Backends([], time.monotonic), Guard(), None, alone=True)
    async with TestServer(port.application()) as server:
        yield server


async def _of_a_relay() -> None:
    async with relay_port() as server, aiohttp.ClientSession() as session:
        assert server.port is not None
        async with session.get(server.make_url("/metrics")) as answer:
            text = await answer.read()
        assert len(text) > len(TEXT)
        before = resident()
        with ExitStack() as stack:
            for _ in range(READERS):
                opened = asking(server.port)
                stack.push(opened.__exit__)
                await asyncio.to_thread(opened.__enter__)
            assert resident() - before < MOST_BYTES
            async with session.get(server.make_url("/metrics")) as answer:
                assert await answer.read() == text
                assert answer.content_length == len(text)


def test_a_relay_holds_no_copy_for_each_scrape() -> None:
    asyncio.run(_of_a_relay())
