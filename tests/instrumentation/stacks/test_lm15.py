"""What only lm15, the engine of DSPy, does with a stream; the matrix and `test_http_clients.py` have the rest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import lm15
import pytest
from lm15.providers.openai_chat import OpenAIChatLM
from lm15.transports import StdlibAsyncTransport, StdlibTransport
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation import wire_bodies as bodies
from support.instrumentation.http_clients import CLIENTS, lm15_request
from support.instrumentation.late_loop import an_hour_passes
from support.instrumentation.recorded import Recorded
from support.instrumentation.wire_server import WireServer
from support.patience import WAIT_S
from support.sse_server import Gate

import otel_llm
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.stacks.lm15 import patch


@pytest.fixture
def server() -> Iterator[WireServer]:
    with WireServer(bodies.chat()) as running:
        yield running


class Impatient(socket.socket):
    """A socket that keeps a timeout of 0.1 s: it ignores any other that is set."""

    __slots__ = ()

    def settimeout(self, value: float | None) -> None:
        super().settimeout(0.1)


def waits_in_vain(url: str) -> None:
    """Read the first line, however long it takes, and wait for the rest no longer than lm15 waits."""
    with StdlibTransport() as transport, transport.stream(lm15_request(url)) as response:
        lines = response.iter_lines()
        next(lines)
        [connection] = transport._pool._in_use
        connection.sock.__class__ = Impatient
        connection.sock.settimeout(None)
        list(lines)


def waits_in_vain_async(url: str) -> None:
    async def main() -> None:
        async with (
            StdlibAsyncTransport(read_timeout=WAIT_S) as transport,
            transport.stream(lm15_request(url)) as response,
        ):
            lines = response.aiter_lines()
            await anext(lines)
            an_hour_passes()
            async for _ in lines:
                pass

    asyncio.run(main())


@pytest.mark.parametrize("waits", [waits_in_vain, waits_in_vain_async], ids=["sync", "async"])
def test_a_read_that_takes_too_long_is_an_error(waits: Callable[[str], None], recorder: Recorded) -> None:
    gate = Gate()
    with WireServer([bodies.word(1), gate]) as server:
        with pytest.raises(lm15.transports.ReadTimeout):
            waits(f"{server.url}/v1/chat/completions")
        gate.open()
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("error", 1)


def test_a_provider_is_recorded_once_and_what_is_suppressed_is_not(server: WireServer, recorder: Recorded) -> None:
    model = OpenAIChatLM(api_key="none", base_url=server.url + "/v1", transport=StdlibTransport())
    asked = lm15.Request(model="m", messages=(lm15.Message.user("hello"),))
    with suppress_instrumentation():
        bare = list(model.stream(asked))
    assert recorder.spans() == ()
    assert [type(event) for event in model.stream(asked)] == [type(event) for event in bare]
    stream = recorder.stream()
    assert (stream.outcome, len(stream.times_ns)) == ("completed", 4)


@pytest.mark.parametrize("client", ["lm15", "lm15 async"])
def test_a_stream_is_counted_for_the_package_that_holds_the_copy(
    client: str, server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DSPy needs more packages than a test may: here lm15 itself stands for its copy.
    monkeypatch.setenv("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "otel-llm-lm15")
    otel_llm.instrument(exporter=InMemorySpanExporter())
    patches = patch(lm15.transports.__name__, "dspy")
    try:
        CLIENTS[client].ways["read"](f"{server.url}/v1/chat/completions")
        running = runtime.running()
        assert running is not None
        assert running.stats.snapshot()["begun"] == {"dspy": 1}
    finally:
        patches.undo()
        otel_llm.uninstrument()
