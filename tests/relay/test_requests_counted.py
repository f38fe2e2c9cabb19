"""Every request of a client is counted once, by who served it and the status that the client got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.rig import Rig, rig
from support.relay.silent import closed

CHAT: dict[str, Any] = {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
TOKEN = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPERATOR = "an-operator-of-this-test"
DRAINS = {"Authorization": f"Bearer {OPERATOR}"}


async def counted(running: Rig) -> dict[str, float]:
    """Return the counts by instance and code."""
    head = "otel_llm_relay_requests_total"
    found = (await running.metrics()).items()
    return {sample.removeprefix(head): value for sample, value in found if sample.startswith(head)}


async def post(running: Rig, body: object, path: str = "/v1/chat/completions", **headers: str) -> int:
    async with running.session.post(running.url + path, json=body, headers=BEARER | headers) as response:
        await response.read()
        return response.status


async def raw(running: Rig, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
    writer.write(data)
    await asyncio.wait_for(reader.read(), WAIT_S)
    await closed(writer)


def labels(code: int, instance: str = "") -> str:
    return f'{{code="{code}",instance="{instance}"}}'


def test_what_is_served_and_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    (tmp_path / "operators").write_text(f"{OPERATOR}\n")
    settings = "auth: {tokens_file: tokens}\noperators: {tokens_file: operators}\nlimits: {body_bytes: 1024}\n"

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=settings) as running:
            assert await post(running, {**CHAT, "stream": True}) == 200
            assert await post(running, CHAT) == 200
            assert await post(running, {}, "/nowhere") == 404
            assert await post(running, {**CHAT, "user": "u" * 2000}) == 413
            assert await post(running, {}, Upgrade="websocket") == 501
            async with running.session.get(running.url + "/v1/models") as response:
                assert response.status == 401
            await raw(running, b"nonsense\r\n\r\n")
            await raw(running, b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 70_000 + b"\r\n\r\n")
            served = {labels(200, "a"): 2.0}
            refused = {labels(code): 1.0 for code in (400, 401, 404, 413, 431, 501)}
            assert await counted(running) == served | refused
            async with running.session.post(running.web + "/v1/backends/a/drain", json={}, headers=DRAINS) as response:
                assert response.status == 200
            for stream in (True, False):
                assert await post(running, {**CHAT, "stream": stream}) == 503
            assert await counted(running) == served | refused | {labels(503): 2.0}

    asyncio.run(go())


def test_too_many_streams(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {streams: 1}\n") as running:
            stalls = Fault("stall", after=2)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await asyncio.wait_for(stalls.reached.wait(), WAIT_S)
            async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                assert (response.status, response.headers["Retry-After"]) == (429, "1")
            stalls.released.set()
            await reading
            assert await counted(running) == {labels(429): 1.0, labels(200, "a"): 1.0}

    asyncio.run(go())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_before_it_is_answered(tmp_path: Path, stream: bool) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            hangs = Fault("silent")
            running.fail_first(hangs)
            asking = asyncio.create_task(post(running, {**CHAT, "stream": stream}))
            await asyncio.wait_for(hangs.reached.wait(), WAIT_S)
            asking.cancel()
            await until_counted(running, lambda found: found == {labels(499): 1.0})

    asyncio.run(go())


async def until_counted(running: Rig, true: Callable[[dict[str, float]], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true(await counted(running)):
            await asyncio.sleep(0.01)
