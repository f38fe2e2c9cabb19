"""ClickHouse in a process of its own (chdb): the Collector's table, filled with spans, asked as its users would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.patience import WAIT_S
from support.requirements import require

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
