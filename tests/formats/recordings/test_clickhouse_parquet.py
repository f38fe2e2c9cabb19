"""Parquet of ClickHouse's table gives the same streams, whether its events are nested or side by side."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.formats.span_formats import clickhouse, clickhouse_nested
from support.formats.streams import direct, streams_of
from support.recordings import vector_messages

from otel_llm.formats.io.skipped import Skipped


@pytest.mark.parametrize("nested", [True, False])
def test_events_of_clickhouse_are_read_nested_too(tmp_path: Path, nested: bool) -> None:
    rows = [json.loads(line) for line in (clickhouse_nested if nested else clickhouse)(vector_messages()).splitlines()]
    moment = pa.timestamp("ns", "UTC")
    event = {"Timestamp": moment, "Name": pa.string(), "Attributes": pa.map_(pa.string(), pa.string())}
    attributes = pa.map_(pa.string(), pa.string())
    kinds = {"Timestamp": moment, "SpanAttributes": attributes, "ResourceAttributes": attributes}
    kinds |= {"Events": pa.list_(pa.struct(list(event.items())))} if nested else {}
    kinds |= {f"Events.{name}": pa.list_(kind) for name, kind in event.items()} if not nested else {}

    def reported(value: object, kind: pa.DataType) -> object:
        if pa.types.is_timestamp(kind):
            seconds, _, rest = str(value).partition(".")
            whole = datetime.fromisoformat(f"{seconds}+00:00")
            return int(whole.timestamp()) * 10**9 + int(rest)
        if pa.types.is_map(kind):
            return list(cast("dict[str, str]", value).items())
        if pa.types.is_struct(kind):
            return {field.name: reported(cast("dict[str, object]", value)[field.name], field.type) for field in kind}
        if pa.types.is_list(kind):
            return [reported(one, kind.value_type) for one in cast("list[object]", value)]
        return value

    columns = {name: kinds.get(name, pa.string()) for name in rows[0] if not name.startswith("Links")}
    columns["Duration"] = pa.int64()
    cells = {
        name: pa.array([int(row[name]) if name == "Duration" else reported(row[name], kind) for row in rows], kind)
        for name, kind in columns.items()
    }
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(cells), path)
    assert streams_of(path, Skipped()) == direct(vector_messages())
