"""No number in a reply is a size: segments, tokens, entries and work are bounded by the bytes that came.

Every parser, by the bytes of a body and by the objects of an SDK; what is counted here is the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from opentelemetry import context
from support.instrumentation import hostile_chunks
from support.instrumentation.fake_environment import COMMIT_NS, OFFSET_NS, FakeEnvironment
from support.instrumentation.hostile_chunks import BY_PATH, HUGE, INVOKED, NUMBERS, Protocol, body, claim
from support.instrumentation.work import bounded_work, entries
from support.sse_server import chunk, usage_of

from otel_llm import semconv
from otel_llm.export.records import TOOL, Segment
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.reading import recorded
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.engines.engine_request import EngineReader, Generation
from otel_llm.instrumentation.parse.bedrock import ConverseReader, InvokeReader
from otel_llm.instrumentation.parse.callback_reader import CallbackReader
from otel_llm.instrumentation.parse.messages import MessagesReader
from otel_llm.instrumentation.parse.responses import ResponsesReader
from otel_llm.instrumentation.parse.sse_chunks import Tap, api_of, viewed
from otel_llm.instrumentation.parse.wires import WIRES
from otel_llm.instrumentation.segments.choices import Reader
from otel_llm.instrumentation.segments.chunks import UNSEEN_TOKENS, ChunkReader
from otel_llm.instrumentation.segments.token_estimate import MOST_A_CHUNK

LINES, LINES_A_BYTE = 4_000, 60
ENTRIES, ENTRIES_A_BYTE = 150, 4
SEGMENTS, BYTES_A_SEGMENT = 4, 8


class Watched:
    """A recording whose every chunk must not cost more than its bytes allow."""

    def __init__(self, reader: Reader, unseen: int = UNSEEN_TOKENS) -> None:
        self.host = FakeEnvironment()
        self.recording = Recording(self.host, Request("chat m", COMMIT_NS, OFFSET_NS), reader)
        self.recording.announce(context.get_current())
        self.unseen = unseen
        self.segments = 0
        self.tokens = 0
        self.bytes = 0

    def take(self, size: int, read: Callable[[], object]) -> None:
        """Read a chunk of so many bytes, and cut it; check what that cost."""
        self.bytes += size
        self.host.at(self.host.now_ns / 1e6 - COMMIT_NS / 1e6 + 1)
        with bounded_work(LINES + LINES_A_BYTE * size):
            read()
            self.recording.tick(self.host.now_ns)
        self.check(size)
        assert entries(self.recording) <= ENTRIES + ENTRIES_A_BYTE * self.bytes

    def check(self, size: int) -> None:
        assert self.host.bugs == []
        segments = [record for record in self.host.sent if isinstance(record, Segment)]
        tokens = sum(map(counted, segments))
        allowed = tokens // semconv.MAX_SEGMENT_TOKENS + SEGMENTS + size // BYTES_A_SEGMENT
        assert tokens <= size + self.unseen
        assert len(segments) <= allowed
        self.segments += len(segments)
        self.tokens += tokens
        self.host.sent.clear()

    def end(self) -> None:
        """End the reply; what is left of it is bounded as well."""
        with bounded_work(LINES + LINES_A_BYTE * self.bytes):
            self.recording.ended("completed")
        self.check(self.bytes)


def counted(segment: Segment) -> int:
    return len(segment.times_ns) if segment.marks is None else sum(mark >> 2 for mark in segment.marks)


def watch_body(path: str, pieces: Iterable[bytes], content_type: str) -> Watched:
    """Read a body as a client's hook does."""
    api = api_of(path, WIRES)
    assert api is not None
    watched = Watched(api.reader())
    tap = Tap(watched.recording, api, api.parsers[content_type])
    for piece in pieces:
        watched.take(len(piece), lambda piece=piece: tap.take(piece))  # type: ignore[misc]
    watched.end()
    return watched


def watch_objects(reader: Reader, chunks: list[Any], sizes: list[int], unseen: int = UNSEEN_TOKENS) -> Watched:
    """Read objects as the hook of an SDK does."""
    watched = Watched(reader, unseen)
    loop: Iterator[Any] = recorded(iter(chunks), watched.recording)
    for size in sizes:
        watched.take(size, lambda: next(loop))
    watched.end()
    return watched


def sizes_of(chunks: list[Any]) -> list[int]:
    return [len(json.dumps(chunk)) for chunk in chunks]


def test_every_api_of_a_client_is_here() -> None:
    assert BY_PATH.keys() == dict(WIRES).keys()


