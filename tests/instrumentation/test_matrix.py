"""Every client over every way that a stream ends: once, as it was, and the caller sees exactly the bare library."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from logging import WARNING
from typing import Any

import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.commands import wait_until
from support.instrumentation import matrix
from support.instrumentation.matrix import CASES, HOLDS, MODEL, Stack
from support.instrumentation.recorded import Recorded
from support.instrumentation.stack_anthropic import QUESTION, AnthropicHelper, AnthropicMessages
from support.instrumentation.stack_botocore import STACKS as BEDROCK
from support.instrumentation.stack_lm15 import Lm15Lines
from support.instrumentation.stack_openai import (
    OpenAIChat,
    OpenAIChatHelper,
    OpenAIChatParsed,
    OpenAIResponses,
    OpenAIResponsesHelper,
)
from support.instrumentation.stack_sse import STACKS as SSE
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import Reply, SseServer

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.segments.choices import Choices

STACKS: list[Stack] = [
    OpenAIChat(),
    OpenAIChatHelper(),
    OpenAIChatParsed(),
    OpenAIResponses(),
    OpenAIResponsesHelper(),
    AnthropicMessages(),
    AnthropicHelper(),
    *SSE,
    Lm15Lines(),
    *BEDROCK,
]
STREAMS = int(os.environ.get("OTEL_LLM_MATRIX_STREAMS", "60"))
"""How many streams the test of growth reads, of each stack and mode; 10,000 in the long form."""

# Bare aiohttp warns of a connection that was not closed, which several of the cases do on purpose.
leaves_connections = pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
PAIRS = [
    pytest.param(stack, mode, id=f"{stack.name}, {mode}", marks=leaves_connections)
    for stack in STACKS
    for mode in stack.modes
]
every_stack = pytest.mark.parametrize(("stack", "mode"), PAIRS)


def ends() -> Iterator[Any]:
    """Yield each stack with each case in each mode; the first tier takes one mode of each, in turn."""
    for first, stack in enumerate(STACKS):
        for place, name in enumerate(CASES):
            modes = [mode for mode in stack.modes if matrix.why_not(stack, name, mode) is None]
            for mode in modes:
                marks = [] if mode == modes[(first + place) % len(modes)] else [pytest.mark.system]
                yield pytest.param(stack, mode, name, id=f"{stack.name}, {mode}, {name}", marks=marks)


ENDS = list(ends())


@pytest.fixture(autouse=True)
def _nothing_left(own_garbage: None) -> Iterator[None]:
    """Collect what a case dropped while its own filters of warnings stand."""
    yield
    gc.collect()


def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Assert that nothing went wrong that only a log tells: a context that could not be detached, a bug of ours.

    Asyncio's own log is not asked: it has its say, bare as well, on the generators that a library leaves suspended.
    """
    assert ours(caplog) == []
    assert [one for one in caplog.records if one.name.startswith("opentelemetry") and one.levelno >= WARNING] == []
    assert "Failed to detach context" not in caplog.text


