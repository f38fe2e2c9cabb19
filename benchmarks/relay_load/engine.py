"""A backend and its clients on bare asyncio: as little work a chunk as can be, so that what is measured is the relay.

Every chunk has the shape of vLLM's and carries the instant of its writing (monotonic ns) as its text.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

MODEL = "bench"
SENT = re.compile(rb'"content":"(\d+)"')
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(number: int) -> bytes:
    text = time.monotonic_ns()
    return (
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795581346,'
        b'"model":"bench","choices":[{"index":0,"delta":{"content":"%d"},"logprobs":null,"finish_reason":null,"token_ids":[%d]}]}\n\n'
        % (text, number)
    )


ROLE = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795581346,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"prompt_token_ids":[1,2,3,4,5,6,7,8],"prompt_text":null}\n\n'
)
LAST = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795581346,"model":"bench",'
    b'"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null,'
    b'"token_ids":[2]}]}\n\ndata: [DONE]\n\n'
)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer chats with as many tokens as they ask for, `x-pace` a second; 0: as fast as they are taken."""
    try:
        while (line := await reader.readline()) not in (b"", b"\r\n"):
            headers: dict[str, str] = {}
            while (header := await reader.readline()) not in (b"", b"\r\n"):
                name, _, value = header.decode().partition(":")
                headers[name.strip().lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if b"/v1/traces" in line:  # what the relay records is taken, and not looked at
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
                continue
            if not line.startswith(b"POST"):
                found = json.dumps({"object": "list", "data": [{"id": MODEL, "max_model_len": 100_000}]}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(found)
                )
                writer.write(found)
                continue
            await answer(writer, json.loads(body), float(headers.get("x-pace", "0")))
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def answer(writer: asyncio.StreamWriter, asked: dict[str, Any], pace: float) -> None:
    loop = asyncio.get_running_loop()
    writer.write(HEAD + framed(ROLE))
    due_s = loop.time()
    for number in range(asked["max_tokens"]):
        if pace:
            due_s += 1 / pace
            await asyncio.sleep(max(0.0, due_s - loop.time()))
        elif number % 16 == 0:
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(framed(chunk(10 + number % 1000)))
    writer.write(framed(LAST) + b"0\r\n\r\n")
    await writer.drain()


@dataclass(slots=True)
class Seen:
    """What clients saw.

    `first_us`: from a request's writing to the reading of its first token; `later_us`: from the backend's writing of a
    token to the client's reading, of all but the first.
    """

    first_us: list[float] = field(default_factory=list)
    later_us: list[float] = field(default_factory=list)
    whole: int = 0

    @property
    def chunks(self) -> int:
        return len(self.first_us) + len(self.later_us)


async def read(port: int, tokens: int, pace: float, seen: Seen, *, ids: bool) -> None:
    """Read one reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked: dict[str, Any] = {
        "model": MODEL,
        "stream": True,
        "temperature": 0,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": "a prompt of some words"}],
    }
    if ids:
        asked["return_token_ids"] = True
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nx-pace: {pace}\r\n"
    begun_ns = time.monotonic_ns()
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
    tail, first = b"", True
    while data := await reader.read(2**16):
        now_ns = time.monotonic_ns()
        text = tail + data
        cut = text.rfind(b"\n\n") + 2 if b"\n\n" in text else 0
        text, tail = text[:cut], text[cut:]
        for sent in SENT.findall(text):
            if first:
                seen.first_us.append((now_ns - begun_ns) / 1e3)
            else:
                seen.later_us.append((now_ns - int(sent)) / 1e3)
            first = False
        if b"data: [DONE]" in text:
            seen.whole += 1
            break
    writer.close()
