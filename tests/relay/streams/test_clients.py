"""Clients that read slowly, stop reading, or vanish: their backends are slowed, or closed, and nothing is left open."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import socket
import struct
import termios
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.fake_model import FakeModel
from support.relay.raw_backend import RawBackend
from support.relay.rig import Rig, at_rest, rig

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 40,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream": True,
    "messages": [{"role": "user", "content": "tell me"}],
}
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Stalled
    when: 'tokens_read > 100 && gap_seconds > 2.0'
    for: 500ms  # a busy machine may stand still when the client reads on, and all else here with it, for a second too
    actions:
    - migrate: {to: least_load, only_if: 'exact_resume'}
      mode: enforce
      ttl: 5s
"""
PATIENT = "health: {interval: 5s, timeout: 20s}\n"
"""Backends in the same loop may be slow to answer a probe."""
MOST_HELD = 256 * 1024
CHUNK = 16_000
MANY = 100 + sum(
    int(Path(f"/proc/sys/net/ipv4/tcp_{name}").read_text(encoding="ascii").split()[2])
    for name in ("wmem", "rmem", "wmem")
) // CHUNK  # fmt: skip
"""Chunks: more than the kernel may hold from a backend to a client with a small window, however its own grow."""
BYTES_ACKED, BYTES_RECEIVED = 120, 128
"""Where they stand in Linux's `struct tcp_info`."""


