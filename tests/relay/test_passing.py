"""What the relay does not own passes both ways as it came; what is no request, or too much, is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine
from support.relay.rig import Rig, rig

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "x"}],
}


async def raw(running: Rig, request: bytes) -> bytes:
    """Send bytes as they are; return what is answered until the connection ends or nothing comes."""
    port = urlsplit(running.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = b""
    try:
        async with asyncio.timeout(WAIT_S):
            while data := await reader.read(65536):
                answer += data
                if b"\r\n\r\n" in answer:
                    break
    finally:
        writer.close()
    return answer


def test_a_request_that_is_not_owned_passes(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            async with running.session.get(running.url + "/v1/models?a=%2Fb") as response:
                assert response.status == 200
                assert (await response.json())["data"][0]["id"] == "fake"
            async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                straight = running.engines[0].url + "/v1/chat/completions"
                async with running.session.post(straight, json=CHAT) as other:
                    expected = (await other.json())["choices"]
                assert (await response.json())["choices"] == expected
            async with running.session.get(running.url + "/nowhere") as response:
                assert response.status == 404

    asyncio.run(go())


def test_headers_pass_but_those_of_one_hop(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            headers = {"X-Mine": "1", "Connection": "close, X-Hop", "X-Hop": "2", "Authorization": "Bearer t"}
            async with running.session.post(
                running.url + "/v1/chat/completions", json={**CHAT, "stream": True}, headers=headers
            ) as response:
                assert response.headers["X-Accel-Buffering"] == "no"
                await response.read()
            (asked,) = running.asked
            assert asked.headers["X-Mine"] == "1"
            assert asked.headers["Authorization"] == "Bearer t"
            assert "X-Hop" not in asked.headers
            assert asked.headers["traceparent"].startswith("00-")

    asyncio.run(go())


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"X-Folded: a\r\n b\r\nContent-Length: 0\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Content-Length: +2\r\n",
    ],
)
def test_requests_that_two_servers_may_read_differently_are_refused(tmp_path: Path, head: bytes) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            answer = await raw(running, b"POST /v1/embeddings HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n{}")
            assert answer.split(b" ")[1] == b"400"
            assert running.asked == []

    asyncio.run(go())


def test_limits(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {body_bytes: 2048}\n") as running:
            large = {**CHAT, "stream": True, "user": "u" * 4000}
            async with running.session.post(running.url + "/v1/chat/completions", json=large) as response:
                assert response.status == 413
            answer = await raw(running, b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 70_000 + b"\r\n\r\n")
            assert answer.split(b" ")[1] == b"431"

    asyncio.run(go())


def test_drain_and_health_say_who_gets_streams(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine()) as running:
            async with running.session.post(running.web + "/v1/backends/a/drain", json={}) as response:
                assert response.status == 200
            for _ in range(3):
                assert (await running.read(CHAT)).done
            assert running.engines[0].streams == []
            async with running.session.post(running.web + "/v1/backends/a/undrain", json={}) as response:
                assert response.status == 200
            async with running.session.post(running.web + "/v1/backends/c/drain", json={}) as response:
                assert response.status == 404
            async with running.session.post(running.web + "/v1/backends/a/drain", data="x") as response:
                assert response.status == 403

    asyncio.run(go())


def test_without_a_healthy_backend_the_answer_is_503(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            async with running.session.post(running.web + "/v1/backends/a/drain", json={}) as response:
                assert response.status == 200
            for body in ({**CHAT, "stream": True}, CHAT):
                async with running.session.post(running.url + "/v1/chat/completions", json=body) as response:
                    assert response.status == 503
                    assert response.headers["Retry-After"] == "1"

    asyncio.run(go())
