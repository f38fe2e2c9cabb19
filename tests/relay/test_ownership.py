"""No spelling of a streamed completion is served unmeasured: what a backend may take for one is owned or refused."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support.relay.fake_engine import FakeEngine
from support.relay.rig import Rig, rig

from otel_llm.relay.paths import normal_path

CHAT: dict[str, Any] = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]}
STREAMED = json.dumps({**CHAT, "stream": True}).encode()
PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("/v1/chat/completions?a=/b", "/v1/chat/completions"), ("/V1//Chat/completion%73/", "/v1/chat/completions"),
        ("/v1/chat/%63ompletions;a=1", "/v1/chat/completions"), ("/v1/chat%2fcompletions", "/v1/chat/completions"),
        ("/v1/chat/%2563ompletions%20", "/v1/chat/completions"), ("/", "/"), ("/v1/models/%C3%A9", "/v1/models/\u00e9"),
        ("/v1/../sleep", None), ("/v1/%2e%2e/sleep", None), ("/v1/..%2fsleep", None), ("/v1/%252e%252e/sleep", None),
        ("/v1/./x", None), ("/v1\\..\\x", None), ("/v1/..;/x", None), ("/v1/x%00", None), ("/v1/x%0a", None),
        ("/v1/%ff", None), ("/v1/%" + "25" * 9 + "2e", None),
    ],
)  # fmt: skip
def test_one_form_of_all_spellings(path: str, normal: str | None) -> None:
    assert normal_path(path) == normal


async def request(running: Rig, path: str, body: bytes, method: str = "POST", **headers: str) -> int:
    """Send a path as it is spelled; return the status."""
    host, _, port = running.url.rpartition("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    fields = {"Host": "h", "Connection": "close", **headers, "Content-Length": str(len(body))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1])


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completion%73", "/v1/chat%2Fcompletions", "/v1/chat/completions/", "/v1/Chat/Completions",
        "/v1/chat/completions;x", "/v1/chat/completions%20", "/v1/x/../chat/completions", "/v1/chat//completions",
        "/v1/chat/completions%3Fx", "/v1/%63ompletions",
    ],
)  # fmt: skip
def test_other_spellings_of_the_path_reach_no_backend(tmp_path: Path, path: str) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            assert await request(running, path, STREAMED) == 400
            assert running.asked == []

    asyncio.run(go())


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (STREAMED.replace(b"true", b"1"), {}), (STREAMED.replace(b"true", b'"true"'), {}),
        (b'{"stream": false, ' + STREAMED[1:], {}), (STREAMED.replace(b"stream", b"Stream"), {}),
        (STREAMED.decode().encode("utf-16"), {}), (b"\xef\xbb\xbf" + STREAMED, {}),
        (STREAMED[:-1] + b', "temperature": NaN}', {}), (STREAMED, {"Content_Encoding": "br"}),
        (STREAMED, {"Content_Encoding": "gzip"}), (gzip.compress(STREAMED, mtime=0), {"Content_Encoding": "br, gzip"}),
        (gzip.compress(b" " * 2**20 + STREAMED, mtime=0), {"Content_Encoding": "gzip"}),
        (gzip.compress(STREAMED.replace(b"true", b"1"), mtime=0), {"Content_Encoding": "gzip"}),
        (json.dumps({**CHAT, "n": 9}).encode(), {}), (STREAMED[:-1] + b', "n": 9}', {}),
    ],
    ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_other_spellings_of_the_body_reach_no_backend(tmp_path: Path, body: bytes, headers: dict[str, str]) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            assert await request(running, PATH, body, **headers) == 400
            assert running.asked == []
            assert await request(running, PATH, STREAMED) == 200
            assert (await running.metrics())['otel_llm_relay_requests_total{code="400",instance=""}'] == 1

    asyncio.run(go())


@pytest.mark.parametrize("method", ["PUT", "PATCH", "GET", "DELETE"])
def test_a_completion_by_another_method_reaches_no_backend(tmp_path: Path, method: str) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            assert await request(running, PATH, STREAMED, method) == 400
            assert running.asked == []

    asyncio.run(go())


def test_what_is_said_and_how_many_replies_there_may_be(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {choices: 2}\n") as running:
            async with running.session.post(running.url + PATH, json={**CHAT, "n": 3}) as response:
                error = (await response.json())["error"]
                assert (response.status, error["param"]) == (400, "n")
                assert error["message"] == "n is a whole number from 1 to 2"
            async with running.session.post(running.url + PATH, json={**CHAT, "n": 2}) as response:
                assert response.status == 200

    asyncio.run(go())
