"""A backend and its clients on bare asyncio: as little work a chunk as can be, so that what is measured is the relay.

Every chunk has the shape of vLLM's and carries the instant of its writing (monotonic ns) as its text. How fast a reply
comes stands in the prompt's text: every proxy passes that on, and some no header of the client's.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import httptools

MODEL: Final = "bench"
KEY: Final = "sk-bench"
"""The key that clients send: LiteLLM is to have one in production. The others pass it on."""
SENT: Final = re.compile(rb'"content": ?"(\d+)"')
PACE: Final = re.compile(rb"at ([\d.]+) tokens a second")
IDS: Final = re.compile(rb"with (\d+) prompt ids")
FINISH: Final = re.compile(rb'"finish_reason": ?"')
ERROR: Final = re.compile(rb'"error": ?[{"]')
PROMPT_IDS: Final = b"[1,2,3,4,5,6,7,8]"
FAIL_AFTER: Final = 20
"""Tokens before a fault in mid-stream."""
TOO_LONG: Final = "it took too long"
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
ABOUT: Final = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "max_model_len": 100_000}],
    "model_path": MODEL,  # from here on what routers ask for
    "served_model_name": MODEL,
    "is_generation": True,
    "tp_size": 1,
}
CHUNK: Final = b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795581346,'
DONE: Final = b"data: [DONE]"


def role_event(prompt_ids: bytes | None) -> bytes:
    """Return the first event of a chat; `prompt_ids`: JSON, None if the request did not ask for ids."""
    return (
        CHUNK + b'"model":"bench","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}],"prompt_token_ids":%b,"prompt_text":null}\n\n' % (prompt_ids or b"null")
    )


def token_event(number: int, *, ids: bool) -> bytes:
    """Return the event of one token, whose text is the instant of the call."""
    return (
        CHUNK + b'"model":"bench","choices":[{"index":0,"delta":{"content":"%d"},"logprobs":null,"finish_reason":null,'
        b'"token_ids":%b}]}\n\n' % (time.monotonic_ns(), b"[%d]" % number if ids else b"null")
    )


def last_events(*, ids: bool, usage: tuple[int, int] | None = None) -> bytes:
    """Return the event that finishes a reply, its usage if it was asked for, and the end of the stream.

    `usage`: tokens of the prompt and of the reply.
    """
    used = b""
    if usage is not None:
        told = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (usage[0], sum(usage), usage[1])
        used = CHUNK + b'"model":"bench","choices":[],"usage":%b}\n\n' % told
    return (
        CHUNK + b'"model":"bench","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop",'
        b'"stop_reason":null,"token_ids":%b}]}\n\n%b%b\n\n' % (b"[2]" if ids else b"null", used, DONE)
    )


def framed(data: bytes) -> bytes:
    """Return bytes as one chunk of HTTP's chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(slots=True)
class Server:
    """What one backend is to do, and what it sees.

    `faults`: those of the next chats: `end` without a finish, `reset`, an `error` event, `status` 503. While `goes_on`
    is not set it writes nothing. `resumed_ns`: when it was asked to continue a reply; `last_ns`: when it wrote last.
    """

    faults: list[str] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    resumed_ns: list[int] = field(default_factory=list)
    last_ns: int = 0
    resumed_pace: float = 0.0
    """The pace of replies that it continues, whose prompts name none."""
    serving: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer chats as `serve` does."""
        await serve(reader, writer, self)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Server | None = None) -> None:
    """Answer chats with as many tokens as they ask for, at the pace that the prompt names; 0: as they are taken."""
    try:
        while (asked := await request(reader, writer)) is not None:
            pace = float((PACE.search(asked) or (b"", b"0"))[1])
            if server is None:
                await answer(writer, json.loads(asked), pace, int((IDS.search(asked) or (b"", b"0"))[1]))
                continue
            server.serving += 1
            try:
                await _answer_faulty(writer, json.loads(asked), pace, server)
            finally:
                server.serving -= 1
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, served: dict[str, int] | None = None
) -> bytes | None:
    """Return the body of the next chat on a connection, None at its end; what is no chat is answered here.

    `served`: what `GET` answers beside what the engine is. Raises ConnectionError and IncompleteReadError if the
    other side is gone.
    """
    while (line := await reader.readline()) not in (b"", b"\r\n"):
        length = 0
        while (header := await reader.readline()) not in (b"", b"\r\n"):
            name, _, value = header.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value)
        body = await reader.readexactly(length)
        if b"/v1/traces" in line:  # what the relay records is taken, and not looked at
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")
        elif line.startswith(b"POST") and b"/completions " in line:
            return body
        elif line.startswith(b"POST"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        else:
            about = json.dumps({**ABOUT, **(served or {})}).encode()
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(about)
            writer.write(head + (b"" if line.startswith(b"HEAD") else about))
    return None


async def _answer_faulty(writer: asyncio.StreamWriter, asked: dict[str, Any], pace: float, server: Server) -> None:
    resumes = "prompt" in asked
    if resumes:
        server.resumed_ns.append(time.monotonic_ns())
        pace = server.resumed_pace
    fault = "" if resumes or not server.faults else server.faults.pop()
    if fault == "status":
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
        return
    loop, ids = asyncio.get_running_loop(), asked.get("return_token_ids") is True
    writer.write(HEAD + framed(role_event(PROMPT_IDS if ids else None)))
    tokens = asked.get("max_completion_tokens") or asked["max_tokens"]
    due_s = loop.time()
    for number in range(tokens):
        if fault and number == FAIL_AFTER:
            if fault == "reset":
                writer.transport.abort()
                raise ConnectionResetError
            if fault == "error":
                writer.write(
                    framed(b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n')
                )
            writer.write(b"0\r\n\r\n")
            return
        if pace:
            due_s += 1 / pace
            await asyncio.sleep(max(0.0, due_s - loop.time()))
        if not server.goes_on.is_set():
            await server.goes_on.wait()
        if writer.transport.is_closing():
            raise ConnectionResetError
        server.last_ns = time.monotonic_ns()
        writer.write(framed(token_event(10 + number % 1000, ids=ids)))
    writer.write(framed(last_events(ids=ids)) + b"0\r\n\r\n")
    await writer.drain()


async def post(port: int, path: str) -> None:
    """Post an empty object to a port of this machine; raises RuntimeError unless the answer is 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: 2\r\n\r\n{{}}".encode())
    answered = await reader.read()
    writer.close()
    if b" 200 " not in answered.partition(b"\r\n")[0]:
        raise RuntimeError(f"{path}: {answered[:200]!r}")