@leaves_connections
@pytest.mark.parametrize(("stack", "mode", "name"), ENDS)
def test_a_stream_ends_once_as_it_did_and_the_caller_sees_the_bare_library(
    stack: Stack, mode: str, name: str, server: SseServer, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = matrix.expected(stack, name, mode)
    bare = matrix.ends_as_bare(stack, CASES[name], mode, server, outcome=outcome, gated=name == "end")
    assert bare.context_kept
    quiet(caplog)


@leaves_connections
@every_stack
def test_no_server_listens(
    stack: Stack, mode: str, server: SseServer, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    with suppress_instrumentation():
        bare = matrix.play(stack, CASES["end"], mode, server)
    assert bare.raised
    assert recorder.spans() == ()
    caplog.clear()
    assert matrix.play(stack, CASES["end"], mode, server) == bare
    assert recorder.stream().outcome == "disconnected"
    quiet(caplog)


Asks = Callable[[Any], Any]
UNSTREAMED: list[tuple[Stack, Asks]] = [
    (OpenAIChat(), lambda client: client.chat.completions.create(model=MODEL, messages=[])),
    (OpenAIResponses(), lambda client: client.responses.create(model=MODEL, input="hello")),
    (AnthropicMessages(), lambda client: client.messages.create(**QUESTION)),
]
REFUSED: list[tuple[Stack, Asks]] = [
    (OpenAIChat(), lambda client: client.chat.completions.create(model=MODEL, stream=True)),
    (OpenAIResponses(), lambda client: client.responses.create(model=MODEL, stream=True, unknown=1)),
    (AnthropicMessages(), lambda client: client.messages.create(model=MODEL, stream=True)),
]
"""Calls whose arguments the SDK itself refuses."""


@pytest.mark.parametrize(("stack", "ask"), UNSTREAMED + REFUSED, ids=lambda one: getattr(one, "name", ""))
def test_a_call_that_asks_for_no_stream_is_left_alone(
    stack: Stack, ask: Asks, server: SseServer, recorder: Recorded
) -> None:
    server.replies[MODEL] = Reply(status=500)
    with stack.client(server.url) as client, pytest.raises(Exception, match=r"500|argument"):
        ask(client)
    assert recorder.spans() == ()
    assert all("traceparent" not in dict(headers) for headers in server.headers)


@every_stack
def test_what_the_caller_does_not_read_is_not_read(
    stack: Stack, mode: str, server: SseServer, caplog: pytest.LogCaptureFixture
) -> None:
    bare = matrix.play(stack, HOLDS, mode, server)
    assert bare.read_ahead is False
    with matrix.instrumented(stack, exporter=InMemorySpanExporter()):
        assert matrix.play(stack, HOLDS, mode, server) == bare
    quiet(caplog)


def bug(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a bug of ours")


def at_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_builder, "request", bug)


def at_the_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Recording.opened

    def broken(self: Recording, stream: object, inner: object) -> None:
        opened(self, stream, inner)
        self.append = bug

    monkeypatch.setattr(Recording, "opened", broken)


def at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Choices, "last", bug)


PLACES = [at_the_commit, at_the_first_chunk, at_the_end]


def bugs() -> Iterator[Any]:
    """Yield each stack in each mode with four cases and three places of a bug; the first tier takes one place each."""
    for first, (stack, mode) in enumerate((one, mode) for one in STACKS for mode in one.modes):
        for place, name in enumerate(["end", "error", "with", "cancel"]):
            if matrix.why_not(stack, name, mode) is None:
                for turn, where in enumerate(PLACES):
                    marks = [] if turn == (first + place) % len(PLACES) else [pytest.mark.system]
                    shown = f"{stack.name}, {mode}, {name}, {where.__name__}"
                    yield pytest.param(stack, mode, name, where, id=shown, marks=marks)


BUGS = list(bugs())


@leaves_connections
@pytest.mark.parametrize(("stack", "mode", "name", "where"), BUGS)
def test_a_bug_of_ours_is_one_warning_and_nothing_that_the_caller_sees(
    stack: Stack,
    mode: str,
    name: str,
    where: Callable[[pytest.MonkeyPatch], None],
    server: SseServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES[name]
    bare = matrix.play(stack, case, mode, server)
    exporter = InMemorySpanExporter()
    with matrix.instrumented(stack, exporter=exporter):
        where(monkeypatch)
        for _ in range(2):
            assert matrix.play(stack, case, mode, server) == bare
        assert otel_llm.flush(WAIT_S)  # what ends with the flusher's next look meets the bug as well
        assert otel_llm.flush(WAIT_S)  # what is left for a flush to end must meet the bug as well
        monkeypatch.undo()
        recorded = Recorded(exporter)
        assert not [stream for stream in recorded.streams() if stream.outcome is not None]  # its end is not known
        assert len(recorded.requests()) == (0 if where is at_the_commit else 2)
        assert matrix.play(stack, CASES["end"], mode, server).raised == ()
        assert recorded.streams()[-1].outcome == "completed"  # the stream after the bug is recorded again
    assert len(ours(caplog)) == 1


class Counting(SpanExporter):
    """Counts what it is given, and keeps none of it."""

    def __init__(self) -> None:
        self.ends: Counter[object] = Counter()
        self.requests: Counter[object] = Counter()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            outcome = (span.attributes or {}).get(semconv.OUTCOME)
            if span.name != semconv.SEGMENT_SPAN:
                self.requests[outcome] += 1
            elif outcome is not None:
                self.ends[outcome] += 1
        return SpanExportResult.SUCCESS


WAYS = ("end", "error", "close", "with", "caller")


# If the garbage collector runs in another thread than the loop's (that of a server here, or of any application), it
# may come upon an inner generator of httpx2 that the loop is closing: CPython says so, and nothing comes of it.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning")
@every_stack
def test_many_streams_leave_nothing_behind(
    stack: Stack, mode: str, server: SseServer, caplog: pytest.LogCaptureFixture
) -> None:
    ways = [way for way in WAYS if matrix.why_not(stack, way, mode) is None]
    counting = Counting()
    blocks: list[int] = []
    running = threading.active_count()

    def many_threads() -> bool:
        return threading.active_count() > running + 8  # ours, the server's for a connection; not one a stream

    def look() -> None:
        server.requests.clear()
        server.headers.clear()
        assert otel_llm.flush(WAIT_S)
        gc.collect()
        blocks.append(sys.getallocatedblocks())

    def sync() -> None:
        with stack.client(server.url) as client:
            for done in range(STREAMS):
                if done == STREAMS // 2:
                    wait_until("threads have ended", lambda: not many_threads())
                    look()
                matrix.once(stack, CASES[ways[done % len(ways)]], client, server)
            wait_until("threads have ended", lambda: not many_threads())
            look()

    async def asynchronous() -> None:
        async with stack.aclient(server.url) as client:
            for done in range(STREAMS):
                if done == STREAMS // 2:
                    await settled()
                    look()
                await matrix.once_async(stack, CASES[ways[done % len(ways)]], client, server)
            await settled()
            look()

    async def settled() -> None:
        for _ in range(
            5
        ):  # generators that were left suspended are closed by the loop, some turns after they are found
            gc.collect()
            await asyncio.sleep(0.01)
        async with asyncio.timeout(WAIT_S):
            while many_threads():
                await asyncio.sleep(0.01)

    with matrix.instrumented(stack, exporter=counting):
        sync() if mode == "sync" else asyncio.run(asynchronous())
    expected = Counter(matrix.expected(stack, ways[done % len(ways)], mode) for done in range(STREAMS))
    assert (counting.ends, counting.requests) == (expected, expected)
    gc.collect()
    # By type: `isinstance` asks a proxy for what it stands for, and what that is may be gone.
    assert [kept for kept in gc.get_objects() if issubclass(type(kept), Recording | Choices)] == []
    # Libraries cache one thing or another; in the long form that is less than half a block of memory for a stream.
    assert blocks[1] - blocks[0] < 2500
    quiet(caplog)
