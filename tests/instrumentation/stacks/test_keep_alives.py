"""A server that sends keep-alives and no token is silent to its reader, but not dead: segments state the last byte."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import httpx
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from support.instrumentation.asgi_server import AsgiServer, until
from support.instrumentation.matrix import MODEL, Stack
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_anthropic import AnthropicHelper, AnthropicMessages, event
from support.instrumentation.stack_openai import OpenAIChat
from support.instrumentation.stack_sse import AiohttpLines, HttpxLines
from support.patience import WAIT_S
from support.sse_server import Raw, Reply, SseServer, Step, Wait

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.server.asgi import StreamMiddleware

COMMENT = Raw(b": keep-alive\n\n")


class Alive:
    """A reply of three words, followed by keep-alives until `heard` is set."""

    def __init__(self, stack: Stack, keep_alive: Raw) -> None:
        self.heard = threading.Event()
        self._stack = stack
        self._keep_alive = keep_alive

    def __iter__(self) -> Iterator[Step]:
        yield from (*self._stack.before(), *self._stack.words(3))
        while not self.heard.is_set():
            yield from (Wait(0.02), self._keep_alive)
        yield from self._stack.after()


def last_bytes(recorder: Recorded) -> list[tuple[int, int, int]]:
    """Return of each empty segment that states a byte the newest token, that byte, and its end."""
    found = []
    token_ns = 0
    for segment in recorder.streams()[0].segments if recorder.streams() else ():
        if segment.events:
            token_ns = segment.events[-1].timestamp
        stated = (segment.attributes or {}).get(semconv.SEGMENT_LAST_BYTE)
        assert stated is None or not segment.events
        if isinstance(stated, int):
            found.append((token_ns, stated, segment.end_time or 0))
    return found


def is_alive(recorder: Recorded) -> bool:
    """Return whether a segment says that bytes came after the newest token."""
    found = last_bytes(recorder)
    assert all(byte_ns <= end_ns for _, byte_ns, end_ns in found)
    return any(token_ns and byte_ns > token_ns for token_ns, byte_ns, _ in found)


STACKS = [
    (OpenAIChat(), COMMENT),
    (AnthropicMessages(), event("ping")),
    (AnthropicHelper(), event("ping")),
    (HttpxLines(httpx), COMMENT),
    (HttpxLines(httpx2), COMMENT),
    (AiohttpLines(), COMMENT),
]


@pytest.mark.parametrize(
    ("stack", "keep_alive", "mode"),
    [pytest.param(stack, one, mode, id=f"{stack.name} {mode}") for stack, one in STACKS for mode in stack.modes],
)
def test_a_keep_alive_is_a_byte(
    stack: Stack, keep_alive: Raw, mode: str, server: SseServer, recorder: Recorded
) -> None:
    alive = Alive(stack, keep_alive)
    server.replies[MODEL] = Reply(alive)
    texts: list[str] = []

    def read() -> None:
        with stack.client(server.url) as client, contextlib.closing(stack.open(client)) as stream:
            texts.extend(map(stack.look, stack.items(stream)))

    async def read_async() -> None:
        async with stack.aclient(server.url) as client:
            stream = await stack.aopen(client)
            texts.extend([stack.look(item) async for item in stack.aitems(stream)])
            await stack.aclose(stream)

    reader = threading.Thread(target=read if mode == "sync" else lambda: asyncio.run(read_async()))
    reader.start()
    try:
        until(lambda: is_alive(recorder))
    finally:
        alive.heard.set()
        reader.join(WAIT_S)
    assert sum(map(stack.is_word, texts)) == 3
    assert recorder.stream().outcome == "completed"
    assert recorder.stream().last[semconv.TOKENS] == 3
    assert semconv.SEGMENT_LAST_BYTE not in recorder.stream().last


def test_a_stream_whose_bytes_are_not_seen_states_its_newest_chunk(recorder: Recorded) -> None:
    told = threading.Event()

    def words() -> Iterator[str]:
        yield "one "
        told.wait(WAIT_S)

    reader = threading.Thread(target=lambda: list(otel_llm.track(words(), model="m")))
    reader.start()
    until(lambda: bool(last_bytes(recorder)))
    told.set()
    reader.join(WAIT_S)
    assert all(token_ns == byte_ns for token_ns, byte_ns, _ in last_bytes(recorder))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat"])
def test_a_servers_keep_alives_are_bytes(path: str, recorder: Recorded) -> None:
    heard = threading.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'data: {"choices": [{"index": 0, "delta": {"content": "one "}}]}\n\n'
        while not heard.is_set():
            await asyncio.sleep(0.02)
            yield b": keep-alive\n\n"
        yield b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

    async def answer(_request: Request) -> Response:
        return StreamingResponse(body(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
    with AsgiServer(StreamMiddleware(app, paths=["/chat"])) as server:
        reader = threading.Thread(target=server.post, args=(b'{"model": "m", "stream": true}', path))
        reader.start()
        try:
            until(lambda: is_alive(recorder))
        finally:
            heard.set()
            reader.join(WAIT_S)
    assert recorder.stream().outcome == "completed"
