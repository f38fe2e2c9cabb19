"""Whatever fails in us, the application's stream is unharmed: one warning, then nothing. And nothing piles up."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import DONE, Gate, Reply, SseServer, chunk, whole, words

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core import request_span
from otel_llm.instrumentation.core.reader_liveness import ReaderLiveness
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.request import request_builder
from otel_llm.instrumentation.segments.choices import Choices
from otel_llm.instrumentation.segments.chunks import ChunkReader
from otel_llm.instrumentation.segments.statements import Statements

QUESTION: dict[str, Any] = {"model": "m", "messages": [], "stream": True}


@pytest.fixture
def client(server: SseServer) -> Iterator[Any]:
    server.replies["m"] = whole(5)
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        yield client


def text(client: Any) -> str:
    return "".join(got.choices[0].delta.content or "" for got in client.chat.completions.create(**QUESTION))


async def text_async(url: str) -> str:
    async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as client:
        stream: Any = await client.chat.completions.create(**QUESTION)
        return "".join([got.choices[0].delta.content or "" async for got in stream])


WHOLE = "w0 w1 w2 w3 w4 "

BUGS = [
    (request_builder, "request"),
    (request_span, "begin"),
    (ChunkReader, "__call__"),
    (ChunkReader, "plain_size"),
    (ChunkReader, "basis"),
    (Statements, "span_attributes"),
    (Statements, "segment_attributes"),
    (Choices, "take"),
    (Choices, "cut"),
    (Choices, "last"),
    (Choices, "commit"),
    (ReaderLiveness, "open"),
    (ReaderLiveness, "enter"),
    (ReaderLiveness, "closed_by_reader"),
    (Recording, "_finish"),
    (runtime.Runtime, "resource"),
    (runtime.Runtime, "send"),
]


@pytest.mark.parametrize(("owner", "name"), BUGS, ids=[name for _, name in BUGS])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_our_own_bug_is_one_warning_and_no_more(
    owner: Any,
    name: str,
    mode: str,
    client: Any,
    server: SseServer,
    recorder: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bug(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(owner, name, bug)
    stream = client.chat.completions.create(**QUESTION)
    otel_llm.flush(WAIT_S)  # a look at a stream that is open
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == WHOLE
    for _ in range(3):
        assert (text(client) if mode == "sync" else asyncio.run(text_async(server.url))) == WHOLE
    otel_llm.flush(WAIT_S)
    monkeypatch.undo()
    assert text(client) == WHOLE
    [warned] = ours(caplog)
    assert re.search(r": RuntimeError: a bug of ours \(.*test_inert\.py:\d+ bug\)$", warned)
    assert recorder.streams()[-1].outcome == "completed"  # the stream after the bug is recorded again


def test_streams_that_are_read_go_on_when_we_stop(client: Any, server: SseServer) -> None:
    gate = Gate()
    server.replies["m"] = Reply([*words(3), gate, *words(2), chunk(finish="stop"), DONE])
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    stream = client.chat.completions.create(**QUESTION)
    got = [next(stream) for _ in range(3)]
    otel_llm.uninstrument()
    gate.open()
    got += list(stream)
    assert len(got) == 6
    segments = [span for span in exporter.get_finished_spans() if span.name == semconv.SEGMENT_SPAN]
    assert sum(len(span.events) for span in segments) == 3
    assert not any(semconv.OUTCOME in (span.attributes or {}) for span in segments)  # its end was not seen
    assert text(client) == "w0 w1 w2 w0 w1 "
    assert len(exporter.get_finished_spans()) == len(segments) + 1


def test_instrumenting_twice_warns_and_changes_nothing(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    first, second = InMemorySpanExporter(), InMemorySpanExporter()
    otel_llm.instrument(exporter=first)
    otel_llm.instrument(exporter=second)
    try:
        assert text(client) == WHOLE
        assert Recorded(first).stream().outcome == "completed"
        assert second.get_finished_spans() == ()
        assert len(ours(caplog)) == 1
    finally:
        otel_llm.uninstrument()
    otel_llm.uninstrument()  # and that is no trouble either


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": "some"}, r"sampling='some' is none of always, parent"),
        ({"semconv": "newest"}, r"semconv='newest' is none of 1.41, old, new, both"),
        ({"queue_segments": 0}, r"queue_segments=0"),
    ],
)
def test_a_setting_outside_of_its_words_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        otel_llm.instrument(**settings)
    assert runtime.running() is None


class NoExporter(SpanExporter):
    """Takes everything and keeps nothing."""

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def census() -> int:
    for _ in range(3):
        gc.collect()
    return len(gc.get_objects())


def test_thousands_of_streams_leave_nothing_behind() -> None:
    otel_llm.instrument(exporter=NoExporter())
    try:

        def many(count: int) -> None:
            for i in range(count):
                tracked = otel_llm.track(iter(range(3)))
                for _ in tracked:
                    if i % 3 == 0:
                        break
                if i % 500 == 0:
                    assert otel_llm.flush(WAIT_S)
            del tracked
            assert otel_llm.flush(WAIT_S)

        many(500)
        before = census()
        many(3000)
        assert census() - before < 300
        running = runtime.running()
        assert running is not None
        assert running.flusher.in_flight == 0
    finally:
        otel_llm.uninstrument()
