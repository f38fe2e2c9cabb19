"""Tokens that events claim: judged as the same tokens one by one, at the cost of the events."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.chance import chances
from support.core.core_spans import needs_kernels
from support.examples import examples
from support.live import Live
from support.otlp import IDENTITY, T0_NS, Event, Value, export, request_span, segment_span, token

import otel_llm.audit
from otel_llm import semconv
from otel_llm.audit.input.parquet_streams import Writer
from otel_llm.audit.input.stream_batch import to_batch
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.window_totals import merge_partials, window_partials
from otel_llm.backtest.backtest import backtest
from otel_llm.backtest.backtest_evaluator import Terms
from otel_llm.backtest.journal_recordings import Recording
from otel_llm.collector.settings import Limits
from otel_llm.core.limits import MAX_EVENT_TOKENS, MAX_TOKENS
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.packed_records import pack, unpack
from otel_llm.formats.assemble.received_stream import MAX_HELD_BYTES, record_bytes
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.otlp.export_request import decode, read
from otel_llm.formats.records import InputError
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo

MS = 1_000_000
S = 1000 * MS
Events = Sequence[tuple[int, int, str | None]]
"""Times (unix ns), counts and kinds."""
Deliveries = list[tuple[int, Any]]


def one_by_one(events: Events) -> Events:
    return [(at_ns, 1, kind) for at_ns, count, kind in events for _ in range(count)]


def spans_of(
    chunks: Sequence[Events], request: int, choice: int = 0, *, basis: str = "exact", total: int = 0
) -> list[Span]:
    """Return the segments of a stream whose pieces have these events, and its end."""
    spans, tokens, last_ns = [segment_span(request=request, choice=choice, attributes=IDENTITY)], 0, T0_NS
    for seq, chunk in enumerate(chunks, 1):
        sent: list[Event] = [token(at_ns, None if count == 1 else count, kind) for at_ns, count, kind in chunk]
        end_ns = max([last_ns, *(at_ns for at_ns, _, _ in chunk)])
        stated: dict[str, Value] = {}
        number = sum(count for _, count, _ in chunk)
        if seq == len(chunks):
            stated = {semconv.OUTCOME: "completed", semconv.TOKENS: tokens + number, semconv.TOKEN_BASIS: basis}
            stated |= {semconv.SEGMENTS: len(chunks) + 1} | (
                {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: total} if total else {}
            )
        placed = {"request": request, "choice": choice, "start_ns": last_ns, "end_ns": end_ns}
        spans.append(segment_span(seq, tokens, sent, attributes=stated, **placed))
        tokens, last_ns = tokens + number, end_ns
    return spans


def drawn(random: Random) -> tuple[list[list[Span]], list[list[Span]]]:
    """Draw streams whose events have counts; return their spans, and those of the same tokens one by one."""
    counted: list[list[Span]] = []
    alone: list[list[Span]] = []
    for request in range(1, random.randint(2, 5)):
        for choice in range(random.choice((1, 1, 1, 2))):
            at_ns, chunks = T0_NS, []
            kinds = random.choice(((None,), (None, "reasoning", "tool")))
            for _ in range(random.randint(1, 4)):
                chunk = []
                for _ in range(random.choice((0, 1, 3))):
                    at_ns += random.choice((0, 20, 700)) * MS
                    chunk.append((at_ns, random.choice((1, 2, 9, 150)), random.choice(kinds)))
                chunks.append(chunk)
            total = random.choice((0, 0, sum(count for chunk in chunks for _, count, _ in chunk) * 2))
            basis = random.choice(("exact", "chunk"))
            for found, mine in ((counted, chunks), (alone, [one_by_one(chunk) for chunk in chunks])):
                found.append(spans_of(mine, request, choice, basis=basis, total=total))
    return counted, alone


def delivered(streams: list[list[Span]], random: Random) -> Deliveries:
    """Return spans in a random order, some lost, some twice; the same for streams of the same shape."""
    sent: Deliveries = []
    for spans in streams:
        for span in spans:
            for _ in range(random.choice((0, 1, 1, 1, 1, 1, 2))):
                sent.append((T0_NS + random.choice((0, 100, 1000, 2500)) * MS, span))
    sent.sort(key=lambda one: one[0])
    return [(at_ns + place, export(span)) for place, (at_ns, span) in enumerate(sent)]


def audited(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, int]]:
    found = otel_llm.audit.load(path)
    return by_key(found.rows), list(found.window_rows), +found.counts


def by_key(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return sorted((dict(row) for row in rows), key=str)


@settings(max_examples=examples(40), deadline=None)
@given(chances())
def test_claims_are_judged_as_their_tokens_everywhere(tmp_path_factory: pytest.TempPathFactory, random: Random) -> None:
    folder, seed = tmp_path_factory.mktemp("claims"), random.randrange(2**32)
    found = []
    for name, streams in zip(("counted", "alone"), drawn(random), strict=True):
        deliveries = delivered(streams, Random(seed))
        path = folder / f"{name}.otlp"
        path.write_bytes(b"".join(frame(message.SerializeToString(), at_ns) for at_ns, message in deliveries))
        rows, windows, counts = audited(path)
        for columns in (True, False):
            live = Live(columns=columns).run(deliveries)
            assert by_key(live.rows) == rows
        found.append((rows, windows, counts))
    assert found[0] == found[1]


def test_a_file_of_streams_keeps_the_counts(tmp_path: Path) -> None:
    streams = [spans_of([[(T0_NS + MS, 900, None)], [(T0_NS + S, 7, "tool"), (T0_NS + 2 * S, 1, None)]], 1)]
    streams.append(spans_of([[(T0_NS + MS, 1, None)]], 2))
    streams.append(spans_of([[(T0_NS + MS, 30, None)]], 3)[1:])  # without its commit
    assembler = Assembler()
    for spans in streams:
        assembler.add(decode(export(*spans)))
    batch = to_batch(assembler.finish())
    assert batch.column("counts").to_pylist() == [[900, 7, 1], None, [30]]
    with (tmp_path / "streams.parquet").open("wb") as file:
        writer = Writer(file)
        writer.write(batch)
        writer.close()
    (tmp_path / "journal.otlp").write_bytes(
        b"".join(frame(export(*spans).SerializeToString(), T0_NS) for spans in streams)
    )
    assert audited(tmp_path / "streams.parquet")[:2] == audited(tmp_path / "journal.otlp")[:2]


@pytest.mark.parametrize(
    ("counts", "stated"),
    [
        ([[0, 1]], "not from 1 to"),
        ([[MAX_EVENT_TOKENS + 1, 1]], "not from 1 to"),
        ([[1]], "a number for each time"),
        ([[1, 1, 1]], "a number for each time"),
    ],
)
def test_a_file_with_counts_that_cannot_be(tmp_path: Path, counts: list[list[int]], stated: str) -> None:
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"times_ns": [[T0_NS, T0_NS + 1]], "counts": counts, "commit_ns": [T0_NS]}), path)
    with pytest.raises(InputError, match=stated):
        otel_llm.audit.load(path)


def test_records_for_another_machine_keep_the_counts() -> None:
    spans = spans_of([[(T0_NS + MS, 5, "reasoning"), (T0_NS + S, 1, None)]], 1)
    foreign = request_span(request=2, events=[token(T0_NS + MS, count=4)], end_ns=T0_NS + S)
    foreign.attributes.extend(request_span(attributes={semconv.GEN_AI_OPERATION_NAME: "chat"}).attributes)
    batch = decode(export(*spans, foreign))
    segments = b"".join(pack(one) for one in batch.segments)
    assert unpack(batch.segments[0].request_key, segments).segments == batch.segments
    (request,) = batch.requests
    assert unpack(request.key, pack(request)).requests == [request]
    assert request.tokens == 4


# What claims cost.


def claims(count: int, *, ordered: bool, streams: int = 12, events: int = 1, segments: int = 7) -> Deliveries:
    """Return exports of a segment each, whose events claim so many tokens; `ordered`: with their commits."""
    found: Deliveries = []
    for request in range(1, streams + 1):
        chunks = [[(T0_NS + seq * 100 * MS, count, None)] * events for seq in range(segments)]
        spans = spans_of(chunks, request)
        found += [(T0_NS + (len(found) + at) * MS, export(span)) for at, span in enumerate(spans[not ordered :])]
    return found


def journal_of(deliveries: Deliveries, path: Path) -> Path:
    path.write_bytes(b"".join(frame(message.SerializeToString(), at_ns) for at_ns, message in deliveries))
    return path


def peak(work: Callable[[], object]) -> int:
    """Return the most bytes that were allocated at a time."""
    work()  # caches and imports
    tracemalloc.start()
    try:
        kept = work()
        found = tracemalloc.get_traced_memory()[1]
        del kept
        return found
    finally:
        tracemalloc.stop()


def lived(deliveries: Deliveries) -> Live:
    live = Live()
    for at_ns, message in deliveries:
        batch = read(message.SerializeToString())
        batch.received(at_ns)
        live.evaluator.apply(batch, at_ns)
    return live


def backtested(path: Path) -> object:
    return backtest(Recording([path]), rules=RuleSet(()), terms=Terms(load_slo(), Limits(), Timeouts(), 10 * S))


@needs_kernels
@pytest.mark.parametrize("ordered", [True, False])
def test_what_claims_cost_live_and_in_a_backtest(tmp_path: Path, ordered: bool) -> None:
    """The same exports with a count of 2 and of 131072."""
    few, many = (claims(count, ordered=ordered) for count in (2, MAX_EVENT_TOKENS))
    assert peak(lambda: lived(many)) < peak(lambda: lived(few)) + 2**20
    paths = [journal_of(some, tmp_path / name) for name, some in (("few.otlp", few), ("many.otlp", many))]
    assert peak(lambda: backtested(paths[1])) < peak(lambda: backtested(paths[0])) + 2**20


@needs_kernels
@pytest.mark.parametrize("ordered", [True, False])
def test_what_claims_cost_in_an_audit(tmp_path: Path, ordered: bool) -> None:
    paths = [journal_of(claims(count, ordered=ordered), tmp_path / f"{count}.otlp") for count in (2, MAX_EVENT_TOKENS)]
    few, many = (peak(lambda path=path: otel_llm.audit.load(path)) for path in paths)  # type: ignore[misc]
    tokens = 12 * 7 * MAX_EVENT_TOKENS
    assert many < few + (20 * 8 * MAX_TOKENS if ordered else 2**20), (few, many, tokens)
    batch = to_batch(_assembled(paths[1]))
    assert batch.nbytes < 2**16
    judged = judge_batch(batch, load_slo())
    assert sum(judged.column("tokens").to_pylist()) == tokens
    rows = merge_partials([window_partials(batch, judged, load_slo(), 10 * S, 5 * S)], 10 * S)
    assert sum(int(row["tokens_read"] or 0) for row in rows) == (tokens if ordered else 0)


def _assembled(path: Path) -> list[Any]:
    from otel_llm.formats.files import read_file
    from otel_llm.formats.io.skipped import Received, Skipped

    assembler = Assembler()
    for one in read_file(path, Skipped()):
        assert isinstance(one, Received)
        assembler.add(decode(one.message, one.receipt_ns))
    return assembler.finish()


# What one stream may have.


@needs_kernels
@pytest.mark.parametrize("columns", [True, False])
def test_the_tokens_of_a_stream_are_bounded_alike_live_and_in_an_audit(tmp_path: Path, columns: bool) -> None:
    at = [T0_NS + seq * 100 * MS for seq in range(12)]
    deliveries = [
        (at_ns, export(span))
        for at_ns, span in zip(at, spans_of([[(one, 100_000, None)] for one in at[:-1]], 1), strict=True)
    ]
    live = Live(columns=columns).run(deliveries)
    rows, _, counts = audited(journal_of(deliveries, tmp_path / "journal.otlp"))
    assert by_key(live.rows) == rows
    assert (rows[0]["tokens"], counts["refused.too_many_tokens"]) == (MAX_TOKENS, 1)
    assert live.evaluator.counts["refused.too_many_tokens"] == 1


def test_segments_that_repeat_their_indexes_are_bounded_too() -> None:
    spans = [segment_span(seq, 0, [token(T0_NS + seq, 100_000)], end_ns=T0_NS + S) for seq in range(1, 30)]
    live = Live().run([(T0_NS + seq * MS, export(span)) for seq, span in enumerate(spans)])
    assert live.evaluator.counts["refused.too_many_tokens"] == 19
    assert [row["tokens"] for row in live.rows] == [MAX_TOKENS]


def test_the_segments_that_wait_for_an_earlier_one_are_bounded_in_bytes() -> None:
    live, sent = Live(), 0
    weight = record_bytes(decode(export(segment_span(1, 0, [T0_NS] * 1000))).segments[0])
    most = MAX_HELD_BYTES // weight
    for seq in range(1, most + 4):
        batch = decode(export(segment_span(seq, sent, [T0_NS + seq] * 1000, end_ns=T0_NS + S)))
        batch.received(T0_NS + seq * MS)
        live.evaluator.apply(batch, T0_NS + seq * MS)
        sent += 1000
    assert live.evaluator.counts["refused.too_many_bytes_waiting"] == 3
    assert live.evaluator.counts["segments"] == most
    # The first one comes, and all that waited is applied: there is room again.
    for seq, first in ((0, 0), (most + 1, most * 1000)):
        batch = decode(export(segment_span(seq, first, [T0_NS + seq] * min(seq, 1), end_ns=T0_NS + S)))
        batch.received(T0_NS + (most + 10) * MS)
        live.evaluator.apply(batch, T0_NS + (most + 10) * MS)
    (stream,) = live.evaluator.live.values()
    assert stream.stream.tokens == most * 1000 + 1
    assert live.evaluator.counts["refused.too_many_bytes_waiting"] == 3