class Client:
    """A client that reads only on command."""

    def __init__(self, url: str) -> None:
        self.at = ("127.0.0.1", urlsplit(url).port or 0)
        self.socket = socket.socket()
        self.socket.setblocking(False)
        self.got = bytearray()

    async def request(self, body: dict[str, Any], path: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self.socket, self.at)
        # Not before: the window may grow again when it reads on.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        await loop.sock_sendall(self.socket, head.encode() + data)

    async def read(self, until: bytes = b"") -> bytes:
        """Read to the end of the connection, or until something came."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        async with asyncio.timeout(WAIT_S):  # it may be 20 MB, on a machine that is busy
            while not until or until not in self.got:
                data = await asyncio.get_running_loop().sock_recv(self.socket, 65536)
                if not data:
                    break
                self.got += data
        return bytes(self.got)

    def vanish(self, *, reset: bool = False) -> None:
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@asynccontextmanager
async def asking(running: Rig, body: dict[str, Any], path: str = "/v1/chat/completions") -> AsyncIterator[Client]:
    client = Client(running.url)
    try:
        await client.request(body, path)
        yield client
    finally:
        client.vanish()


async def until(true: Callable[[], bool], within_s: float = WAIT_S) -> None:
    async with asyncio.timeout(within_s):
        while not true():
            await asyncio.sleep(0.005)


def own_sockets() -> Iterator[socket.socket]:
    """Yield a copy of each connected TCP socket of this process, which closes it."""
    for name in Path("/proc/self/fd").iterdir():
        try:
            number = os.dup(int(name.name))
        except OSError:  # it is gone
            continue
        try:
            copy = socket.socket(fileno=number)
        except OSError:  # it is no socket
            os.close(number)
            continue
        with copy:
            if copy.family == socket.AF_INET:
                yield copy


def ends(one: socket.socket) -> tuple[int, int]:
    try:
        return one.getsockname()[1], one.getpeername()[1]
    except OSError:
        return 0, 0


def waiting(one: socket.socket, what: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(one, what, b"\0\0\0\0"))
    return int(count)


def passed(one: socket.socket, where: int) -> int:
    (count,) = struct.unpack_from("Q", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), where)
    return int(count)


def held(running: Rig, client: Client) -> int:
    """Return how many bytes of a stream are in the process: read from the backend, and not taken by the kernel."""
    relay, backend, own = client.at[1], running.engines[0].port, client.socket.getsockname()[1]
    read = given = 0
    for one in own_sockets():
        if ends(one) == (relay, own):
            given = passed(one, BYTES_ACKED) + waiting(one, termios.TIOCOUTQ)
        elif ends(one)[1] == backend:
            read = max(read, passed(one, BYTES_RECEIVED) - waiting(one, termios.FIONREAD))
    assert given > 0
    return read - given


def connections(*ports: int) -> int:
    """Count the connections of this process to or from these ports."""
    return sum(bool({*ends(one)} & {*ports}) for one in own_sockets() if ends(one)[1])


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="counts the bytes of connections as Linux does")
def test_a_client_that_does_not_read_slows_its_backend_and_is_not_judged_by_time(tmp_path: Path) -> None:
    async def go() -> None:
        model = FakeModel(
            name="fake" + "x" * CHUNK, max_model_len=2 * MANY
        )  # a chunk of 16 KiB: what frames it does not count
        async with rig(tmp_path, FakeEngine(model), FakeEngine(model), rules=RULES, settings=PATIENT) as running:
            body = {**CHAT, "max_tokens": MANY, "model": model.name}
            running.fail_first(Fault("stall", after=2 * MANY))  # so that its backend is known
            async with asking(running, body) as client:
                await client.read(b"data: ")
                asked = running.asked[0]
                await at_rest(lambda: asked.chunks_sent)
                if asked not in running.engines[0].streams:
                    running.engines = running.engines[::-1]
                assert 0 < held(running, client) <= MOST_HELD
                (row,) = (await running.get("/v1/streams"))["streams"]
                assert row["exact_resume"]
                assert row["gap_s"] > 0.0  # of the tokens that were read; the rule has no such fact
                await asyncio.sleep(4.0)  # longer by half than what the rule waits for
                assert running.decisions() == []
                assert asked.chunks_sent < MANY
                assert 0 < held(running, client) <= MOST_HELD
                got = await client.read()
            assert got.count(b'"token_ids":[') == MANY
            assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            ((outcome, tokens),) = [
                (row["outcome"], row["tokens"]) for row in (await running.get("/v1/streams"))["recent"]
            ]
            assert (outcome, tokens) == ("completed", MANY)
            assert running.decisions() == []
            assert len(running.asked) == 1

    asyncio.run(go())


IMPATIENT = PATIENT + "limits: {client_stall_seconds: 1}\n"


def test_a_client_that_stops_reading_is_cut(tmp_path: Path) -> None:
    async def go() -> None:
        model = FakeModel(name="fake" + "x" * 16_000)
        async with rig(tmp_path, FakeEngine(model), settings=IMPATIENT) as running:
            tasks = len(asyncio.all_tasks())
            async with asking(running, {**CHAT, "max_tokens": 1200, "model": model.name}):
                await until(lambda: len(running.asked) == 1)
                await until(lambda: running.asked[0].closed_by_client)
            await check_nothing_is_left(running, tasks, 1)
        (request,) = running.recorded.requests()
        assert (request.attributes or {})["otel_llm.outcome"] == "cancelled"

    asyncio.run(go())


def test_a_client_that_does_not_read_what_is_passed_on_is_cut(tmp_path: Path) -> None:
    async def go() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n"
        backend = RawBackend(lambda _connection, _request: head + bytes(30_000_000))
        async with (
            rig(tmp_path, backend, settings=IMPATIENT) as running,
            asking(running, CHAT, "/v1/embeddings") as client,
        ):
            await until(lambda: connections(urlsplit(running.url).port or 0) == 2)
            await until(lambda: connections(urlsplit(running.url).port or 0) == 1)  # the client's own end
            assert len(await client.read()) < 30_000_000

    asyncio.run(go())


def test_a_client_that_reads_slowly_is_not_cut(tmp_path: Path) -> None:
    async def go() -> None:
        model = FakeModel(name="fake" + "x" * 16_000)
        async with (
            rig(tmp_path, FakeEngine(model), settings=PATIENT + "limits: {client_stall_seconds: 4}\n") as running,
            asking(running, {**CHAT, "max_tokens": 1200, "model": model.name}) as client,
        ):
            for _ in range(12):
                for _ in range(8):
                    await client.read(b"data: ")
                    client.got.clear()
                await asyncio.sleep(0.4)
            assert not running.asked[0].closed_by_client
            assert (await client.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")

    asyncio.run(go())


def test_a_client_that_does_not_read_gives_its_place_to_a_request(tmp_path: Path) -> None:
    async def go() -> None:
        model = FakeModel(name="fake" + "x" * 16_000)
        async with rig(tmp_path, FakeEngine(model), settings=PATIENT + "limits: {streams: 1}\n") as running:
            body = {**CHAT, "max_tokens": 2000, "model": model.name}
            async with asking(running, body):
                await until(lambda: len(running.asked) == 1)
                statuses = set[int]()
                async with asyncio.timeout(WAIT_S):
                    while 200 not in statuses:
                        url = running.url + "/v1/models"
                        async with running.session.get(url) as response:
                            statuses.add(response.status)
                        await asyncio.sleep(0.1)
                assert statuses == {429, 200}
                await until(lambda: running.asked[0].closed_by_client)

    asyncio.run(go())


async def check_nothing_is_left(running: Rig, tasks: int, requests: int) -> None:
    """Check that each request is counted once, and that no task and no connection of it is left."""

    async def total(name: str) -> float:
        return sum(value for key, value in (await running.metrics()).items() if key.startswith(name))

    async with asyncio.timeout(WAIT_S):
        while await total("otel_llm_relay_requests_total") < requests:
            await asyncio.sleep(0.01)
    assert await total("otel_llm_relay_requests_total") == requests
    assert await total("otel_llm_relay_streams_in_flight") == 0
    assert (await running.get("/v1/streams"))["streams"] == []
    assert all(row["streams"] == row["tokens"] == 0 for row in (await running.get("/v1/backends"))["backends"])
    probes = 2 * len(running.engines)  # a connection that is kept, and both of its ends are here
    ports = [engine.port for engine in running.engines]
    await until(lambda: connections(*ports) <= probes)
    await until(lambda: connections(urlsplit(running.url).port or 0) == 0)
    await until(lambda: len(asyncio.all_tasks()) <= tasks)


@pytest.mark.parametrize("reset", [False, True], ids=["closes", "resets"])
@pytest.mark.parametrize(
    "phase",
    [
        "before_headers",
        "before_a_token",
        "in_mid_stream",
        "that_does_not_read",
        "while_resumed",
        "in_a_page",
        "not_owned",
    ],
)
def test_a_client_that_vanishes_closes_its_backend(tmp_path: Path, phase: str, reset: bool) -> None:
    async def go() -> None:
        floods = phase == "that_does_not_read"
        model = FakeModel(name="fake" + "x" * CHUNK * floods, max_model_len=2 * MANY)
        async with rig(tmp_path, FakeEngine(model), FakeEngine(model), settings=PATIENT) as running:
            tasks = len(asyncio.all_tasks())
            body = {**CHAT, "model": model.name, "stream": phase != "not_owned", "max_tokens": MANY if floods else 40}
            hangs = Fault("silent")
            if phase == "before_a_token":
                hangs = Fault("slow_prefill")
            elif phase in ("in_mid_stream", "that_does_not_read"):
                hangs = Fault("stall", after=3 if phase == "in_mid_stream" else 2 * MANY)
            elif phase == "in_a_page":
                hangs = Fault("endless_page")
            faults = [Fault("reset", after=5), hangs] if phase == "while_resumed" else [hangs]
            running.fail_first(*faults)
            async with asking(running, body) as client:
                if floods:
                    await until(lambda: len(running.asked) > 0)
                    assert await at_rest(lambda: running.asked[0].chunks_sent) < MANY
                else:
                    await until(hangs.reached.is_set)
                if phase in ("before_a_token", "in_mid_stream", "while_resumed", "in_a_page"):
                    await client.read(b"\r\n\r\n")
                client.vanish(reset=reset)
                await until(lambda: all(asked.closed_by_client for asked in running.asked if asked.fault is hangs))
            assert [asked.fault for asked in running.asked].count(hangs) == 1
            await check_nothing_is_left(running, tasks, 1)
        assert len(running.recorded.requests()) == (phase != "not_owned")

    asyncio.run(go())


def test_backends_see_every_client_that_vanishes(tmp_path: Path) -> None:
    requests = 200

    async def go() -> None:
        chance = random.Random(7)
        async with rig(tmp_path, FakeEngine(rate=20), FakeEngine(rate=20), settings=PATIENT) as running:
            tasks = len(asyncio.all_tasks())

            async def one(number: int) -> None:
                await asyncio.sleep(number * 0.005)
                async with asking(running, {**CHAT, "max_tokens": 1000}) as client:
                    await client.read(b"\r\n")
                    await asyncio.sleep(chance.random() * 0.3)
                    client.vanish(reset=chance.random() < 0.5)

            await asyncio.gather(*(one(number) for number in range(requests)))
            await until(lambda: all(asked.ended.is_set() for asked in running.asked))
            assert len(running.asked) == requests
            assert all(asked.closed_by_client for asked in running.asked)
            await check_nothing_is_left(running, tasks, requests)
            assert [row["outcome"] for row in (await running.get("/v1/streams"))["recent"]].count("completed") == 0
        assert len(running.recorded.requests()) == requests

    asyncio.run(go())
