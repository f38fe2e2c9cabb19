"""LiteLLM, if it is installed: each way that a stream ends, bare and recorded, and nothing recorded twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from typing import Any, ClassVar

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.commands import wait_until
from support.instrumentation import matrix, wire_bodies
from support.instrumentation.matrix import CASES, HOLDS, MODEL
from support.instrumentation.recorded import Recorded, ids
from support.instrumentation.stack_sse import RawChat
from support.instrumentation.wire_server import WireServer
from support.logs import ours
from support.patience import WAIT_S
from support.requirements import require
from support.sse_server import SseServer

import otel_llm
from otel_llm import semconv

UNCLOSED = frozenset(
    {"close, sync", "break, sync", "cancel, sync", "with, sync", "with, async", "caller, sync", "caller, async"}
)
"""What a stream of litellm before 1.108 cannot be done to: it is no context manager, and a sync one has no `close`."""


class LiteLLM(RawChat):
    """`litellm.completion(stream=True)`."""

    name = "litellm"
    # `iter(stream)` is the stream: that a loop over it was left is not seen until the stream is closed or dropped.
    # A connection that breaks, or a body that ends early, is the same error of litellm's to its caller as a server that
    # fails.
    outcomes: ClassVar[dict[str, str]] = {
        "gc": "abandoned",
        "caller, no with": "abandoned",
        "cut": "error",
        "unfinished": "error",
    }

    def why_not(self, case: str, mode: str) -> str | None:
        """Return why there is no such case in the litellm that is installed, None if there is."""
        from litellm import CustomStreamWrapper

        if hasattr(CustomStreamWrapper, "close") or f"{case}, {mode}" not in UNCLOSED:
            return None
        return f"this litellm has no close: {version('litellm')}"

    def ask(self, url: str) -> dict[str, Any]:
        return {
            "model": f"openai/{MODEL}",
            "messages": [{"role": "user", "content": "?"}],
            "stream": True,
            "api_base": url,
            "api_key": "none",
            "num_retries": 0,
            "max_retries": 0,
        }

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        yield url

    def open(self, client: Any) -> Any:
        import litellm

        return litellm.completion(**self.ask(client))

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        yield url

    async def aopen(self, client: Any) -> Any:
        import litellm

        return await litellm.acompletion(**self.ask(client))

    async def aclose(self, stream: Any) -> None:
        await stream.aclose()

    def pulls(self, stream: Any) -> Iterator[Any]:
        return iter(stream)

    def apulls(self, stream: Any) -> AsyncIterator[Any]:
        return aiter(stream)

    def look(self, item: Any) -> str:
        return str(item.model_dump_json(exclude={"created"}))

    def closed(self, stream: Any) -> object:
        return getattr(stream, "_closed", None)


# Its own and pydantic's deprecations, and the sockets that it leaves to the garbage collector, bare as well.
pytestmark = pytest.mark.filterwarnings("ignore")

STACK = LiteLLM()
MODES = ("sync", "async")
QUESTION: dict[str, Any] = {
    "model": "openai/m",
    "messages": [{"role": "user", "content": "?"}],
    "stream": True,
    "api_key": "none",
}


def until_dropped(recorded: Recorded) -> None:
    """Wait until litellm's own threads, which log what it gave, let go of a stream that the caller dropped."""

    def all_ended() -> bool:
        gc.collect()
        return all(stream.outcome is not None for stream in recorded.streams())

    wait_until("streams have ended", all_ended)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    require("litellm")
    # Imported here, so that the rest of the suite never sees it; it would ask the network for its prices.
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    monkeypatch.setattr(litellm, "suppress_debug_info", True)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", list(CASES))
def test_a_stream_ends_once_as_it_did_and_the_caller_sees_the_bare_library(
    name: str, mode: str, server: SseServer, caplog: pytest.LogCaptureFixture
) -> None:
    if reason := STACK.why_not(name, mode):
        pytest.skip(reason)
    outcome = matrix.expected(STACK, name, mode)
    gated = name == "end"
    matrix.ends_as_bare(STACK, CASES[name], mode, server, outcome=outcome, gated=gated, dropped=until_dropped)
    assert ours(caplog) == []


