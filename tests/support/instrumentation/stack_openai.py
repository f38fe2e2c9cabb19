"""The OpenAI SDK in the matrix: streamed chat completions, and the responses API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, ClassVar

import openai
from support.instrumentation.matrix import MODEL, Stack
from support.sse_server import DONE, Json, Raw, Step, chunk, words

SETTINGS: dict[str, Any] = {"api_key": "none", "max_retries": 0}


class OpenAIChat(Stack):
    """`client.chat.completions.create(stream=True)`."""

    name = "openai chat"

    def before(self) -> Sequence[Step]:
        return [chunk({"role": "assistant", "content": ""})]

    def words(self, count: int) -> Sequence[Step]:
        return words(count)

    def after(self) -> Sequence[Step]:
        return [chunk(finish="stop"), DONE]

    def error(self) -> Sequence[Step]:
        return [Raw(b'data: {"error": {"message": "overloaded", "code": 503}}\n\n')]

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with openai.OpenAI(base_url=url, **SETTINGS) as client:
            yield client

    def open(self, client: Any) -> Any:
        return client.chat.completions.create(model=MODEL, messages=[], stream=True)

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        async with openai.AsyncOpenAI(base_url=url, **SETTINGS) as client:
            yield client

    async def aopen(self, client: Any) -> Any:
        return await client.chat.completions.create(model=MODEL, messages=[], stream=True)


class OpenAIChatHelper(OpenAIChat):
    """`client.chat.completions.stream()`, whose reader is another object than the stream that is recorded."""

    name = "openai chat.stream()"
    # The helper reads its stream by a loop of its own: that one is left when the helper is dropped.
    outcomes: ClassVar = {"gc": "cancelled"}

    def is_word(self, seen: str) -> bool:
        return '"delta":"w' in seen

    def open(self, client: Any) -> Any:
        return client.chat.completions.stream(model=MODEL, messages=[]).__enter__()

    async def aopen(self, client: Any) -> Any:
        return await client.chat.completions.stream(model=MODEL, messages=[]).__aenter__()


class OpenAIChatParsed(OpenAIChat):
    """`client.chat.completions.with_raw_response.create(stream=True).parse()`."""

    name = "openai chat, parsed"

    def open(self, client: Any) -> Any:
        return client.chat.completions.with_raw_response.create(model=MODEL, messages=[], stream=True).parse()

    async def aopen(self, client: Any) -> Any:
        made = client.chat.completions.with_raw_response.create(model=MODEL, messages=[], stream=True)
        return (await made).parse()


def event(kind: str, **more: Any) -> Raw:
    """Return one event of the responses API as it is sent: its type stands twice."""
    data = {"type": kind, "sequence_number": 0, **more}
    return Raw(f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode())


def response(status: str, **more: Any) -> Json:
    """Return the response that comes with the first event and the last."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "served",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **more,
    }


MESSAGE: Json = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
PART: Json = {"type": "output_text", "text": "", "annotations": []}


class OpenAIResponses(Stack):
    """`client.responses.create(stream=True)`."""

    name = "openai responses"

    def before(self) -> Sequence[Step]:
        return [
            event("response.created", response=response("in_progress")),
            event("response.output_item.added", output_index=0, item=MESSAGE),
            event("response.content_part.added", output_index=0, content_index=0, item_id="msg_1", part=PART),
        ]

    def words(self, count: int) -> Sequence[Step]:
        where: Json = {"output_index": 0, "content_index": 0, "item_id": "msg_1", "logprobs": []}
        return [event("response.output_text.delta", delta=f"w{i} ", **where) for i in range(count)]

    def after(self) -> Sequence[Step]:
        usage = {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 13,
        }
        done = {**MESSAGE, "status": "completed", "content": [PART]}
        return [
            event("response.output_item.done", output_index=0, item=done),
            event("response.completed", response=response("completed", usage=usage, output=[done])),
        ]

    def error(self) -> Sequence[Step]:
        failure = {"code": "server_error", "message": "The server had an error"}
        return [event("response.failed", response=response("failed", error=failure))]

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with openai.OpenAI(base_url=url, **SETTINGS) as client:
            yield client

    def open(self, client: Any) -> Any:
        return client.responses.create(model=MODEL, input="hello", stream=True)

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        async with openai.AsyncOpenAI(base_url=url, **SETTINGS) as client:
            yield client

    async def aopen(self, client: Any) -> Any:
        return await client.responses.create(model=MODEL, input="hello", stream=True)


class OpenAIResponsesHelper(OpenAIResponses):
    """`client.responses.stream()`, whose reader is another object than the stream that is recorded."""

    name = "openai responses.stream()"
    # The helper reads its stream by a loop of its own: that one is left when the helper is dropped.
    outcomes: ClassVar = {"gc": "cancelled"}

    def open(self, client: Any) -> Any:
        return client.responses.stream(model=MODEL, input="hello").__enter__()

    async def aopen(self, client: Any) -> Any:
        return await client.responses.stream(model=MODEL, input="hello").__aenter__()
