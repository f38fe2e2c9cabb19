"""Gateways: FastAPI handlers that call a model by a client library and stream its reply on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import openai
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

SETTINGS: dict[str, Any] = {"api_key": "none", "max_retries": 0}
QUESTION: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def event(chunk: Any) -> str:
    """Return a chunk of the SDK as the event that it was."""
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"


async def by_async_sdk(url: str) -> AsyncIterator[str]:
    async with openai.AsyncOpenAI(base_url=url, **SETTINGS) as client:
        async for chunk in await client.chat.completions.create(**QUESTION, stream=True):
            yield event(chunk)
    yield "data: [DONE]\n\n"


def by_sync_sdk(url: str) -> Iterator[str]:
    """In a thread: Starlette reads a sync generator there."""
    with openai.OpenAI(base_url=url, **SETTINGS) as client:
        for chunk in client.chat.completions.create(**QUESTION, stream=True):
            yield event(chunk)
    yield "data: [DONE]\n\n"


async def by_httpx(url: str) -> AsyncIterator[bytes]:
    question = {**QUESTION, "stream": True}
    async with httpx2.AsyncClient() as client, client.stream("POST", f"{url}/chat/completions", json=question) as reply:
        async for data in reply.aiter_bytes():
            yield data


BODIES: dict[str, Any] = {"async SDK": by_async_sdk, "sync SDK": by_sync_sdk, "httpx": by_httpx}


def gateway(url: str, body: Any = by_async_sdk, background: Any = None) -> FastAPI:
    """Return an application that answers the API's path and `/chat` with what `body` makes of the model at `url`."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    @app.post("/chat")
    async def chat(request: Request) -> StreamingResponse:
        await request.json()
        task = None if background is None else BackgroundTask(background, url)
        return StreamingResponse(body(url), media_type="text/event-stream", background=task)

    @app.post("/sync/chat/completions")
    def in_a_thread(question: dict[str, Any]) -> StreamingResponse:
        client = openai.OpenAI(base_url=url, **SETTINGS)
        stream = client.chat.completions.create(**QUESTION, stream=True)

        def events() -> Iterator[str]:
            with client:
                for chunk in stream:
                    yield event(chunk)
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return app