@pytest.mark.parametrize("number", [*HUGE, semconv.MAX_STREAM_TOKENS, -1, 1.5, 1e308, True, "7"], ids=repr)
@pytest.mark.parametrize("path", BY_PATH)
def test_a_claim_amid_a_reply_costs_what_its_bytes_allow(path: str, number: object) -> None:
    protocol = BY_PATH[path]
    chunks = [claim(protocol.shape, stated) for stated in (1, 2, number, number, 3)]
    watch_body(path, body(chunks, protocol.content_type), protocol.content_type)


def test_a_claim_of_thoughts() -> None:
    thought = {"content": {"parts": [{"text": "hm", "thought": True}]}}
    chunks = [{"candidates": [thought], "usageMetadata": {"thoughtsTokenCount": one}} for one in (1, 10**5)]
    watch_body(":streamGenerateContent", body(chunks, "text/event-stream"), "text/event-stream")


@pytest.mark.parametrize("path", BY_PATH)
@given(data=st.data())
def test_a_body_costs_what_its_bytes_allow(path: str, data: st.DataObject) -> None:
    protocol = BY_PATH[path]
    watch_body(path, body(data.draw(protocol.streams()), protocol.content_type), protocol.content_type)


def sdk_object(model: Any) -> Callable[[Any], Any]:
    return lambda value: construct_type(value=value, type_=model)


OBJECTS: dict[str, tuple[Callable[[], Reader], Protocol, Callable[[Any], Any]]] = {
    "openai": (ChunkReader, hostile_chunks.CHAT, sdk_object(ChatCompletionChunk)),
    "openai responses": (ResponsesReader, hostile_chunks.RESPONSES, sdk_object(ResponseStreamEvent)),
    "anthropic": (MessagesReader, hostile_chunks.MESSAGES, sdk_object(RawMessageStreamEvent)),
    "litellm": (ChunkReader, hostile_chunks.CHAT, viewed),
    "bedrock": (ConverseReader, hostile_chunks.CONVERSE, lambda event: event),
    **{
        f"bedrock, invoked, {number}": (
            InvokeReader,
            protocol,
            lambda value: {"chunk": {"bytes": json.dumps(value).encode()}},
        )
        for number, protocol in enumerate(INVOKED)
    },
}


@pytest.mark.parametrize("name", OBJECTS)
@given(data=st.data())
def test_an_sdks_objects_cost_what_their_bytes_allow(name: str, data: st.DataObject) -> None:
    reader, protocol, made = OBJECTS[name]
    chunks = data.draw(protocol.streams())
    watch_objects(reader(), [made(chunk) for chunk in chunks], sizes_of(chunks))


WHOLE = st.one_of(st.sampled_from((*HUGE, 0, -1, True)), st.integers(-10, 10**5))


@given(chunks=st.lists(st.tuples(st.one_of(st.text(max_size=40), st.binary(max_size=40)), WHOLE), max_size=5))
def test_what_a_callback_counts_is_bounded_by_the_text(chunks: list[tuple[str | bytes, int]]) -> None:
    counts = iter([count for _, count in chunks])
    reader = CallbackReader(None, lambda _: next(counts), "exact")
    pieces = [piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece for piece, _ in chunks]
    watched = watch_objects(reader, [piece for piece, _ in chunks], [len(piece) for piece in pieces])
    claimed = sum(max(count, 0) for _, count in chunks)
    assert watched.tokens <= max(claimed, len(chunks) * UNSEEN_TOKENS)


@given(counts=st.lists(WHOLE, max_size=5))
def test_what_a_callback_counts_of_an_object_is_bounded(counts: list[int]) -> None:
    reader = CallbackReader(None, lambda one: one[0], "exact")
    watched = watch_objects(reader, [[count] for count in counts], [MOST_A_CHUNK] * len(counts), MOST_A_CHUNK)
    believed = all(count <= MOST_A_CHUNK for count in counts)
    assert reader.basis(0) == ("exact" if believed else "estimated")
    if believed:
        assert watched.tokens == sum(max(count, 0) for count in counts)


@given(counts=st.lists(st.tuples(WHOLE.filter(lambda count: count > 0), NUMBERS.filter(lambda n: type(n) is int))))
def test_an_engines_counts_are_bounded(counts: list[tuple[int, int]]) -> None:
    reader = EngineReader()
    watched = Watched(reader, MOST_A_CHUNK)
    generation = Generation(watched.recording, reader)
    for count, choice in counts:
        watched.take(MOST_A_CHUNK, lambda c=count, i=choice: generation.tokens(watched.host.now_ns, c, i))  # type: ignore[misc]
    watched.end()
    assert reader.basis(0) == ("exact" if all(count <= MOST_A_CHUNK for count, _ in counts) else "estimated")


