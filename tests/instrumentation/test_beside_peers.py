"""Beside another instrumentation of the same SDK: one inference span, theirs, and our segments under it."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import pkgutil
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import openai
import openai.lib
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel
from support.instrumentation.recorded import Recorded, Stream, ids
from support.sse_server import Reply, SseServer, whole

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core.request_span import OPENINFERENCE_KIND

PEERS: Final = {
    "traceloop": "opentelemetry.instrumentation.openai",
    "openinference": "openinference.instrumentation.openai",
    "genai-openai": "opentelemetry.instrumentation.genai.openai",
}
"""Where each has its `OpenAIInstrumentor`."""


def instrumentor(peer: str) -> Any:
    try:
        module = importlib.import_module(PEERS[peer])
    except ModuleNotFoundError:
        pytest.skip(f"no peer instrumentation: `{PEERS[peer]}` is not installed (extra `dev` has it)")
    return module.OpenAIInstrumentor()


class Beside:
    """An application whose provider, and whose OpenAI SDK, a peer and we share."""

    def __init__(self, peer: str, *, ours_first: bool) -> None:
        self.spans, self.segments = InMemorySpanExporter(), InMemorySpanExporter()
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self._theirs = instrumentor(peer)
        self._switches: list[tuple[Callable[[], object], Callable[[], object]]] = [
            (self._instrument_theirs, self._theirs.uninstrument),
            (self._instrument_ours, otel_llm.uninstrument),
        ]
        if ours_first:
            self._switches.reverse()

    def _instrument_theirs(self) -> None:
        with warnings.catch_warnings(action="ignore"):  # of what they import, theirs to mend
            self._theirs.instrument(tracer_provider=self._provider)

    def _instrument_ours(self) -> None:
        otel_llm.instrument(exporter=self.segments, tracer_provider=self._provider)

    @contextmanager
    def active(self) -> Iterator[None]:
        with ExitStack() as switches:
            for on, off in self._switches:
                on()
                switches.callback(off)
            yield

    def inferences(self) -> list[ReadableSpan]:
        """Return the ended spans that stand for an inference, whosever they are."""
        return [span for span in self.spans.get_finished_spans() if is_inference(span)]

    def recorded(self) -> tuple[ReadableSpan, Stream]:
        """Return the one inference span there is, and the one stream whose segments hang from it."""
        sent = Recorded(self.segments)
        stream = sent.stream()
        assert sent.requests() == [], "a request span of our own beside theirs"
        [inference] = self.inferences()
        assert stream.parents == [ids(inference.context)]
        return inference, stream


def is_inference(span: ReadableSpan) -> bool:
    attributes = span.attributes or {}
    return (
        attributes.get(semconv.GEN_AI_OPERATION_NAME) in semconv.INFERENCE_OPERATIONS
        or attributes.get(OPENINFERENCE_KIND) == "LLM"
    )


@functools.cache
def sdk_classes() -> list[type]:
    """Return the classes of the whole SDK: what a peer may have put something into."""
    for package in (openai.resources, openai.lib):
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            with suppress(ImportError):  # of what needs another package
                importlib.import_module(module.name)
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "openai"]
    found = {thing for module in modules for thing in vars(module).values() if inspect.isclass(thing)}
    return [cls for cls in found if cls.__module__.partition(".")[0] == "openai" and not issubclass(cls, BaseModel)]


@contextmanager
def restored() -> Iterator[None]:
    """Put the SDK's own functions back at the end: not every peer takes all of its own away."""
    before = {cls: dict(vars(cls)) for cls in sdk_classes()}
    try:
        yield
    finally:
        for cls, bare in before.items():
            for name in [name for name, now in vars(cls).items() if callable(now) and now is not bare.get(name)]:
                if name in bare:
                    setattr(cls, name, bare[name])
                else:
                    delattr(cls, name)


def test_nothing_of_a_peer_stays(peer: str) -> None:
    before = {cls: dict(vars(cls)) for cls in sdk_classes()}
    with restored(), Beside(peer, ours_first=False).active():
        assert any(dict(vars(cls)) != bare for cls, bare in before.items())
    assert [cls for cls, bare in before.items() if dict(vars(cls)) != bare] == []


@pytest.fixture(params=[pytest.param(True, id="ours_first"), pytest.param(False, id="theirs_first")])
def beside(request: pytest.FixtureRequest, peer: str) -> Iterator[Beside]:
    both = Beside(peer, ours_first=request.param)
    with restored(), both.active():
        yield both


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, server: SseServer) -> Callable[..., list[Any]]:
    """Return what asks a model and reads its reply, or the first `read` chunks of it before closing the stream."""
    server.replies.update({"m": whole(3), "bad": Reply(status=500)})
    settings: dict[str, Any] = {"api_key": "none", "base_url": server.url, "max_retries": 0}
    question: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": True}

    def sync(model: str, read: int | None = None) -> list[Any]:
        with openai.OpenAI(**settings) as client:
            stream = client.chat.completions.create(model=model, **question)
            if read is None:
                return [chunk.choices[0].delta.content for chunk in stream]
            chunks = [next(stream) for _ in range(read)]
            stream.close()
            return chunks

    @asynccontextmanager
    async def asked(model: str) -> AsyncIterator[Any]:
        async with openai.AsyncOpenAI(**settings) as client:
            yield await client.chat.completions.create(model=model, **question)

    async def gathered(model: str, read: int | None) -> list[Any]:
        async with asked(model) as stream:
            if read is None:
                return [chunk.choices[0].delta.content async for chunk in stream]
            chunks = [await anext(stream) for _ in range(read)]
            await stream.close()
            return chunks

    def in_a_loop(model: str, read: int | None = None) -> list[Any]:
        return asyncio.run(gathered(model, read))

    return sync if request.param == "sync" else in_a_loop


def test_one_inference_span_and_the_segments_under_it(beside: Beside, ask: Callable[..., list[Any]]) -> None:
    assert ask("m") == ["", "w0 ", "w1 ", "w2 ", None]
    inference, stream = beside.recorded()
    assert (stream.outcome, stream.last[semconv.TOKENS], len(stream.times_ns)) == ("completed", 3, 3)
    # What a rule or an audit needs of the request is on their span too, while it is open.
    assert (inference.attributes or {})[semconv.MEASURED_AT] == "client"


def test_a_stream_that_its_reader_closes(beside: Beside, ask: Callable[..., list[Any]]) -> None:
    ask("m", read=2)
    _, stream = beside.recorded()
    assert stream.outcome == "cancelled"


def test_a_request_that_is_refused(beside: Beside, ask: Callable[..., list[Any]]) -> None:
    with pytest.raises(openai.InternalServerError):
        ask("bad")
    inference, stream = beside.recorded()
    assert stream.outcome == "error"
    assert not inference.status.is_ok


def test_two_requests_are_two_inference_spans(beside: Beside, ask: Callable[..., list[Any]]) -> None:
    ask("m")
    ask("m")
    streams = Recorded(beside.segments).streams()
    assert sorted(parent for stream in streams for parent in stream.parents) == sorted(
        ids(span.context) for span in beside.inferences()
    )
    assert len(streams) == 2
