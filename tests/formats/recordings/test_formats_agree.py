"""The same requests through every format of file give the same rows, but for what a format cannot hold, said here."""

from __future__ import annotations

import gzip
import io
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.formats.foreign_rows import CAPTURED, captured
from support.formats.span_formats import SPAN_FORMATS, csv_times, in_whole_us
from support.formats.streams import direct, streams_of
from support.otlp import T0_NS
from support.recordings import vector_classes, vector_messages
from support.vectors import vectors

from otel_llm.audit.input.stream_batch import to_batch
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.io.skipped import Skipped
from otel_llm.slo.classes import KINDS, SloClasses

Row = dict[str, Any]

WHOLE_MICROSECONDS = frozenset({"jaeger.json"})
"""Formats that cut every time to microseconds: their rows are those of the same requests cut so."""
WITHOUT_DROPPED_COUNTS = frozenset(
    {"jaeger.json", *(file_format for file_format in SPAN_FORMATS if file_format.startswith("otel_traces"))}
)
"""Formats that do not say how many events of a span its SDK dropped, and give attributes back as text or as JSON."""
IDS_OF_ITS_OWN = ("trace_id", "span_id")
"""What a row of CSV cannot have from its file."""

PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": lambda data: zstandard.compress(data),
}


def rows_of(streams: list[Assembled], classes: SloClasses) -> list[Row]:
    rows: list[Row] = judge_batch(to_batch(streams), classes).to_pylist()
    return rows


def received(messages: list[ExportTraceServiceRequest], file_format: str) -> list[Assembled]:
    """Return the streams of messages as they were received, in a format's precision."""
    return direct(in_whole_us(messages) if file_format in WHOLE_MICROSECONDS else messages)


@cache
def worked(whole_microseconds: bool) -> list[Assembled]:
    found = received(vector_messages(), "jaeger.json" if whole_microseconds else "")
    assert len(found) == len(vectors())
    return found


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("file_format", SPAN_FORMATS)
def test_the_same_requests_give_the_same_streams(file_format: str, packing: str, tmp_path: Path) -> None:
    path = tmp_path / "no-name-that-says-anything"
    path.write_bytes(PACKINGS[packing](SPAN_FORMATS[file_format](vector_messages())))
    skipped = Skipped()

    assert streams_of(path, skipped) == worked(file_format in WHOLE_MICROSECONDS)
    assert skipped.broken == 0, skipped.notes


def test_the_same_requests_give_the_same_rows(tmp_path: Path) -> None:
    streams, expected = [], []
    for file_format, make in SPAN_FORMATS.items():
        path = tmp_path / file_format
        path.write_bytes(make(vector_messages()))
        streams += streams_of(path, Skipped())
        expected += worked(file_format in WHOLE_MICROSECONDS)

    assert rows_of(streams, vector_classes()) == rows_of(expected, vector_classes())


@pytest.mark.parametrize("file_format", SPAN_FORMATS)
@pytest.mark.parametrize("emitter", sorted(path.stem for path in CAPTURED.glob("*.json")))
def test_spans_of_others_say_the_same_in_every_format(file_format: str, emitter: str, tmp_path: Path) -> None:
    messages = [captured(emitter)]
    path = tmp_path / "spans"
    path.write_bytes(SPAN_FORMATS[file_format](messages))
    skipped = Skipped()
    found, expected = streams_of(path, skipped), received(messages, file_format)

    if file_format not in WITHOUT_DROPPED_COUNTS:
        assert found == expected
        return
    assert len(found) == len(expected)
    cut = 0
    for mine, theirs in zip(found, expected, strict=True):
        if theirs.resolved.coverage is not None and theirs.resolved.coverage < 1:
            # That events are missing is known, how many is not.
            cut += 1
            assert mine.resolved.foreign is not None
            assert (mine.resolved.complete, mine.times_ns) == (False, theirs.times_ns)
        else:
            assert same_types_apart(mine) == same_types_apart(theirs)
    assert skipped.anomalies["anomaly.events_maybe_dropped"] == cut


def same_types_apart(one: Assembled) -> Assembled:
    """Return a stream without the attributes that no row shows: as text they have no type of their own."""
    return replace(one, resolved=replace(one.resolved, attributes={}))


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("file_format", ["collector.jsonl", "collector-zstd.binpb", "jaeger.json", "otel_traces.jsonl"])
def test_standard_input_is_a_file_too(
    file_format: str, packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = PACKINGS[packing](SPAN_FORMATS[file_format](vector_messages()[:3]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    assert streams_of(Path("-"), Skipped()) == received(vector_messages()[:3], file_format)


# CSV

HEADER = ("request", "t_seconds", "commit_s", "end_s", "outcome", "kind", "class", "model", "tokens")


def seconds(at_ns: int) -> str:
    return f"{at_ns // 10**9}.{at_ns % 10**9:09d}"


def csv_lines() -> list[list[object]]:
    """Return the worked requests: one line a token, what is reported of a request on its first."""
    lines: list[list[object]] = []
    for number, one in enumerate(vectors()):
        shift = T0_NS if one.commit_ns < T0_NS else 0
        reported: list[object] = [
            seconds(one.commit_ns + shift),
            seconds(one.end_ns + shift),
            one.outcome,
            "content",
            f"v{number}",
            "",
            1,
        ]
        rows: list[list[object]] = [
            [f"r{number}", seconds(at + shift), "", "", "", KINDS[0 if one.kinds is None else one.kinds[i]], "", "", ""]
            for i, at in enumerate(one.tokens_ns)
        ] or [[f"r{number}", "", "", "", "", "", "", "", ""]]
        rows[0][2:5], rows[0][6:9] = reported[:3], reported[4:]
        lines += rows
    return lines


@pytest.mark.parametrize(("mixed", "packing"), [(False, "plain"), (True, "zstd")])
def test_csv_gives_the_same_rows_but_for_ids(mixed: bool, packing: str, tmp_path: Path) -> None:
    path = tmp_path / "times"
    lines = csv_lines()
    if mixed:  # as a server's log would have them: by time, not by request
        lines.sort(key=lambda line: str(line[1]))
    path.write_bytes(PACKINGS[packing](csv_times(lines, HEADER)))
    skipped = Skipped()
    rows = rows_of(streams_of(path, skipped), vector_classes())
    assert (skipped.counts, skipped.anomalies) == (Counter(), Counter())

    expected = {row["slo_class"]: without_ids(row) for row in rows_of(worked(False), vector_classes())}
    for row in expected.values():
        # No span states the tokens of a stream without an end; a line of CSV is one, whatever follows.
        row["token_basis"] = "exact"
    assert {row["slo_class"]: without_ids(row) for row in rows} == expected
    assert len({row["trace_id"] for row in rows}) == len(rows)


def without_ids(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in IDS_OF_ITS_OWN}
