"""ClickHouse itself gives back what the Collector put in: rows, Parquet, and the SQL that we ship."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.formats.span_formats import clickhouse, clickhouse_json_schema, clickhouse_nested
from support.formats.streams import direct, streams_of
from support.otlp import T0_NS, Value, attributes_of, export
from support.patience import WAIT_S
from support.recordings import json_lines, vector_messages
from support.requirements import require

from otel_llm.audit import load
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import InputError

TABLE = """
CREATE TABLE otel_traces (
    Timestamp DateTime64(9), TraceId String, SpanId String, ParentSpanId String, TraceState String,
    SpanName LowCardinality(String), SpanKind LowCardinality(String), ServiceName LowCardinality(String),
    ResourceAttributes Map(LowCardinality(String), String), ScopeName String, ScopeVersion String,
    SpanAttributes Map(LowCardinality(String), String), Duration UInt64, StatusCode LowCardinality(String),
    StatusMessage String,
    Events Nested (
        Timestamp DateTime64(9), Name LowCardinality(String), Attributes Map(LowCardinality(String), String)
    ),
    Links Nested (TraceId String, SpanId String, TraceState String, Attributes Map(LowCardinality(String), String))
) ENGINE = MergeTree() PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))
"""
"""The columns of exporter/clickhouseexporter/internal/sql_templates/traces_table.sql of the Collector's contrib."""
_MAP = "Attributes Map(LowCardinality(String), String)"
JSON_TABLE = (
    TABLE.replace(f"Resource{_MAP}", "ResourceAttributes JSON")
    .replace(f"Span{_MAP}", "SpanAttributes JSON")
    .replace(f"Name LowCardinality(String), {_MAP}", "Name LowCardinality(String), Attributes JSON")
)
"""The same of traces_table_json.sql: the exporter's `json: true`."""

_PROGRAM = """
import json, sys
from chdb.session import Session

job = json.load(sys.stdin)
session = Session()
session.query("CREATE DATABASE otel")
session.query("USE otel")
session.query("SET session_timezone = 'UTC'")
session.query(f"SET flatten_nested = {int(job['flat'])}")
session.query(job["table"])
session.query("INSERT INTO otel_traces FORMAT JSONEachRow " + job["rows"])
session.query(f"SET session_timezone = '{job['zone']}'")
for path, query in job["queries"].items():
    with open(path, "wb") as out:
        out.write(session.query(query).bytes())
"""


