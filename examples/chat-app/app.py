"""A small chat: a page that streams, one endpoint, the OpenAI SDK; recorded at both ends.

    OPENAI_BASE_URL=http://127.0.0.1:8001/v1 OPENAI_API_KEY=none uvicorn --app-dir examples/chat-app app:app

The OTEL_EXPORTER_OTLP_* variables say where the telemetry goes; without them a collector on this machine.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import openai
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse, StreamingResponse
from pydantic import BaseModel, Field

import otel_llm
from otel_llm.instrumentation.asgi import StreamMiddleware

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLASSES = ["chat", "code", "agent", "voice", "batch"]
"""What the header `x-slo-class` may say: names of the collector's SLO classes, here the shipped ones."""

otel_llm.instrument(slo_classes=CLASSES)  # the one line: model calls through the OpenAI SDK
client = openai.AsyncOpenAI()  # OPENAI_BASE_URL and OPENAI_API_KEY


class Message(BaseModel):
    """One message of the conversation."""

    role: Literal["user", "assistant"]
    content: Annotated[str, Field(max_length=20_000)]


class Question(BaseModel):
    """What the page posts: a model that the server has, and the conversation so far."""

    model: Annotated[str, Field(max_length=200)]
    messages: Annotated[list[Message], Field(min_length=1, max_length=200)]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the client's connections when the server stops."""
    async with client:
        yield


app = FastAPI(lifespan=lifespan)
app.add_middleware(StreamMiddleware, paths=["/chat"])  # and the replies to the browser


@app.get("/")
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(Path(__file__).with_name("page.html"))


@app.get("/models")
async def models() -> list[str]:
    """Return the names of the server's models."""
    try:
        return [model.id async for model in client.models.list()]
    except openai.OpenAIError as problem:
        raise HTTPException(502, "the model server does not answer") from problem


@app.post("/chat")
async def chat(question: Question) -> StreamingResponse:
    """Stream the model's reply as text."""
    messages: list[Any] = [message.model_dump() for message in question.messages]
    try:
        stream = await client.chat.completions.create(model=question.model, messages=messages, stream=True)
    except openai.OpenAIError as problem:
        raise HTTPException(502, "the model server does not answer") from problem

    async def text() -> AsyncIterator[str]:
        async with stream:
            async for chunk in stream:
                if chunk.choices and chunk.choices[0].delta.content:
                    yield chunk.choices[0].delta.content

    return StreamingResponse(text(), media_type="text/plain; charset=utf-8")
