"""A chat gateway as a WSGI and as an ASGI application: asks a model by the OpenAI SDK and streams its words on.

`GATEWAY_UPSTREAM` is the model's base URL. `GATEWAY_RECORD=inside` calls `otel_llm.instrument()` as an application
does, when this module is imported. The model is the query string.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

if os.environ.get("GATEWAY_RECORD") == "inside":
    import otel_llm

    otel_llm.instrument()

import openai

UPSTREAM = os.environ["GATEWAY_UPSTREAM"]


def words(model: str) -> Iterator[bytes]:
    client = openai.OpenAI(api_key="none", base_url=UPSTREAM, max_retries=0)
    for chunk in client.chat.completions.create(model=model, messages=[], stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content.encode()


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return words(environ["QUERY_STRING"])


async def words_async(model: str) -> AsyncIterator[bytes]:
    async with openai.AsyncOpenAI(api_key="none", base_url=UPSTREAM, max_retries=0) as client:
        async for chunk in await client.chat.completions.create(model=model, messages=[], stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content.encode()


async def asgi(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[dict[str, Any]], Awaitable[None]]
) -> None:
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": message["type"] + ".complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    async for word in words_async(scope["query_string"].decode()):
        await send({"type": "http.response.body", "body": word, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