# A choice.


@pytest.mark.parametrize("calls", [5, 10**12, "text", {"a": 1}, True], ids=repr)
def test_tool_calls_that_are_no_list_are_none(calls: object) -> None:
    assert ChunkReader()(viewed(chunk({"tool_calls": calls}))) == ()


@pytest.mark.parametrize("index", [-1, 10**9, 10**30, True, 0.5, "1", [], {}, None], ids=repr)
def test_the_index_of_a_tool_call_is_of_no_use(index: Any) -> None:
    call = {"index": index, "function": {"arguments": "{}"}}
    [(choice, kind, size, finished)] = ChunkReader()(viewed(chunk({"tool_calls": [call, call]})))
    assert (choice, kind, size, finished) == (0, TOOL, -4, False)


@pytest.mark.parametrize("index", [-1, 128, 10**9, 10**30, True, 1.0, 0.5, "1", "0", [], {}], ids=repr)
@pytest.mark.parametrize("made", [viewed, sdk_object(ChatCompletionChunk)], ids=["json", "sdk"])
def test_a_choice_with_an_impossible_index_is_none(index: Any, made: Callable[[Any], Any]) -> None:
    chunks = [
        chunk({"content": "one "}),
        chunk({"content": "two "}, index=index, finish="stop"),
        chunk({"content": "two "}),
    ]
    reader = ChunkReader()
    readings = [reader(made(one)) for one in chunks]
    assert [len(reading) for reading in readings] == [1, 0, 1]
    assert {choice for reading in readings for choice, *_ in reading} == {0}


@pytest.mark.parametrize("index", [None, 0, 0.0, False], ids=repr)
def test_a_choice_without_an_index_is_the_first(index: Any) -> None:
    assert [mark[0] for mark in ChunkReader()(viewed(chunk({"content": "a"}, index=index)))] == [0]


def test_thousands_of_choices_are_as_many_as_an_api_allows() -> None:
    many = chunk({"content": "a"})
    many["choices"] = [{"index": index, "delta": {"content": "a"}} for index in range(10_000)]
    watched = watch_body("/chat/completions", body([many] * 3, "text/event-stream"), "text/event-stream")
    assert watched.tokens == semconv.MAX_CHOICES * 3
    assert watched.segments == 1 + semconv.MAX_CHOICES - 1 + semconv.MAX_CHOICES * 4  # begun, three times cut, ended


def test_an_engine_has_as_many_choices_as_an_api_allows() -> None:
    reader = EngineReader()
    watched = Watched(reader)
    generation = Generation(watched.recording, reader, choices=10_000)
    for choice in range(10_000):
        generation.tokens(watched.host.now_ns, 1, choice)
    watched.recording.tick(watched.host.now_ns)
    first = [record for record in watched.host.sent if isinstance(record, Segment) and record.times_ns]
    assert len(first) == semconv.MAX_CHOICES


# A stream.


def test_counts_of_a_stream_are_believed_up_to_a_limit() -> None:
    reader = ChunkReader()
    tokens = 0
    for total in range(UNSEEN_TOKENS, semconv.MAX_STREAM_TOKENS + 100 * UNSEEN_TOKENS, UNSEEN_TOKENS):
        tokens += sum(mark[2] for mark in reader(viewed(chunk({"content": ""}, usage=usage_of(total)))))
        assert reader.basis(0) == ("exact" if total <= semconv.MAX_STREAM_TOKENS else "estimated")
    assert tokens == semconv.MAX_STREAM_TOKENS // UNSEEN_TOKENS * UNSEEN_TOKENS
    [(_, _, size, _)] = reader(viewed(chunk({"content": "Hello"}, usage=usage_of(total + 1))))
    assert size == -len("Hello")


def test_totals_that_go_up_and_down_add_up_to_no_more() -> None:
    reader = ChunkReader()
    tokens = 0
    for _ in range(2 * semconv.MAX_STREAM_TOKENS // UNSEEN_TOKENS):
        for total in (UNSEEN_TOKENS, 0):
            tokens += sum(mark[2] for mark in reader(viewed(chunk({"content": ""}, usage=usage_of(total)))))
    assert (tokens <= semconv.MAX_STREAM_TOKENS, reader.basis(0)) == (True, "estimated")