async def answer(writer: asyncio.StreamWriter, asked: dict[str, Any], pace: float, prompt: int = 0) -> None:
    loop = asyncio.get_running_loop()
    ids = asked.get("return_token_ids") is True
    of_prompt = b"[%b]" % b",".join([b"100000"] * prompt) if prompt else PROMPT_IDS
    writer.write(HEAD + framed(role_event(of_prompt if ids else None)))
    tokens, due_s = asked.get("max_completion_tokens") or asked["max_tokens"], loop.time()
    for number in range(tokens):
        if pace:
            due_s += 1 / pace
            await asyncio.sleep(max(0.0, due_s - loop.time()))
        elif number % 16 == 0:
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(framed(token_event(10 + number % 1000, ids=ids)))
    usage = (8, tokens) if (asked.get("stream_options") or {}).get("include_usage") else None
    writer.write(framed(last_events(ids=ids, usage=usage)) + b"0\r\n\r\n")
    await writer.drain()


@dataclass(slots=True)
class Reply:
    """What a client saw of one reply; instants are monotonic ns."""

    tokens: int
    """How many were asked for."""
    begun_ns: int = 0
    """When the request was written."""
    sent_ns: array[int] = field(default_factory=lambda: array("q"))
    """When the backend wrote each token."""
    read_ns: array[int] = field(default_factory=lambda: array("q"))
    """When the client read it."""
    ended_ns: int = 0
    finish: bool = False
    """Whether a finish reason came."""
    error: bool = False
    """Whether an error event came."""
    done: bool = False
    """Whether the end of the stream, and of the HTTP message, came."""
    trouble: str = ""

    @property
    def whole(self) -> bool:
        """Tell whether every token came, once and in order, and the end."""
        return self.done and len(self.sent_ns) == self.tokens and all(a < b for a, b in pairwise(self.sent_ns))


class Client(asyncio.Protocol):
    """One request and its reply on a connection of its own; `over` is done when the reply is, for better or worse."""

    def __init__(self, request: bytes, tokens: int) -> None:
        self.request = request
        self.reply = Reply(tokens)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parser: Any = httptools.HttpResponseParser(self)
        self.transport: Any = None
        self.now_ns = 0
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.reply.begun_ns = time.monotonic_ns()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.now_ns = time.monotonic_ns()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.end(f"no HTTP: {error}")

    def on_body(self, body: bytes) -> None:
        reply = self.reply
        text = self.rest + body
        cut = text.rfind(b"\n") + 1
        self.rest = text[cut:]
        for sent in SENT.findall(text, 0, cut):
            reply.sent_ns.append(int(sent))
            reply.read_ns.append(self.now_ns)
        if text.find(DONE, 0, cut) >= 0:
            reply.done = True
        reply.finish = reply.finish or FINISH.search(text, 0, cut) is not None
        reply.error = reply.error or ERROR.search(text, 0, cut) is not None

    def on_message_complete(self) -> None:
        status = self.parser.get_status_code()
        self.end("" if status == 200 else f"{status} {self.rest[:200].decode(errors='replace')}")

    def connection_lost(self, _exc: Exception | None) -> None:
        self.end("the connection ended")

    def end(self, trouble: str) -> None:
        """End the reply; the first end counts."""
        if not self.over.done():
            self.reply.ended_ns = time.monotonic_ns()
            self.reply.trouble = trouble
            self.reply.done = self.reply.done and not trouble
            self.over.set_result(None)
            self.transport.close()


def chat(tokens: int, prompt: str, headers: str = "") -> bytes:
    """Return the bytes of a streamed chat request; `headers`: whole lines."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "stream": True,
        "temperature": 0,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": prompt}],
    }
    body = json.dumps(asked).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n{headers}"
    return f"{head}authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def read(port: int, request: bytes, tokens: int) -> Reply:
    """Send a request and read its reply to the end; what goes wrong stands in the reply."""
    try:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: Client(request, tokens), "127.0.0.1", port)
    except OSError as error:
        now_ns = time.monotonic_ns()
        return Reply(tokens, begun_ns=now_ns, ended_ns=now_ns, trouble=str(error))
    try:
        await client.over
    except asyncio.CancelledError:
        client.end(TOO_LONG)
    return client.reply
