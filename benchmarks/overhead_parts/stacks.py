"""The stacks that are measured: how a reply is read in each, with what is instrumented and without."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from overhead_parts import wires

Read = Callable[[], None] | Callable[[], Awaitable[None]]
URL = "http://model.test/v1"
QUESTION: Any = [{"role": "user", "content": "hello"}]


@dataclass(frozen=True)
class Source:
    """Where replies come from: an HTTP server, or, where there is none, `parts` by a transport in this process."""

    parts: list[bytes]
    url: str = URL
    served: bool = False
    pace_s: float = 0.0
    """Before each part, if they come from memory and are read by a coroutine."""


@dataclass(frozen=True)
class Stack:
    """One stack: `reader(source, mode)` returns how to read a reply; (bare, instrumented) if these differ."""

    name: str
    wire: Callable[[int], list[bytes]]
    needs: tuple[str, ...]
    """Modules, with the major version of their package if that matters."""
    reader: Callable[[Source, str], Read | tuple[Read, Read]]
    modes: tuple[str, ...] = ("sync", "async")
    served: bool = False
    """A server in another process even if CPU is measured."""
    chunks: int = 1000


def _http(source: Source, mode: str, package: str = "httpx2") -> Any:
    """Return an HTTP client; without a server, each part is one network read from memory."""
    http = importlib.import_module(package)
    if source.served:
        return http.Client() if mode == "sync" else http.AsyncClient()
    headers = {"content-type": "text/event-stream"}

    class Body(http.SyncByteStream):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Iterator[bytes]:
            yield from source.parts

    class AsyncBody(http.AsyncByteStream):  # type: ignore[misc,name-defined]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for part in source.parts:
                if source.pace_s:
                    await asyncio.sleep(source.pace_s)
                yield part

    class Transport(http.BaseTransport):  # type: ignore[misc,name-defined]
        def handle_request(self, request: Any) -> Any:  # noqa: ARG002
            return http.Response(200, headers=headers, stream=Body())

    class AsyncTransport(http.AsyncBaseTransport):  # type: ignore[misc,name-defined]
        async def handle_async_request(self, request: Any) -> Any:  # noqa: ARG002
            return http.Response(200, headers=headers, stream=AsyncBody())

    if mode == "sync":
        return http.Client(transport=Transport())
    return http.AsyncClient(transport=AsyncTransport())


def _sdk_reader(calls: Any, name: str, mode: str, **question: Any) -> Read:
    """Return how to read the stream that the method `name` makes, looked up each time: it may be hooked by then."""

    def read() -> None:
        for _ in getattr(calls, name)(**question, stream=True):
            pass

    async def read_async() -> None:
        async for _ in await getattr(calls, name)(**question, stream=True):
            pass

    return read if mode == "sync" else read_async


def _openai(source: Source, mode: str) -> Any:
    import openai

    made = openai.OpenAI if mode == "sync" else openai.AsyncOpenAI
    package = "httpx2" if int(openai.__version__.partition(".")[0]) >= 3 else "httpx"  # litellm keeps openai at 2.x
    return made(base_url=source.url, api_key="none", http_client=_http(source, mode, package))


def openai_chat(source: Source, mode: str) -> Read:
    calls = _openai(source, mode).chat.completions
    return _sdk_reader(calls, "create", mode, model="m", messages=QUESTION, stream_options={"include_usage": True})


def openai_responses(source: Source, mode: str) -> Read:
    return _sdk_reader(_openai(source, mode).responses, "create", mode, model="m", input="hello")


def anthropic(source: Source, mode: str) -> Read:
    import anthropic

    made = anthropic.Anthropic if mode == "sync" else anthropic.AsyncAnthropic
    client = made(base_url=source.url, api_key="none", http_client=_http(source, mode))
    return _sdk_reader(client.messages, "create", mode, model="m", max_tokens=100, messages=QUESTION)


def litellm(source: Source, mode: str) -> Read:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # or its import asks the network
    import litellm

    litellm.suppress_debug_info = True
    question = {"model": "openai/m", "messages": QUESTION, "api_base": source.url, "api_key": "none"}
    name = "completion" if mode == "sync" else "acompletion"
    return _sdk_reader(litellm, name, mode, **question, client=_openai(source, mode))


def _raw(package: str) -> Callable[[Source, str], Read]:
    def reader(source: Source, mode: str) -> Read:
        client = _http(source, mode, package)
        url, question = f"{source.url}/chat/completions", {"model": "m", "messages": QUESTION, "stream": True}

        def read() -> None:
            with client.stream("POST", url, json=question) as response:
                for _ in response.iter_lines():
                    pass

        async def read_async() -> None:
            async with client.stream("POST", url, json=question) as response:
                async for _ in response.aiter_lines():
                    pass

        return read if mode == "sync" else read_async

    return reader


def aiohttp(source: Source, mode: str) -> Read:  # noqa: ARG001
    import aiohttp

    url, question = f"{source.url}/chat/completions", {"model": "m", "messages": QUESTION, "stream": True}

    async def read() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=question) as response:
            async for _ in response.content:
                pass

    return read


def requests(source: Source, mode: str) -> Read:  # noqa: ARG001
    import requests

    session = requests.Session()
    url, question = f"{source.url}/chat/completions", {"model": "m", "messages": QUESTION, "stream": True}

    def read() -> None:
        with session.post(url, json=question, stream=True) as response:
            for _ in response.iter_lines():
                pass

    return read


def urllib3(source: Source, mode: str) -> Read:  # noqa: ARG001
    import urllib3

    pool = urllib3.PoolManager()
    url, question = f"{source.url}/chat/completions", {"model": "m", "messages": QUESTION, "stream": True}

    def read() -> None:
        with pool.request("POST", url, json=question, preload_content=False) as response:
            for _ in response.stream():
                pass

    return read


def lm15(source: Source, mode: str) -> Read:
    from lm15.transports import StdlibAsyncTransport, StdlibTransport, TransportRequest

    transport: Any = StdlibTransport() if mode == "sync" else StdlibAsyncTransport()
    body = json.dumps({"model": "m", "messages": QUESTION, "stream": True}).encode()

    def request() -> Any:
        return TransportRequest("POST", f"{source.url}/chat/completions", [], body)

    def read() -> None:
        with transport.stream(request()) as response:
            for _ in response.iter_lines():
                pass

    async def read_async() -> None:
        async with transport.stream(request()) as response:
            async for _ in response.aiter_lines():
                pass

    return read if mode == "sync" else read_async


def bedrock(source: Source, mode: str) -> Read:  # noqa: ARG001
    import botocore.session
    from botocore.awsrequest import AWSResponse

    access = {"aws_access_key_id": "a", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = botocore.session.Session().create_client("bedrock-runtime", endpoint_url=source.url, **access)

    question = [{"role": "user", "content": [{"text": "hello"}]}]

    class Body:
        def stream(self) -> Iterator[bytes]:
            yield from source.parts

    if not source.served:  # the way of botocore's own stubs
        client.meta.events.register(
            "before-send.bedrock-runtime", lambda request, **_: AWSResponse(request.url, 200, {}, Body())
        )

    def read() -> None:
        for _ in client.converse_stream(modelId="m", messages=question)["stream"]:
            pass

    return read


def asgi(source: Source, mode: str) -> tuple[Read, Read]:  # noqa: ARG001
    from otel_llm.instrumentation.asgi import StreamMiddleware

    path, headers = "/v1/chat/completions", [(b"content-type", b"application/json")]
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
    }
    scope |= {"http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0"}, "headers": headers}
    scope |= {"server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}
    question = b'{"model": "m", "messages": [], "stream": true}'

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        await receive()
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in source.parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def receive() -> Any:
        return {"type": "http.request", "body": question, "more_body": False}

    async def send(message: Any) -> None:
        pass

    def through(served: Any) -> Callable[[], Awaitable[None]]:
        async def read() -> None:
            await served(dict(scope), receive, send)

        return read

    return through(app), through(StreamMiddleware(app))


def track(source: Source, mode: str) -> tuple[Read, Read]:
    import otel_llm

    words = [{"text": part} for part in source.parts]

    async def later() -> AsyncIterator[Any]:
        for word in words:
            yield word

    def bare() -> None:
        for _ in iter(words):
            pass

    def tracked() -> None:
        for _ in otel_llm.track(iter(words), model="m"):
            pass

    async def bare_async() -> None:
        async for _ in later():
            pass

    async def tracked_async() -> None:
        async for _ in otel_llm.track(later(), model="m"):
            pass

    return (bare, tracked) if mode == "sync" else (bare_async, tracked_async)


SYNC = ("sync",)
HTTP_CLIENT = "otel_llm.instrumentation.stacks.http_client"
STACKS = {
    stack.name: stack
    for stack in (
        Stack("openai chat", wires.chat, ("openai>=3",), openai_chat),
        Stack("openai responses", wires.responses, ("openai>=3",), openai_responses),
        Stack("anthropic", wires.messages, ("anthropic", "otel_llm.instrumentation.stacks.anthropic"), anthropic),
        Stack("httpx SSE", wires.chat, ("httpx", "otel_llm.instrumentation.stacks.httpx"), _raw("httpx")),
        Stack("httpx2 SSE", wires.chat, ("httpx2", "otel_llm.instrumentation.stacks.httpx"), _raw("httpx2")),
        Stack(
            "aiohttp SSE",
            wires.chat,
            ("aiohttp", "otel_llm.instrumentation.stacks.aiohttp"),
            aiohttp,
            ("async",),
            served=True,
        ),
        Stack("requests SSE", wires.chat, ("requests", HTTP_CLIENT), requests, SYNC, served=True),
        Stack("urllib3 SSE", wires.chat, ("urllib3>=2", HTTP_CLIENT), urllib3, SYNC, served=True),
        Stack("lm15", wires.chat, ("lm15", "otel_llm.instrumentation.stacks.lm15"), lm15, served=True),
        Stack("bedrock", wires.converse, ("botocore", "otel_llm.instrumentation.stacks.botocore"), bedrock, SYNC),
        Stack("litellm", wires.chat, ("litellm", "otel_llm.instrumentation.stacks.litellm"), litellm, chunks=200),
        Stack("ASGI middleware", wires.chat, ("otel_llm.instrumentation.asgi",), asgi, ("async",)),
        Stack("track()", wires.chat, ("otel_llm",), track),
    )
}


def once(read: Read, loop: asyncio.AbstractEventLoop, together: int = 1) -> None:
    """Read one reply to its end, or several at the same time."""
    if (waiting := read()) is not None:
        loop.run_until_complete(_all([waiting, *(read() for _ in range(together - 1))]))


async def _all(waiting: list[Awaitable[None] | None]) -> None:
    await asyncio.gather(*(one for one in waiting if one is not None))
