"""Streams over the real lm15, the engine of DSPy: its transports, sync and async, and a provider above them."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable, Iterator
from typing import Any

import lm15
import pytest
from lm15.providers.openai_chat import OpenAIChatLM
from lm15.transports import StdlibAsyncTransport, StdlibTransport, TransportRequest
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.late_loop import an_hour_passes
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.wire_server import EVENT_STREAM, WireServer
from support.patience import WAIT_S
from support.sse_server import Gate

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.stacks.lm15 import patch

CHAT = "/v1/chat/completions"
BODY = b'{"model": "m", "messages": [], "stream": true}'


def request(url: str, **more: Any) -> TransportRequest:
    return TransportRequest("POST", url + CHAT, [("Content-Type", "application/json")], BODY, **more)


def ask(url: str, read: str, **more: Any) -> list[bytes]:
    with StdlibTransport() as transport, transport.stream(request(url, **more)) as response:
        if read == "read":
            return [response.read()]
        return list(response if read == "pieces" else response.iter_lines())


def ask_async(url: str, read: str, **more: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        async with StdlibAsyncTransport() as transport, transport.stream(request(url, **more)) as response:
            if read == "read":
                return [await response.read()]
            return [item async for item in (response if read == "pieces" else response.aiter_lines())]

    return asyncio.run(main())


both = pytest.mark.parametrize("ask", [ask, ask_async], ids=["sync", "async"])


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(bodies.chat()) as running:
        yield running


@both
@pytest.mark.parametrize("read", ["pieces", "lines", "read"])
def test_every_way_of_reading_gives_what_it_gave_and_is_recorded(
    read: str, ask: Callable[..., list[bytes]], server: WireServer
) -> None:
    bare = b"".join(ask(server.url, read))
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, slo_class="voice")
    try:
        assert b"".join(ask(server.url, read)) == bare
        recorded = Recorded(exporter)
        stream = recorded.stream()
        [span] = recorded.requests()
    finally:
        otel_llm.uninstrument()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 4, 4)
    assert (span.attributes or {})[semconv.SERVER_PORT] == int(server.url.rpartition(":")[2])
    trace_id, span_id = ids(span.context)
    without, sent = (request.headers for request in server.requests)
    assert (sent["traceparent"], sent["x-slo-class"]) == (f"00-{trace_id:032x}-{span_id:016x}-01", "voice")
    assert "traceparent" not in without


@both
@pytest.mark.parametrize(
    ("pieces", "status", "outcome"),
    [
        ([bodies.word(1)], 200, "disconnected"),
        ([bodies.word(1), b'data: {"error": {"code": 503}}\n\n'], 200, "error"),
        ([b"{}"], 503, "error"),
    ],
)
def test_how_a_reply_ends(
    pieces: list[bytes], status: int, outcome: str, ask: Callable[..., list[bytes]], recorder: Recorded
) -> None:
    with WireServer(pieces, EVENT_STREAM, status) as server:
        ask(server.url, "lines")
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == (outcome, 1 if status == 200 else 0)


class Impatient(socket.socket):
    """A socket that keeps a timeout of 0.1 s: it ignores any other that is set."""

    __slots__ = ()

    def settimeout(self, value: float | None) -> None:
        super().settimeout(0.1)


def waits_in_vain(url: str) -> None:
    """Read the first line, however long it takes, and wait for the rest no longer than lm15 waits."""
    with StdlibTransport() as transport, transport.stream(request(url)) as response:
        lines = response.iter_lines()
        next(lines)
        [connection] = transport._pool._in_use
        connection.sock.__class__ = Impatient
        connection.sock.settimeout(None)
        list(lines)


def waits_in_vain_async(url: str) -> None:
    async def main() -> None:
        async with StdlibAsyncTransport(read_timeout=WAIT_S) as transport, transport.stream(request(url)) as response:
            lines = response.aiter_lines()
            await anext(lines)
            an_hour_passes()
            async for _ in lines:
                pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("ask", "waits"), [(ask, waits_in_vain), (ask_async, waits_in_vain_async)], ids=["sync", "async"]
)
def test_a_read_that_takes_too_long_and_a_server_that_is_not_there(
    ask: Callable[..., list[bytes]], waits: Callable[[str], None], recorder: Recorded
) -> None:
    gate = Gate()
    with WireServer([bodies.word(1), gate]) as server:
        with pytest.raises(lm15.transports.ReadTimeout):
            waits(server.url)
        gate.open()
    with pytest.raises(lm15.transports.ConnectError):
        ask(server.url, "lines")
    outcomes = [(stream.outcome, len(stream.times_ns)) for stream in recorder.streams()]
    assert outcomes == [("error", 1), ("disconnected", 0)]


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize("way", ["close", "leave"])
def test_a_reader_that_leaves(way: str, recorder: Recorded) -> None:
    gate = Gate()
    with WireServer([bodies.word(1), gate]) as server, StdlibTransport() as transport:
        response = transport.stream(request(server.url))
        loop = iter(response)
        next(loop)
        if way == "close":
            response.close()
        else:
            del loop
        gc.collect()
        stream = recorder.stream()
        gate.open()
    assert (stream.outcome, len(stream.times_ns)) == ("cancelled", 1)


def test_an_async_reader_that_is_cancelled(recorder: Recorded) -> None:
    gate = Gate()

    async def main(url: str) -> None:
        async with StdlibAsyncTransport() as transport, transport.stream(request(url)) as response:
            async for _ in response:
                asyncio.get_running_loop().call_later(0.1, asyncio.current_task().cancel)  # type: ignore[union-attr]

    with WireServer([bodies.word(1), gate]) as server:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main(server.url))
        gate.open()
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("cancelled", 1)


def test_a_provider_is_recorded_once_and_what_is_suppressed_is_not(server: WireServer, recorder: Recorded) -> None:
    model = OpenAIChatLM(api_key="none", base_url=server.url + "/v1", transport=StdlibTransport())
    asked = lm15.Request(model="m", messages=(lm15.Message.user("hello"),))
    with suppress_instrumentation():
        bare = list(model.stream(asked))
    assert recorder.spans() == ()
    assert [type(event) for event in model.stream(asked)] == [type(event) for event in bare]
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)


def test_uninstrumenting_leaves_the_bare_library() -> None:
    before = StdlibTransport.stream, StdlibAsyncTransport._do_stream
    otel_llm.instrument(exporter=InMemorySpanExporter())
    assert StdlibTransport.stream is not before[0]
    otel_llm.uninstrument()
    assert (StdlibTransport.stream, StdlibAsyncTransport._do_stream) == before


@both
def test_a_stream_is_counted_for_the_package_that_holds_the_copy(
    ask: Callable[..., list[bytes]], server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DSPy needs more packages than a test may: here lm15 itself stands for its copy.
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "otel-llm-lm15")
    otel_llm.instrument(exporter=InMemorySpanExporter())
    patches = patch(lm15.transports.__name__, "dspy")
    try:
        ask(server.url, "read")
        running = runtime.running()
        assert running is not None
        assert running.tally.snapshot()["begun"] == {"dspy": 1}
    finally:
        patches.undo()
        otel_llm.uninstrument()
