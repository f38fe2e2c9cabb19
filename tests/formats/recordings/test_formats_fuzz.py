"""Any bytes of any format give streams, counts or a typed error, never another exception; a cut is no broken file."""

from __future__ import annotations

import gzip
import io
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.formats.foreign_rows import captured
from support.formats.span_formats import SPAN_FORMATS, clickhouse_row, csv_times, each_span, jaeger
from support.formats.streams import streams_of
from support.recordings import vector_messages

from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import InputError


@cache
def samples() -> dict[str, bytes]:
    """Return a small file of each format, with ours and others' spans."""
    messages = [*vector_messages()[2:4], captured("vllm")]
    found = {name: make(messages) for name, make in SPAN_FORMATS.items()}
    found["jaeger-pretty.json"] = jaeger(messages, indent=1)
    found["times.csv"] = csv_times(
        [["a", "1.5", "1", "content"], ["b", "2", "1", "tool"], ["a", "3.25", "", ""]],
        ["request", "t_seconds", "commit_s", "kind"],
    )
    found["otel_traces.parquet"] = parquet()
    found["jaeger.json.gz"] = gzip.compress(found["jaeger.json"])
    found["times.csv.zst"] = zstandard.compress(found["times.csv"])
    return found


def parquet() -> bytes:
    rows = [clickhouse_row(*one) for one in each_span(vector_messages()[2:4])]
    text = pa.map_(pa.string(), pa.string())
    kinds = {
        **dict.fromkeys(rows[0], pa.string()),
        "ResourceAttributes": text,
        "SpanAttributes": text,
        "Duration": pa.uint64(),
        "Events.Timestamp": pa.list_(pa.string()),
        "Events.Name": pa.list_(pa.string()),
        "Events.Attributes": pa.list_(text),
    }
    kinds = {name: kind for name, kind in kinds.items() if not name.startswith("Links")}
    columns = {name: pa.array([_pairs(row[name]) for row in rows], kind) for name, kind in kinds.items()}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


def _pairs(value: object) -> object:
    if isinstance(value, dict):
        return list(value.items())
    return [_pairs(one) for one in value] if isinstance(value, list) else value


NAMES = [*SPAN_FORMATS, "jaeger-pretty.json", "times.csv", "otel_traces.parquet", "jaeger.json.gz", "times.csv.zst"]
SIGNS = st.one_of(st.integers(0, 255), st.sampled_from(b'{}[]",:\\x0a-0e'))


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.integers(0, 2**20), SIGNS), max_size=4),
    st.one_of(st.just(2**30), st.integers(0, 2**16)),
    st.binary(max_size=6),
)
@example(name="otel_traces-compact.json", changes=[(16790, 128)], kept=2**30, tail=b"")
def test_any_change_gives_streams_or_a_typed_error(
    tmp_path: Path, name: str, changes: list[tuple[int, int]], kept: int, tail: bytes
) -> None:
    data = bytearray(samples()[name])
    for position, value in changes:
        data[position % len(data)] = value
    path = tmp_path / "x"
    path.write_bytes(data[:kept] + tail)
    skipped = Skipped()
    try:
        streams_of(path, skipped)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 - raising is optional here
    assert bool(skipped.notes) == bool(skipped.counts)


CUT_SHOWS = [name for name in NAMES if not name.endswith((".gz", ".zst", ".parquet"))]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(CUT_SHOWS), st.floats(0, 1))
@example("collector.jsonl", 0.0)
@example("jaeger.json", 0.9152532846583232)  # behind the point of a number
def test_a_cut_file_gives_what_stood_before_the_cut_and_is_not_broken(tmp_path: Path, name: str, share: float) -> None:
    whole = samples()[name]
    path = tmp_path / "x"
    path.write_bytes(whole)
    all_ids = {one.resolved.key for one in streams_of(path, Skipped())}
    path.write_bytes(whole[: int(share * len(whole))])
    skipped = Skipped()
    try:
        found = streams_of(path, skipped)
    except InputError:
        # Too little is left of it to be anything; never of more than a head.
        assert share * len(whole) < 2000 or name in ("single.pb", "tempo.pb", "tempo-v2.pb")
        return
    assert skipped.broken == 0, skipped.notes
    assert {one.resolved.key for one in found} <= all_ids


@pytest.mark.parametrize(
    "text",
    [
        b'{"data": [{"traceID": "1", "spans": ' + b"[" * 5000 + b"]}]}",
        b'{"data": [{"traceID": "1", "spans": [{"startTime": 1' + b"0" * 5000 + b"}]}]}",
        b'{"data": [{"traceID": "1", "spans": [{"traceID": "1", "spanID": "1", "startTime": NaN}]}]}',
        b'{"data": [{"traceID": "1", "spans": [{"traceID": "1", "spanID": "1", "startTime": 1e999}]}]}',
        b'{"data":[{"traceID":"1","spans":[{"traceID":"1","spanID":"1","operationName":"\\ud800","startTime":1}]}]}',
        b'{"batches": ' + b'{"a":' * 5000,
        b'{"trace": {"resourceSpans": 7}}',
        b'{"Timestamp":1e400,"TraceId":"1","SpanId":"1","SpanName":"x","SpanAttributes":{},"Duration":1}',
        b'{"Timestamp":"9999-99-99 00:00:00","TraceId":"1","SpanId":"1","SpanName":"x","SpanAttributes":0}',
        b'{"Timestamp":1,"TraceId":"1","SpanId":"1","SpanName":"x","SpanAttributes":{"a":{"a":1}},"Duration":-1}',
        b"request,t_seconds\na,NaN\n",
        b"request,t_seconds\na,1e999999999\n",
        b"request,t_seconds\na,0x10\n",
        b"request,t_seconds\na,1_0\n",
        b"request,t_seconds\na," + b"9" * 100000 + b"\n",
        b"request,t_seconds\n\xff\xfe,1\n",
        b'request,t_seconds\n"a,1\n',
        b"request,t_seconds,tokens\na,1,99999999999\n",
    ],
)
def test_hostile_values_are_an_input_error_that_names_its_place(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(text)
    skipped = Skipped()
    try:
        assert streams_of(path, skipped) == []
        assert skipped.counts  # said, if only as a cut
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 - some are refused whole
