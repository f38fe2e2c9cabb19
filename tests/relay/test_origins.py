"""A page in a browser asks at the clients' port only from an origin that the settings list."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.relay.fake_engine import FakeEngine
from support.relay.rig import rig

CHAT: dict[str, Any] = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]}
PATH = "/v1/chat/completions"
LISTED = "https://chat.example"
CORS = f"cors: {{origins: ['{LISTED}']}}\n"


@pytest.mark.parametrize(
    "origin", ["https://other.example", "null", "http://127.0.0.1:1", "", "https://chat.example:8443", "OWN"]
)
def test_another_page_reaches_no_backend(tmp_path: Path, origin: str) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=CORS) as running:
            asked = len(running.engines[0].asked)
            headers = {"Origin": running.url if origin == "OWN" else origin, "Content-Type": "text/plain"}
            for method, path in (("POST", PATH), ("GET", "/v1/models"), ("OPTIONS", PATH)):
                async with running.session.request(method, running.url + path, json=CHAT, headers=headers) as response:
                    assert response.status == 403
                    assert "Access-Control-Allow-Origin" not in response.headers
            assert len(running.engines[0].asked) == asked

    asyncio.run(go())


@pytest.mark.parametrize("auth", [True, False])
def test_a_listed_page_may_ask_and_read(tmp_path: Path, auth: bool) -> None:
    (tmp_path / "tokens").write_text("the-token-of-this-page\n")
    settings = CORS + ("auth: {tokens_file: tokens}\n" if auth else "")

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=settings) as running:
            asks = {"Origin": LISTED, "Access-Control-Request-Method": "POST"}
            asks["Access-Control-Request-Headers"] = "authorization, content-type"
            async with running.session.options(running.url + PATH, headers=asks) as response:
                assert response.status == 204
                assert response.headers["Access-Control-Allow-Origin"] == LISTED
                assert "authorization" in response.headers["Access-Control-Allow-Headers"]
                assert "POST" in response.headers["Access-Control-Allow-Methods"]
            headers = {"Origin": LISTED, "Authorization": "Bearer the-token-of-this-page"}
            for body, status in (({**CHAT, "stream": True}, 200), (CHAT, 200), ({"stream": 1}, 400)):
                async with running.session.post(running.url + PATH, json=body, headers=headers) as response:
                    assert response.status == status
                    assert response.headers.getall("Access-Control-Allow-Origin") == [LISTED]
                    assert "Origin" in response.headers["Vary"]

    asyncio.run(go())


def test_without_a_page_nothing_is_said_of_origins(tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            rig(tmp_path, FakeEngine()) as running,
            running.session.post(running.url + PATH, json=CHAT) as response,
        ):
            assert response.status == 200
            assert "Access-Control-Allow-Origin" not in response.headers

    asyncio.run(go())
