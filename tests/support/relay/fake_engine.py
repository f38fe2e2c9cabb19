"""The fake model behind HTTP: an aiohttp application with vLLM's paths, a pace, and the faults that a test chooses.

async with FakeEngine(FakeModel(prefix="a")) as engine:
    engine.next_fault(Fault("reset", after=3))
    ... engine.url, engine.asked, await engine.step(2)
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from aiohttp import web
from support.patience import WAIT_S
from support.ports import free_ports
from support.relay.fake_model import FakeModel, Json, RefusedError, sse, tokenize

FaultKind = Literal[
    "refuse", "status", "html", "redirect", "empty", "lying_length", "slow_prefill",
    "reset", "end", "abort", "error", "stall", "keep_alive", "malformed", "long_line", "two_finishes", "bad_framing",
    "silent", "endless_page",
]  # fmt: skip
"""What goes wrong with one request.

Before a stream: `refuse` resets the connection unanswered; `status` answers `status` (with Retry-After for 429 and
503); `html` answers 200 and a page, `endless_page` one that does not go on until it is released; `redirect` 307 to
`location`; `empty` 200 and nothing; `lying_length` a Content-Length that is larger than the body; `silent` answers
nothing until it is released. `slow_prefill` sends headers and nothing more until it is released.
Behind `after` chunks of a stream (the role chunk counts; with 0 `reset` comes before the headers): `reset` of the
connection, `end` without a finish, a finish `abort`, an `error` event with `[DONE]`, a `stall` until it is released
(with `burst`, the chunks before it are not paced, so that the reader has a buffer), or one with a comment every
`every_s` (`keep_alive`; 0: in each turn of the loop); a `malformed` or over-`long_line`
among the chunks; `bad_framing`, where the size of an HTTP chunk should stand, none. `two_finishes` sends the finish
chunk twice.
"""

LONG_LINE: Final = (1 << 20) + 100


@dataclass(eq=False)
class Fault:
    """A fault of one request, and its release."""

    kind: FaultKind
    after: int = 0
    status: int = 500
    location: str = "http://127.0.0.1:9/"
    burst: bool = False
    every_s: float = 0.02
    released: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the fault has happened, or the stall begun."""


