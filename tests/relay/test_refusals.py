"""What the relay answers itself: limits, requests that are no HTTP it takes, slow bodies; each is counted once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.rig import Rig, rig

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 5,
    "stream": True,
    "messages": [{"role": "user", "content": "x"}],
}
BODY = json.dumps(CHAT).encode()


def post(headers: bytes = b"", body: bytes = BODY, target: bytes = b"/v1/chat/completions") -> bytes:
    length = b"" if b"Transfer-Encoding" in headers else b"Content-Length: %d\r\n" % len(body)
    return b"POST " + target + b" HTTP/1.1\r\nHost: h\r\n" + headers + length + b"\r\n" + body


async def talk(running: Rig, request: bytes, *, until: bytes = b"") -> bytes:
    """Send bytes; return what is answered until the connection ends, or `until` came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
    try:
        writer.write(request)
        answer = b""
        async with asyncio.timeout(WAIT_S):
            while (not until or until not in answer) and (data := await reader.read(65536)):
                answer += data
        return answer
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


async def counted(running: Rig) -> dict[tuple[str, str], float]:
    """Return the requests counted, by instance and code."""
    name = "otel_llm_relay_requests_total"
    found = {}
    for sample, value in (await running.metrics()).items():
        if sample.startswith(name):
            labels = dict(pair.split("=") for pair in sample[len(name) + 1 : -1].replace('"', "").split(","))
            found[labels["instance"], labels["code"]] = value
    return found


async def blamed(running: Rig) -> float:
    """Return how often a backend was held to have failed."""
    samples = await running.metrics()
    return sum(value for name, value in samples.items() if name.startswith("otel_llm_relay_failovers_total"))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (post(target=b"/v1/chat/completions#x"), 400),
        (post(target=b"ftp://h/v1/chat/completions"), 400),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 501),
        (b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 501),
        (post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501),
        (post(b"Content-Length: 99999999999\r\n"), 400),
        (post(b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\nzz\r\n"), 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (post(b"X: a\0b\r\n"), 400),
        (post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"), 400),
        (post().replace(b"\r\n", b"\n"), 400),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else str(value),
)
def test_a_request_that_no_backend_is_asked_is_counted_and_blames_none(
    tmp_path: Path, request_: bytes, code: int
) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            for _ in range(4):  # three failures in a row eject a backend
                answer = await talk(running, request_, until=b"\r\n\r\n")
                assert status(answer) == code
            assert await counted(running) == {("", str(code)): 4}
            assert await blamed(running) == 0
            assert running.asked == []
            assert (await running.get("/v1/backends"))["backends"][0]["open"]

    asyncio.run(go())


def test_of_a_whole_url_only_the_path_goes_on(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            answer = await talk(running, post(target=b"http://127.0.0.1:9/v1/chat/completions"), until=b"[DONE]")
            assert status(answer) == 200
            assert [asked.path for asked in running.asked] == ["/v1/chat/completions"]

    asyncio.run(go())


def test_a_client_that_offers_http_2_is_served_without(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
            answer = await talk(running, post(offer), until=b"[DONE]")
            assert status(answer) == 200
            (asked,) = running.asked
            assert not {"Upgrade", "HTTP2-Settings"} & set(asked.headers)

    asyncio.run(go())


def test_too_many_streams_are_told_to_come_again(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {streams: 1}\n") as running:
            stalls = Fault("stall", after=2)
            running.fail_first(stalls)
            reading = asyncio.create_task(running.read(CHAT))
            await stalls.reached.wait()
            async with running.session.post(running.url + "/v1/chat/completions", json=CHAT) as response:
                assert response.status == 429
                assert response.headers["Retry-After"] == "1"
                assert (await response.json())["error"]["type"] == "rate_limit_error"
            stalls.released.set()
            assert (await reading).done
            assert (await running.read(CHAT)).done
            assert await counted(running) == {("a", "200"): 2, ("", "429"): 1}

    asyncio.run(go())


def test_a_body_over_the_limit_is_refused_however_it_comes(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {body_bytes: 2048}\n") as running:
            fits = BODY[:-1] + b" " * (2048 - len(BODY)) + b"}"
            assert status(await talk(running, post(body=fits), until=b"[DONE]")) == 200
            assert status(await talk(running, post(body=fits + b" "))) == 413
            chunked = b"400\r\n" + b" " * 1024 + b"\r\n"
            over = post(b"Transfer-Encoding: chunked\r\n", chunked * 3)
            assert status(await talk(running, over)) == 413
            assert status(await talk(running, over.replace(b"/chat/completions", b"/embeddings"))) == 413
            assert len(running.asked) == 1
            assert await counted(running) == {("a", "200"): 1, ("", "413"): 3}

    asyncio.run(go())


def test_headers_over_the_limit_are_refused(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            assert status(await talk(running, post(b"X: " + b"x" * 70_000 + b"\r\n"))) == 431
            assert status(await talk(running, post(target=b"/" + b"x" * 70_000 + b"/chat/completions"))) == 431
            many = b"".join(b"X-%d: a\r\n" % number for number in range(300))
            assert status(await talk(running, post(many))) in (400, 431)
            assert running.asked == []

    asyncio.run(go())


def test_a_body_that_does_not_go_on_is_given_up(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {idle_connection_seconds: 0.2}\n") as running:
            assert status(await talk(running, post()[:-1])) == 408
            assert running.asked == []
            assert await counted(running) == {("", "408"): 1}
            assert (await running.read(CHAT)).done

    asyncio.run(go())


def test_a_body_that_is_cut_short_reaches_no_backend(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
            writer.write(post()[:-1])
            async with asyncio.timeout(WAIT_S):
                while running.service.body_bytes != len(BODY) - 1:  # until it is being read
                    await asyncio.sleep(0.005)
                writer.close()
                while not await counted(running):
                    await asyncio.sleep(0.01)
            assert await counted(running) == {("", "499"): 1}
            assert running.asked == []

    asyncio.run(go())


def test_pipelined_requests_are_answered_in_order_and_none_behind_a_cut_reply(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            stalls = Fault("stall", after=2)
            running.fail_first(stalls)
            other = post(b"Connection: close\r\n", BODY.replace(b'"x"', b'"y"'))
            both = asyncio.create_task(talk(running, post() + other))
            await stalls.reached.wait()
            assert len(running.asked) == 1
            stalls.released.set()
            assert (await both).count(b"[DONE]") == 2
            assert [asked.json["messages"][0]["content"] for asked in running.asked] == ["x", "y"]
            running.fail_first(Fault("end", after=3))
            answer = await talk(running, post() + other)
            assert answer.count(b"HTTP/1.1") == 1
            assert b"upstream_error" in answer
            assert b"[DONE]" not in answer

    asyncio.run(go())
