"""What a backend's load counts: prompts as they are known, output as it comes, nothing once a stream is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine
from support.relay.rig import Rig, rig

from otel_llm.relay.attempts.run import Run
from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.request import OwnedRequest
from otel_llm.relay.splice.upstream_response import UpstreamResponse

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "tell me a story of a relay"}],
}


async def load(running: Rig) -> list[tuple[int, int]]:
    """Return streams and tokens of each backend."""
    rows = (await running.get("/v1/backends"))["backends"]
    return [(row["streams"], row["tokens"]) for row in rows]


@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}], ids=["ids stripped", "ids asked for"])
def test_a_prompt_counts_by_its_ids_as_soon_as_they_are_known(tmp_path: Path, more: dict[str, Any]) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(stepping=True)) as running:
            (engine,) = running.engines
            reading = asyncio.create_task(running.read({**CHAT, **more}))
            await engine.wait_for(lambda: bool(engine.streams))
            sent = {"stream": True, **CHAT, **more}
            estimate = len(json.dumps(sent)) // 4
            assert await load(running) == [(1, estimate)]
            await engine.step(4)  # the role, and three tokens
            exact = len(engine.model.prompt_ids(CHAT))
            assert exact != estimate
            async with asyncio.timeout(WAIT_S):
                while await load(running) != [(1, exact + 3)]:
                    await asyncio.sleep(0.005)
            engine.stepping = False
            await engine.step(1)
            assert (await reading).done
            assert await load(running) == [(0, 0)]

    asyncio.run(go())


@asynccontextmanager
async def holding(counts: dict[str, int], released: asyncio.Event) -> AsyncIterator[str]:
    """Run two backends that answer nothing until they may; give the settings that name them."""
    async with AsyncExitStack() as stack:
        urls = {}
        for name in counts:

            async def answer(_request: web.Request, name: str = name) -> web.Response:
                counts[name] += 1
                await released.wait()
                return web.json_response({})

            app = web.Application()
            app.router.add_post("/v1/{any:.*}", answer)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            urls[name] = f"{{url: 'http://127.0.0.1:{runner.addresses[0][1]}', kind: openai}}"
        yield "backends: {" + ", ".join(f"{name}: {url}" for name, url in urls.items()) + "}\n"


@pytest.mark.parametrize(
    ("path", "stream"), [("chat/completions", True), ("chat/completions", False), ("rerank", None)]
)
def test_requests_that_come_at_once_are_spread_evenly(tmp_path: Path, path: str, stream: bool | None) -> None:
    """One that is not owned weighs its prompt too: else all of them would follow the first to the lighter backend."""

    async def go() -> None:
        counts, released = {"y": 0, "z": 0}, asyncio.Event()

        async def one(path: str, body: dict[str, Any]) -> None:
            async with running.session.post(f"{running.url}/v1/{path}", json=body) as response:
                await response.read()

        async def asked(number: int) -> None:
            async with asyncio.timeout(WAIT_S):
                while sum(counts.values()) < number:
                    await asyncio.sleep(0.005)

        async with holding(counts, released) as settings, rig(tmp_path, settings=settings) as running:
            first = asyncio.create_task(one("chat/completions", {**CHAT, "stream": True}))
            await asked(1)
            rest = [asyncio.create_task(one(path, {**CHAT, "stream": stream})) for _ in range(12)]
            await asked(13)
            assert max(counts.values()) - min(counts.values()) <= 1
            released.set()
            await asyncio.gather(first, *rest)
            assert await load(running) == [(0, 0), (0, 0)]

    asyncio.run(go())


def test_a_closed_stream_adds_nothing_to_the_load() -> None:
    """Lines that were read before an abort are still taken."""
    backend = Backend("a", "http://a")
    loads = Backends([backend], lambda: 0.0)
    owned = OwnedRequest.parse("/v1/chat/completions", json.dumps({**CHAT, "stream": True}).encode())
    assert owned is not None
    response: Any = SimpleNamespace(close=lambda: None, content=SimpleNamespace(is_eof=lambda: True))
    loads.begin(backend, 7)
    run = Run(backend, response, UpstreamResponse(Reply(owned), "vllm"), loads, 7, one_prompt=True)
    run.grow(2)
    assert (backend.streams, backend.tokens) == (1, 9)
    run.close()
    run.grow(3)
    run.close()
    assert (backend.streams, backend.tokens) == (0, 0)