@dataclass(eq=False)
class EngineRequest:
    """One request as the engine saw it, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    fault: Fault | None = None
    chunks_sent: int = 0
    bytes_sent: int = 0
    """Those of the chunks."""
    finished: bool = False
    closed_by_client: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Json:
        value: Json = json.loads(self.body)
        return value


class FakeEngine:
    """One backend on a port of its own. `rate`: chunks a second of each stream, None: at once.

    With `stepping` a stream's chunk leaves only when `step` says so. `fault_of` chooses a fault by the request, before
    those of `next_fault`. `healthy` False makes `/health` answer 503;
    `probes`: how often it was asked. `kind`: of backend, for the relay's settings. `chat_probes`: how often it was
    asked for a chat of one token from ids, which is not counted elsewhere.
    """

    kind = "vllm"

    def __init__(self, model: FakeModel | None = None, *, rate: float | None = None, stepping: bool = False) -> None:
        self.model = FakeModel() if model is None else model
        self.rate = rate
        self.stepping = stepping
        self.healthy = True
        self.probes = 0
        self.chat_probes = 0
        self.detokenizes = True
        self.asked: list[EngineRequest] = []
        self.fault_of: Callable[[EngineRequest], Fault | None] = lambda asked: None
        self.port = 0
        self._faults: deque[Fault] = deque()
        self._turns: dict[EngineRequest, asyncio.Semaphore] = {}
        self._progress = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def streams(self) -> list[EngineRequest]:
        """The generation requests, in order of their coming."""
        return [asked for asked in self.asked if asked.path.endswith("/completions")]

    def next_fault(self, *faults: Fault) -> None:
        """Let the next generation requests fail so, one after the other."""
        self._faults.extend(faults)

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        app.router.add_post("/v1/embeddings", self._embeddings)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        # Cancelled handlers are how a client that went away is noticed, also while a stream stalls.
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, auto_decompress=False)
        await self._runner.setup()
        assert self._runner.server is not None
        # Of those that no client is given: it is free still when an engine that was stopped starts again.
        self.port = port or free_ports(1)[0]
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._runner.server, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Close the port and every stream."""
        if self._runner is None or self._listener is None:
            return
        runner, self._runner = self._runner, None
        listener, self._listener = self._listener, None
        # asyncio forgets a connection that was accepted just before its server closes (CPython 3.11): it would warn in
        # the garbage of a later test. So nothing more is accepted, what was accepted becomes known, and then it closes.
        for port in listener.sockets:
            asyncio.get_running_loop().remove_reader(port.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        listener.close()
        await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def step(self, count: int = 1, within: float = WAIT_S) -> None:
        """Let each stream in flight send `count` more chunks, and wait until they are written or the stream ended."""
        waited = {asked: asked.chunks_sent + count for asked in self._turns}
        for asked in waited:
            for _ in range(count):
                self._turns[asked].release()

        def there() -> bool:
            return all(
                asked.ended.is_set()
                or asked.chunks_sent >= target
                or (asked.fault is not None and asked.fault.reached.is_set())
                for asked, target in waited.items()
            )

        async with asyncio.timeout(within), self._progress:
            await self._progress.wait_for(there)

    async def wait_for(self, true: Callable[[], bool], within: float = WAIT_S) -> None:
        """Wait until something is true of what was asked or sent."""
        async with asyncio.timeout(within), self._progress:
            await self._progress.wait_for(true)

    async def _changed(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def _ask(self, request: web.Request) -> EngineRequest:
        asked = EngineRequest(request.method, request.path, dict(request.headers), await request.read())
        self.asked.append(asked)
        return asked

    async def _models(self, request: web.Request) -> web.Response:
        await self._ask(request)
        model = {"id": self.model.name, "object": "model", "owned_by": "vllm", "parent": None}
        return web.json_response({"object": "list", "data": [model | {"max_model_len": self.model.max_model_len}]})

    async def _embeddings(self, request: web.Request) -> web.Response:
        await self._ask(request)
        return web.json_response({"object": "list", "data": []})

    async def _health(self, request: web.Request) -> web.Response:
        self.probes += 1
        return web.Response(status=200 if self.healthy else 503)

    async def _tokenize(self, request: web.Request) -> web.Response:
        ids = tokenize((await self._ask(request)).json["prompt"])
        return web.json_response({"count": len(ids), "max_model_len": self.model.max_model_len, "tokens": ids})

    async def _detokenize(self, request: web.Request) -> web.Response:
        asked = await self._ask(request)
        if not self.detokenizes:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(self.model.detokenized(asked.json))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if b'"kv_transfer_params"' in body and b'"stream"' not in body:
            self.chat_probes += 1
            return web.json_response(self.model.whole(json.loads(body)))
        asked = await self._ask(request)
        asked.fault = self.fault_of(asked) or (self._faults.popleft() if self._faults else None)
        self._turns[asked] = asyncio.Semaphore(0)
        try:
            await self._changed()
            return await self._answer(request, asked)
        except (asyncio.CancelledError, ConnectionError):
            asked.closed_by_client = True
            raise
        finally:
            del self._turns[asked]
            asked.ended.set()
            # The handler may be cancelled: the notice is a task of its own.
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._changed()))

    async def _answer(self, request: web.Request, asked: EngineRequest) -> web.StreamResponse:
        fault = asked.fault
        if fault is not None:
            answer = await self._faulty_answer(request, fault)
            if answer is not None:
                return answer
        try:
            body = asked.json
            chunks = self.model.chunks(body)
            first = next(chunks)
        except RefusedError as refused:
            error = {"message": str(refused), "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        if body.get("stream") is not True:
            return web.json_response(self.model.whole(body))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if fault is not None and fault.kind == "slow_prefill":
            fault.reached.set()
            await fault.released.wait()
        await self._stream(request, response, asked, _prepend(first, chunks))
        return response

    async def _faulty_answer(self, request: web.Request, fault: Fault) -> web.StreamResponse | None:
        """Return the answer of a fault that comes before the stream, None if there is none."""
        answer: web.StreamResponse | None = None
        if fault.kind == "refuse" or (fault.kind == "reset" and not fault.after):
            _abort(request)
            answer = web.Response(status=500)  # goes nowhere
        elif fault.kind == "status":
            headers = {"Retry-After": "1"} if fault.status in (429, 503) else {}
            error = {"error": {"message": f"fault <b>{fault.status}</b>", "type": "fault", "code": fault.status}}
            answer = web.json_response(error, status=fault.status, headers=headers)
        elif fault.kind == "silent":
            fault.reached.set()
            await fault.released.wait()
        elif fault.kind == "html":
            answer = web.Response(text="<html><script>alert(1)</script></html>", content_type="text/html")
        elif fault.kind == "endless_page":
            answer = web.StreamResponse(headers={"Content-Type": "text/html"})
            await answer.prepare(request)
            await answer.write(b"<html>")
            fault.reached.set()
            await fault.released.wait()
        elif fault.kind == "redirect":
            answer = web.Response(status=307, headers={"Location": fault.location})
        elif fault.kind == "empty":
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await answer.prepare(request)
        elif fault.kind == "lying_length":
            answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Content-Length": "100000"})
            await answer.prepare(request)
            await answer.write(b": short\n\n")
            _abort(request)
        if answer is not None:
            fault.reached.set()
        return answer

    async def _stream(
        self, request: web.Request, response: web.StreamResponse, asked: EngineRequest, chunks: Iterator[bytes]
    ) -> None:
        fault = asked.fault
        for index, chunk in enumerate(chunks):
            if (
                fault is not None
                and index == fault.after
                and await self._strike(request, response, asked, fault, chunk)
            ):
                return
            paced = fault is None or not fault.burst or index >= fault.after
            if self.stepping and paced:
                await self._turns[asked].acquire()
            elif self.rate is not None and paced and index:
                await asyncio.sleep(1 / self.rate)
            await response.write(chunk)
            asked.chunks_sent += 1
            asked.bytes_sent += len(chunk)
            if fault is not None and fault.kind == "two_finishes" and b'"finish_reason":"' in chunk:
                await response.write(chunk)
                fault.reached.set()
            await self._changed()
        asked.finished = True
        await response.write_eof()

    async def _strike(
        self, request: web.Request, response: web.StreamResponse, asked: EngineRequest, fault: Fault, chunk: bytes
    ) -> bool:
        """Let a fault happen in a stream; return whether the stream ends with it."""
        ends = True
        if fault.kind == "reset":
            _abort(request)
        elif fault.kind == "bad_framing":
            assert request.transport is not None
            request.transport.write(b"no size\r\n")
            fault.reached.set()
            await fault.released.wait()  # it is the other side that has to end this
        elif fault.kind == "end":
            await response.write_eof()
        elif fault.kind == "abort":
            await response.write(_aborted(chunk) + b"data: [DONE]\n\n")
        elif fault.kind == "error":
            error = {"message": "EngineCore <b>died</b>", "type": "InternalServerError", "param": None, "code": 500}
            await response.write(sse({"error": error}) + b"data: [DONE]\n\n")
        else:
            ends = False
            if fault.kind == "malformed":
                await response.write(b'data: {"id": "cut, \xff\n\n')
            elif fault.kind == "long_line":
                await response.write(b"data: " + b"x" * LONG_LINE + b"\n\n")
            elif fault.kind == "keep_alive":
                fault.reached.set()
                while not fault.released.is_set():
                    await response.write(b": keep-alive\n\n")
                    await asyncio.sleep(fault.every_s)
            elif fault.kind == "stall":
                fault.reached.set()
                await self._changed()
                await fault.released.wait()
        if fault.kind != "two_finishes":
            fault.reached.set()
        await self._changed()
        return ends


def _prepend(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        # A reset: a connection that is only closed may have been closed before the request came.
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()


def _aborted(chunk: bytes) -> bytes:
    """Return a chunk of a stream as the last one of an aborted request: no token, and the finish reason `abort`."""
    if b"[DONE]" in chunk:
        return b""
    event: Json = json.loads(chunk.removeprefix(b"data: "))
    for choice in event["choices"]:
        choice["finish_reason"] = "abort"
        if choice.get("token_ids"):
            choice["token_ids"] = []
        if "text" in choice:
            choice["text"] = ""
        else:
            choice["delta"] = {"content": ""}
    return sse(event)