def ask(rows: bytes, queries: dict[Path, str], zone: str = "UTC", *, table: str = TABLE, flat: bool = True) -> None:
    """Insert rows (JSONEachRow) into `otel_traces` and write what each query answers to its file.

    `flat`: nested columns are arrays side by side, as ClickHouse makes them by default.
    """
    require("chdb")
    job = {
        "table": table,
        "flat": flat,
        "rows": rows.decode(),
        "zone": zone,
        "queries": {str(path): query for path, query in queries.items()},
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


SQL = (Path(__file__).parents[3] / "docs" / "clickhouse-export.sql").read_text()
PROMPT = "what stays where it is " * 50


def other_spans() -> list[Span]:
    """Return a span of another kind, and an inference span of others with its prompt on it."""
    reported: dict[str, dict[str, Value]] = {
        "GET /": {"http.response.status_code": 200},
        "chat m": {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.time_to_first_chunk": 0.25,
            "gen_ai.input.messages": PROMPT,
        },
    }
    return [
        Span(
            trace_id=bytes([255] * 16),
            span_id=bytes([255 - number] * 8),
            name=name,
            kind=Span.SPAN_KIND_CLIENT,
            start_time_unix_nano=T0_NS + 1,
            end_time_unix_nano=T0_NS + 5 * 10**9,
            attributes=attributes_of(attributes),
        )
        for number, (name, attributes) in enumerate(reported.items())
    ]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clickhouse")
    everything = "SELECT * FROM otel_traces FORMAT"
    ours = [*vector_messages(), export(*other_spans())]
    ask(
        clickhouse(ours),
        {
            folder / "rows.jsonl": f"{everything} JSONEachRow",
            folder / "answer.json": f"{everything} JSON",
            folder / "compact.json": f"{everything} JSONCompact",
            folder / "pretty.jsonl": f"{everything} PrettyJSONEachRow",
            folder / "array.json": f"{everything} JSONEachRow SETTINGS output_format_json_array_of_rows = 1",
            folder / "answer-iso.json": f"{everything} JSON SETTINGS date_time_output_format = 'iso'",
            folder
            / "answer-unix.json": f"{everything} JSONCompact SETTINGS date_time_output_format = 'unix_timestamp'",
            folder / "columns.json": f"{everything} JSONColumns",
            folder / "columns-and-types.json": f"{everything} JSONColumnsWithMetadata",
            folder / "strings.json": f"{everything} JSONStrings",
            folder / "none.json": "SELECT * FROM otel_traces WHERE SpanName = 'none' FORMAT JSON",
            folder / "rows.parquet": f"{everything} Parquet",
            folder / "iso.jsonl": f"{everything} JSONEachRow SETTINGS date_time_output_format = 'iso'",
            folder / "unix.jsonl": f"{everything} JSONEachRow SETTINGS date_time_output_format = 'unix_timestamp'",
            folder / "quoted.jsonl": f"{everything} JSONEachRow SETTINGS output_format_json_quote_64bit_integers = 1",
            folder / "binary.parquet": f"{everything} Parquet SETTINGS output_format_parquet_string_as_string = 0",
            folder / "export.jsonl": SQL,
            folder / "export.parquet": SQL.replace("FORMAT JSONEachRow", "FORMAT Parquet"),
            folder / "range.jsonl": SQL.replace("-- AND", "AND"),
            folder / "local.jsonl": f"{everything} JSONEachRow SETTINGS session_timezone = 'America/New_York'",
            folder / "local-export.jsonl": SQL + " SETTINGS session_timezone = 'America/New_York'",
        },
    )
    return folder


EXACT = (
    "answer.json",
    "compact.json",
    "pretty.jsonl",
    "array.json",
    "answer-iso.json",
    "answer-unix.json",
    "rows.jsonl",
    "rows.parquet",
    "iso.jsonl",
    "unix.jsonl",
    "quoted.jsonl",
    "binary.parquet",
    "export.jsonl",
    "export.parquet",
    "local-export.jsonl",
)


@pytest.mark.parametrize("name", EXACT)
def test_every_answer_gives_the_streams_that_were_put_in(answers: Path, name: str) -> None:
    messages = [*vector_messages(), export(*other_spans())]
    skipped = Skipped()
    assert streams_of(answers / name, skipped) == direct(messages)
    assert skipped.broken == 0, skipped.notes


@pytest.mark.parametrize("name", ["answer.json", "compact.json", "array.json", "rows.parquet"])
def test_an_audit_of_an_answer_is_that_of_what_was_put_in(answers: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "spans.jsonl").write_bytes(json_lines([*vector_messages(), export(*other_spans())]))
    found, wanted = load(answers / name), load(tmp_path / "spans.jsonl")
    assert found.rows == wanted.rows
    assert found.summary() == wanted.summary()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("columns.json", "expected rows of otel_traces, as FORMAT JSONEachRow writes them"),
        ("columns-and-types.json", "an answer by columns: expected rows of otel_traces, as FORMAT JSONEachRow"),
        ("strings.json", "expected rows of otel_traces, as FORMAT JSONEachRow writes them"),
        ("none.json", "no export request found"),
    ],
)
def test_an_answer_that_is_not_read_is_refused(answers: Path, name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load(answers / name)


TABLES: dict[str, tuple[Callable[..., bytes], dict[str, Any]]] = {
    "nested": (clickhouse_nested, {"flat": False}),
    "json": (clickhouse_json_schema, {"table": JSON_TABLE}),
}
"""Other tables than the exporter's default: how rows are put in, and how the table is made."""
FORMATS = (
    "JSON",
    "JSONCompact",
    "JSONEachRow",
    "Parquet",
    "JSON SETTINGS output_format_json_named_tuples_as_objects = 0",
    "JSONEachRow SETTINGS output_format_json_named_tuples_as_objects = 0",
)


@pytest.fixture(scope="module", params=sorted(TABLES))
def other_table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    rows, how = TABLES[request.param]
    queries = {
        folder / str(at): f"SELECT * FROM otel_traces FORMAT {file_format}" for at, file_format in enumerate(FORMATS)
    }
    ask(rows(vector_messages()), queries, **how)
    return folder


@pytest.mark.parametrize("file_format", FORMATS)
def test_tables_of_nested_events_and_of_json_give_the_same(other_table: Path, file_format: str) -> None:
    skipped = Skipped()
    assert streams_of(other_table / str(FORMATS.index(file_format)), skipped) == direct(vector_messages())
    assert skipped.broken == 0, skipped.notes


def test_the_export_holds_no_prompt_and_no_other_span(answers: Path) -> None:
    text = (answers / "export.jsonl").read_text()
    assert "what stays" not in text
    assert "GET /" not in text
    assert "what stays" in (answers / "rows.jsonl").read_text()


def test_the_range_of_the_export_is_one_of_the_tables_own_column(answers: Path) -> None:
    whole = (answers / "export.jsonl").read_text().splitlines()
    day = range(1_789_948_800 * 10**9, 1_790_035_200 * 10**9)  # 2026-09-21, UTC
    wanted = [line for line in whole if json.loads(line)["Timestamp"] in day]
    assert sorted((answers / "range.jsonl").read_text().splitlines()) == sorted(wanted)
    assert len(wanted) > 0


def test_times_without_a_zone_are_read_as_utc_and_that_is_reported(answers: Path) -> None:
    skipped = Skipped()
    found = streams_of(answers / "local.jsonl", skipped)
    assert skipped.counts["zone_assumed"] > 0
    assert "docs/audit-formats.md" in skipped.notes[0]
    shift_ns = 4 * 3600 * 10**9  # New York's in September
    true = {one.resolved.key: one for one in direct(vector_messages())}
    assert len(found) == len(true) + 1
    for one in found:
        if (original := true.get(one.resolved.key)) is not None:
            assert one.resolved.commit_ns is not None
            assert original.resolved.commit_ns == one.resolved.commit_ns + shift_ns
            assert original.times_ns == [at + shift_ns for at in one.times_ns]


@pytest.mark.parametrize(
    ("written", "expected_ns", "assumed"),
    [
        ('"2026-09-21 14:13:20.5"', 1_790_000_000_500_000_000, 1),
        ('"2026-09-21 14:13:20"', 1_790_000_000_000_000_000, 1),
        ('"2026-09-21T14:13:20.000000001Z"', 1_790_000_000_000_000_001, 0),
        ('"2026-09-21T10:13:20.25-04:00"', 1_790_000_000_250_000_000, 0),
        ('"1790000000.123456789"', 1_790_000_000_123_456_789, 0),
        ("1790000000", 1_790_000_000_000_000_000, 0),
        ("1790000000123456789", 1_790_000_000_123_456_789, 0),
        ('"1790000000123456789"', 1_790_000_000_123_456_789, 0),
    ],
)
def test_a_time_may_be_written_in_any_of_clickhouses_ways(
    tmp_path: Path, written: str, expected_ns: int, assumed: int
) -> None:
    row = (
        f'{{"Timestamp":{written},"TraceId":"1","SpanId":"1","SpanName":"chat","Duration":"7","StatusCode":"Error",'
        '"SpanAttributes":{"gen_ai.operation.name":"chat","gen_ai.response.time_to_first_chunk":"0.5"}}'
    )
    (tmp_path / "x").write_text(row)
    skipped = Skipped()
    (one,) = streams_of(tmp_path / "x", skipped)
    assert (one.resolved.commit_ns, one.resolved.end_ns) == (expected_ns, expected_ns + 7)
    assert one.resolved.outcome == "error"
    assert one.resolved.foreign is not None
    assert one.resolved.foreign.ttft_s == 0.5
    assert skipped.counts["zone_assumed"] == assumed
