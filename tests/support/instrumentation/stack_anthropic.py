"""The Anthropic SDK in the matrix."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, ClassVar

import anthropic
from support.instrumentation.matrix import MODEL, Stack
from support.sse_server import Json, Raw, Step

QUESTION: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}


def event(kind: str, **more: Any) -> Raw:
    """Return one event as the API sends it: its type stands twice."""
    return Raw(f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n".encode())


def start(input_tokens: int = 7, **usage: int) -> Raw:
    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "served",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": input_tokens, "output_tokens": 1, **usage},
    }
    return event("message_start", message=message)


def block(index: int, content_block: Json, *deltas: Json) -> list[Step]:
    return [
        event("content_block_start", index=index, content_block=content_block),
        *[event("content_block_delta", index=index, delta=delta) for delta in deltas],
        event("content_block_stop", index=index),
    ]


def stop(output_tokens: int, reason: str = "end_turn") -> list[Step]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [
        event("message_delta", delta=delta, usage={"output_tokens": output_tokens}),
        event("message_stop"),
    ]


class AnthropicMessages(Stack):
    """`client.messages.create(stream=True)`."""

    name = "anthropic"

    def before(self) -> Sequence[Step]:
        return [
            start(),
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event("ping"),
        ]

    def words(self, count: int) -> Sequence[Step]:
        return [
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": f"w{i} "}) for i in range(count)
        ]

    def after(self) -> Sequence[Step]:
        return [event("content_block_stop", index=0), *stop(6)]

    def error(self) -> Sequence[Step]:
        return [event("error", error={"type": "overloaded_error", "message": "Overloaded"})]

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        with anthropic.Anthropic(api_key="none", base_url=url.removesuffix("/v1"), max_retries=0) as client:
            yield client

    def open(self, client: Any) -> Any:
        return client.messages.create(**QUESTION, stream=True)

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        async with anthropic.AsyncAnthropic(api_key="none", base_url=url.removesuffix("/v1"), max_retries=0) as client:
            yield client

    async def aopen(self, client: Any) -> Any:
        return await client.messages.create(**QUESTION, stream=True)


class AnthropicHelper(AnthropicMessages):
    """`client.messages.stream()`, whose reader is another object than the stream that is recorded."""

    name = "anthropic stream()"
    # The helper reads its stream by a loop of its own: that one is left when the helper is dropped.
    outcomes: ClassVar = {"gc": "cancelled"}

    def is_word(self, seen: str) -> bool:
        return super().is_word(seen) and "content_block_delta" in seen

    def open(self, client: Any) -> Any:
        return client.messages.stream(**QUESTION).__enter__()

    async def aopen(self, client: Any) -> Any:
        return await client.messages.stream(**QUESTION).__aenter__()