@pytest.mark.parametrize("mode", MODES)
def test_what_the_caller_does_not_read_is_not_read(mode: str, server: SseServer) -> None:
    bare = matrix.play(STACK, HOLDS, mode, server)
    with matrix.instrumented(STACK, exporter=InMemorySpanExporter()):
        assert matrix.play(STACK, HOLDS, mode, server) == bare


@pytest.mark.parametrize("mode", MODES)
def test_one_request_is_recorded_once_and_its_trace_reaches_the_server(mode: str) -> None:
    import litellm

    async def ask_async(url: str) -> int:
        stream: Any = await litellm.acompletion(api_base=url, **QUESTION)
        return len([chunk async for chunk in stream])

    exporter = InMemorySpanExporter()
    with WireServer(wire_bodies.chat()) as server, matrix.instrumented(STACK, exporter=exporter):
        url = server.url + "/v1"
        got = len(list(litellm.completion(api_base=url, **QUESTION))) if mode == "sync" else asyncio.run(ask_async(url))
        recorded = Recorded(exporter)
        stream = recorded.stream()
        [request] = recorded.requests()
    assert got >= 4
    assert stream.last[semconv.TOKENS] == 4
    assert request.name == "chat openai/m"
    told = dict(request.attributes or {})
    assert (told[semconv.GEN_AI_PROVIDER_NAME], told[semconv.SERVER_ADDRESS]) == ("openai", "127.0.0.1")
    trace_id, span_id = ids(request.context)
    assert [sent.headers["traceparent"] for sent in server.requests] == [f"00-{trace_id:032x}-{span_id:016x}-01"]


def test_choices_are_streams_of_their_own_and_a_fallback_is_the_same_request() -> None:
    import litellm

    async def ask(url: str) -> list[Any]:
        fallback = {"model": "openai/m", "api_base": url, "api_key": "none"}
        nobody = {**QUESTION, "api_base": "http://127.0.0.1:9/v1", "num_retries": 0, "fallbacks": [fallback]}
        return [chunk async for chunk in await litellm.acompletion(**nobody)]

    exporter = InMemorySpanExporter()
    with matrix.instrumented(STACK, exporter=exporter):
        with WireServer(wire_bodies.chat(3, choices=2)) as server:
            assert list(litellm.completion(api_base=server.url + "/v1", n=2, **QUESTION))
        with WireServer(wire_bodies.chat()) as server:
            assert asyncio.run(ask(server.url + "/v1"))
        streams = Recorded(exporter).streams()
    assert [(stream.outcome, stream.last[semconv.TOKENS]) for stream in streams] == [
        ("completed", 3),
        ("completed", 3),
        ("completed", 4),
    ]


def test_a_text_completion_is_recorded_once() -> None:
    import litellm

    exporter = InMemorySpanExporter()
    with WireServer(wire_bodies.text()) as server, matrix.instrumented(STACK, exporter=exporter):
        url = server.url + "/v1"
        model = "text-completion-openai/m"
        assert list(litellm.text_completion(model=model, prompt="?", stream=True, api_base=url, api_key="none"))
        recorded = Recorded(exporter)
        assert [request.name for request in recorded.requests()] == ["text_completion m"]
        [stream] = recorded.streams()
    assert (stream.outcome, stream.last[semconv.TOKENS]) == ("completed", 4)


def test_what_is_not_streamed_is_not_recorded() -> None:
    import litellm

    exporter = InMemorySpanExporter()
    with matrix.instrumented(STACK, exporter=exporter):
        litellm.completion(**{**QUESTION, "stream": False}, mock_response="words")
        assert Recorded(exporter).spans() == ()
        assert otel_llm.flush(WAIT_S)


def test_it_is_hooked_when_it_is_imported_and_never_imported_by_us() -> None:
    script = (
        "import sys, otel_llm\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "otel_llm.instrument(exporter=InMemorySpanExporter())\n"
        "assert 'litellm' not in sys.modules\n"
        "from litellm import completion, acompletion\n"
        "assert all('otel_llm' in call.__code__.co_filename for call in (completion, acompletion))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=WAIT_S)
