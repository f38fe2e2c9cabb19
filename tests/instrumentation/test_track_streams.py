"""`otel_llm.track`: any sync or async iterator, read as before and recorded."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded
from support.logs import ours
from support.patience import WAIT_S

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.process import runtime


class Reply:
    """A stream of some other library: an iterator, a context manager, with things of its own."""

    def __init__(self, chunks: list[Any], error: Exception | None = None) -> None:
        self.chunks = list(chunks)
        self.error = error
        self.closed = False
        self.headers = {"x": "y"}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if self.chunks:
            return self.chunks.pop(0)
        if self.error is not None:
            raise self.error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self.closed = True


class AsyncReply(Reply):
    """The same, async."""

    __iter__ = None  # type: ignore[assignment]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        await asyncio.sleep(0)
        try:
            return super().__next__()
        except StopIteration:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        self.closed = True


WORDS = ["one ", "two ", "three "]


def test_a_generator(recorder: Recorded) -> None:
    assert list(otel_llm.track(iter(WORDS), model="m")) == WORDS
    stream = recorder.stream()
    assert (stream.outcome, stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == ("completed", 3, "chunk")


def test_an_async_generator(recorder: Recorded) -> None:
    async def words() -> AsyncIterator[str]:
        for word in WORDS:
            yield word

    async def main() -> list[str]:
        return [word async for word in otel_llm.track(words())]

    assert asyncio.run(main()) == WORDS
    assert recorder.stream().outcome == "completed"


def test_everything_else_of_the_stream_is_there(recorder: Recorded) -> None:
    reply = Reply(WORDS)
    tracked = otel_llm.track(reply)
    assert tracked.headers is reply.headers
    assert next(tracked) == "one "
    assert list(tracked) == WORDS[1:]
    with pytest.raises(AttributeError):
        tracked.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert recorder.stream().outcome == "completed"


def test_with_and_close_reach_the_stream(recorder: Recorded) -> None:
    reply, other = Reply(WORDS), Reply(WORDS)
    with otel_llm.track(reply) as tracked:
        assert next(tracked) == "one "
    otel_llm.track(other).close()
    assert (reply.closed, other.closed) == (True, True)
    assert [stream.outcome for stream in recorder.streams()] == ["cancelled", "cancelled"]


def test_async_with_and_aclose_reach_the_stream(recorder: Recorded) -> None:
    reply, other = AsyncReply(WORDS), AsyncReply(WORDS)

    async def main() -> None:
        async with otel_llm.track(reply) as tracked:
            assert await anext(tracked) == "one "
        await otel_llm.track(other).aclose()

    asyncio.run(main())
    assert (reply.closed, other.closed) == (True, True)
    assert [stream.outcome for stream in recorder.streams()] == ["cancelled", "cancelled"]


def test_a_manager_that_gives_another_stream(recorder: Recorded) -> None:
    class Manager:
        def __enter__(self) -> Reply:
            return Reply(WORDS)

        def __exit__(self, *exc_info: object) -> None:
            pass

    with otel_llm.track(Manager()) as stream:
        assert list(stream) == WORDS
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("completed", 3)


def test_what_the_stream_raises_is_raised_and_told(recorder: Recorded) -> None:
    with pytest.raises(ConnectionResetError, match="gone"):
        list(otel_llm.track(Reply(WORDS, ConnectionResetError("gone"))))
    assert recorder.stream().outcome == "disconnected"


def test_break_ends_it(recorder: Recorded) -> None:
    tracked = otel_llm.track(Reply(WORDS))
    for _ in tracked:
        break
    assert (recorder.stream().outcome, recorder.stream().last[semconv.TOKENS]) == ("cancelled", 1)
    assert list(tracked) == WORDS[1:]  # too late to be recorded, not too late to be read


@pytest.mark.usefixtures("own_garbage")
def test_a_loop_over_a_tracked_stream_that_nobody_else_holds(recorder: Recorded) -> None:
    for _ in otel_llm.track(Reply(WORDS)):
        gc.collect()
        assert otel_llm.flush(WAIT_S)
    assert recorder.stream().outcome == "completed"


@pytest.mark.usefixtures("own_garbage")
def test_dropped_unread_it_is_abandoned(recorder: Recorded) -> None:
    tracked = otel_llm.track(Reply(WORDS))
    next(tracked)
    del tracked
    gc.collect()
    assert recorder.stream().outcome == "abandoned"


def test_kinds_and_counts_by_callback(recorder: Recorded) -> None:
    def kind(chunk: Any) -> str | None:
        return {"think": "reasoning", "say": "content", "ping": None}[chunk[0]]

    chunks = [("think", 2), ("ping", 0), ("say", 1), ("say", 0)]
    list(otel_llm.track(iter(chunks), kind=kind, count=lambda chunk: chunk[1]))
    stream = recorder.stream()
    assert (stream.last[semconv.TOKENS], stream.last[semconv.TOKEN_BASIS]) == (3, "exact")
    events = [dict(event.attributes or {}) for segment in stream.segments for event in segment.events]
    assert events == [{semconv.TOKEN_COUNT: 2, semconv.TOKEN_KIND: "reasoning"}, {}]


def test_a_callback_that_fails_ends_the_recording_not_the_stream(
    recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    assert list(otel_llm.track(iter(WORDS), kind=lambda chunk: chunk.no_such_thing)) == WORDS
    assert list(otel_llm.track(iter(WORDS), kind=lambda chunk: "prose")) == WORDS
    assert len(ours(caplog)) == 1
    assert all(stream.outcome is None for stream in recorder.streams())


def test_what_the_application_knows_of_the_request(recorder: Recorded) -> None:
    began = time.monotonic_ns() - 2_000_000_000
    list(
        otel_llm.track(
            iter(WORDS),
            model="m",
            slo_class="voice",
            provider="acme",
            operation="text_completion",
            instance="replica-3",
            measured_at="relay",
            input_tokens=12,
            exact_resume=True,
            commit_ns=began,
        )
    )
    [stream] = recorder.streams()
    first = stream.segments[0]
    assert dict(first.attributes or {}) == {
        semconv.SEGMENT_SEQ: 0,
        semconv.SEGMENT_FIRST_TOKEN: 0,
        semconv.GEN_AI_OPERATION_NAME: "text_completion",
        semconv.GEN_AI_REQUEST_MODEL: "m",
        semconv.GEN_AI_PROVIDER_NAME: "acme",
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 12,
        semconv.SLO_CLASS: "voice",
        semconv.INSTANCE: "replica-3",
        semconv.MEASURED_AT: "relay",
        semconv.EXACT_RESUME: True,
    }
    assert stream.times_ns[0] - (first.start_time or 0) >= 2_000_000_000
    assert [span.name for span in recorder.requests()] == ["text_completion m"]


def test_it_starts_recording_where_nobody_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert runtime.running() is None
    try:
        assert list(otel_llm.track(iter(WORDS))) == WORDS
        assert runtime.running() is not None
    finally:
        otel_llm.uninstrument()


def test_what_is_no_stream_comes_back_as_it_is(recorder: Recorded) -> None:
    number: Any = 3
    tracked = otel_llm.track(number)
    with pytest.raises(TypeError):
        iter(tracked)


def test_nothing_happens_where_opentelemetry_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    reply = Reply(WORDS)
    assert otel_llm.track(reply) is reply
    assert runtime.running() is None


def test_iterators_keep_their_values_in_between(recorder: Recorded) -> None:
    def words() -> Iterator[str]:
        yield from WORDS
        yield "end"

    tracked = otel_llm.track(words())
    assert [next(tracked), next(tracked)] == WORDS[:2]
    assert list(tracked) == ["three ", "end"]
    assert recorder.stream().last[semconv.TOKENS] == 4
