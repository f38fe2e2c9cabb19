"""A reply in one piece, or one that never ends: the recorder writes nothing that the collector refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
from opentelemetry import context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext
from support.core.core_cases import seen
from support.instrumentation.fake_environment import COMMIT_NS, OFFSET_NS, FakeEnvironment
from support.instrumentation.recorded import Recorded

import otel_llm
from otel_llm import semconv
from otel_llm.core.limits import MAX_EVENT_TOKENS, MAX_TOKENS, TOKENS_PER_BYTE
from otel_llm.export.outbox import BATCH
from otel_llm.export.records import REASONING, Origin, Segment
from otel_llm.export.wire import export_request
from otel_llm.formats.otlp.export_request import read
from otel_llm.formats.rows import Row
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.parse.callback_reader import CallbackReader
from otel_llm.instrumentation.segments.timeline import Timeline
from otel_llm.instrumentation.segments.token_estimate import MOST_A_CHUNK

Item = TypeVar("Item")
MB = 10**6
TEXT = "word and " * (MB // 9)


def batches(records: Sequence[Item]) -> list[Sequence[Item]]:
    """Return records as they are exported together."""
    return [records[at : at + BATCH] for at in range(0, len(records), BATCH)]


def judged(messages: list[bytes]) -> Row:
    """Return the row of the only stream in these export requests; nothing of them is refused."""
    one = seen()
    for raw in messages:
        batch = read(raw)
        assert not batch.refused
        one.evaluator.apply(batch, OFFSET_NS + COMMIT_NS)
    [row] = one.rest().rows
    return row


@pytest.mark.parametrize("counted", [None, 1, 10_001, MAX_EVENT_TOKENS + 1, 900_000])
def test_a_megabyte_in_one_chunk_is_judged(recorder: Recorded, counted: int | None) -> None:
    count = None if counted is None else lambda chunk: counted if chunk == TEXT else 1
    assert list(otel_llm.track(iter(["so ", TEXT, " so"]), model="m", count=count)) == ["so ", TEXT, " so"]
    spans = recorder.spans()
    row = judged([encode_spans(part).SerializeToString() for part in batches(spans)])
    assert (row["outcome"], row["coverage"]) == ("completed", 1.0)
    assert row["tokens"] == 2 + (MOST_A_CHUNK if counted is None else counted)


def test_a_reply_that_never_ends_is_recorded_up_to_the_limit() -> None:
    host = FakeEnvironment()
    reader = CallbackReader(None, None, "chunk")
    recording = Recording(host, Request("chat m", COMMIT_NS, OFFSET_NS), reader)
    recording.announce(context.get_current())
    for at in range(120):
        host.at(1 + at)
        recording.append((host.now_ns, reader.plain_size(TEXT)))
        recording.tick(host.now_ns)
    recording.ended("completed")
    row = judged([export_request(part) for part in batches(host.sent)])
    assert (row["outcome"], row["coverage"], row["tokens"]) == ("completed", 1.0, MAX_TOKENS)


def test_a_stream_with_tokens_left_out_is_estimated() -> None:
    host = FakeEnvironment()
    recording = host.record()
    for at in (1, 2):
        recording.append((host.now_ns + at, ((0, 0, semconv.MAX_STREAM_TOKENS - 9, False),)))
    recording.ended("completed")
    row = judged([export_request(part) for part in batches(host.sent)])
    assert (row["coverage"], row["tokens"], row["token_basis"]) == (1.0, MAX_TOKENS, "estimated")


def line() -> Timeline:
    return Timeline(0, COMMIT_NS, Origin(SpanContext(1, 2, is_remote=False), Resource({})), lambda bits: 1)


def test_tokens_beyond_the_limit_are_left_out() -> None:
    one = line()
    one.take_marked(COMMIT_NS, REASONING, semconv.MAX_STREAM_TOKENS - 3)
    assert not one.full
    one.take([COMMIT_NS + 1] * 2)
    one.take_marked(COMMIT_NS + 2, REASONING, 7)
    assert one.full
    one.take([COMMIT_NS + 3])
    one.take_marked(COMMIT_NS + 4, REASONING, 1)
    segments = one.last(COMMIT_NS + 9, "completed", "exact", {})
    assert one.tokens == semconv.MAX_STREAM_TOKENS == sum(mark >> 2 for one in segments for mark in one.marks or ())
    assert max(segments[-1].times_ns) == COMMIT_NS + 2


def test_a_segment_may_have_its_tokens_in_the_collectors_bounds() -> None:
    assert semconv.MAX_SEGMENT_TOKENS <= MAX_EVENT_TOKENS
    one = line()
    one.take_marked(COMMIT_NS, 0, 3 * semconv.MAX_SEGMENT_TOKENS)
    several: list[Segment] = one.last(COMMIT_NS, "completed", "exact", {})
    smallest = len(export_request(several[:2])) - len(export_request(several[:1]))
    assert TOKENS_PER_BYTE * smallest >= semconv.MAX_SEGMENT_TOKENS  # so no message has too many, whatever it holds
