"""Tables keep integers, nulls and truths in every format they are written in, and are written whole or not at all."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from otel_llm.audit import write
from otel_llm.audit.tables import frame
from otel_llm.audit.write import ENDINGS, check_outputs, write_table, write_text
from otel_llm.formats.rows import Row
from otel_llm.shared.outputs import Inputs, OutputError
from otel_llm.slo.metrics import REQUESTS

FULL: Row = {
    "trace_id": "0a" * 16,
    "span_id": "0b" * 8,
    "choice": 0,
    "slo_class": "chat",
    "model": 'a "quoted",\nmodel 模型',
    "instance": "",
    "measured_at": "client",
    "outcome": "completed",
    "start_unix_nano": 1_790_000_000_123_456_789,
    "input_tokens": 9,
    "tokens": 2,
    "tokens_read": 2,
    "tokens_recorded": 2,
    "token_basis": "exact",
    "coverage": 1.0,
    "finish_reason": "length",
    "ttft_s": 0.1,
    "ttfo_s": 0.1,
    "e2e_s": 0.30000000000000004,
    "queue_s": 0.0,
    "prefill_s": 0.02,
    "relay_lag_s": 0.25,
    "normalized_latency_s": 0.15,
    "tpot_s": 0.2,
    "tbt_p50_s": 0.2,
    "tbt_p99_s": 0.2,
    "tbt_max_s": 0.2,
    "idle_s": 0.0,
    "idle_decode_s": 0.0,
    "stalls": 0,
    "deadlines": 2,
    "deadline_misses": 0,
    "fluidity_index": 1.0,
    "fluidity_line": 1.0,
    "met": True,
    "benefit": 2.0,
    "tenant": "acme",
}
EMPTY: Row = dict.fromkeys(REQUESTS)
ROWS = [FULL, EMPTY, FULL | {"met": False, "choice": 1}]


def test_every_column_has_a_value_of_its_type_here() -> None:
    types = {"text": str, "integer": int, "real": float, "truth": bool}
    assert {name: type(FULL[name]) for name in REQUESTS} == {name: types[kind] for name, kind in REQUESTS.items()}


def test_a_frame_has_nullable_types_and_nulls_stay_null() -> None:
    table = frame(ROWS, REQUESTS)

    assert list(table.columns) == list(REQUESTS)
    assert {name: str(table[name].dtype) for name in ("choice", "met", "idle_s")} == {
        "choice": "Int64",
        "met": "boolean",
        "idle_s": "Float64",
    }
    assert table["start_unix_nano"].tolist()[0] == 1_790_000_000_123_456_789
    assert table.isna().sum(axis=1).tolist() == [0, len(REQUESTS), 0]
    assert bool(table["met"].fillna(False).sum() == 1)


def test_no_rows_make_an_empty_frame_with_all_columns_and_types() -> None:
    table = frame([], REQUESTS)

    assert list(table.columns) == list(REQUESTS)
    assert str(table["tokens"].dtype) == "Int64"


def test_json_lines_give_back_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_table(path, ROWS, REQUESTS)
    lines = path.read_text("utf-8").split("\n")

    assert [json.loads(line) for line in lines[:-1]] == ROWS
    assert [list(json.loads(line)) for line in lines[:-1]] == [list(REQUESTS)] * 3
    assert lines[-1] == ""
    assert "模型" in lines[0]


def test_parquet_gives_back_the_rows_with_their_types(tmp_path: Path) -> None:
    path = tmp_path / "rows.PARQUET"
    write_table(path, ROWS, REQUESTS)
    table = pq.read_table(path)

    assert table.to_pylist() == ROWS
    assert {str(table.schema.field(name).type) for name in ("choice", "start_unix_nano")} == {"int64"}
    assert str(table.schema.field("met").type) == "bool"


def test_csv_has_empty_fields_for_nulls_and_exact_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_table(path, ROWS, REQUESTS)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))

    assert rows[0]["model"] == FULL["model"]
    assert rows[0]["e2e_s"] == "0.30000000000000004"
    assert rows[0]["start_unix_nano"] == "1790000000123456789"
    assert [row["met"] for row in rows] == ["true", "", "false"]
    assert set(rows[1].values()) == {""}
    read = pd.read_csv(path, dtype={"start_unix_nano": "Int64"})
    assert read["start_unix_nano"].tolist()[0] == 1_790_000_000_123_456_789


def test_a_model_name_that_is_no_valid_unicode_does_not_lose_the_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_table(path, [FULL | {"model": "bad \ud800"}], REQUESTS)

    assert json.loads(path.read_text("utf-8"))["model"] == "bad \ud800"


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"rows{ending}"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "csv_text", fail)
    monkeypatch.setattr(write, "arrow_table", fail)
    monkeypatch.setattr(json, "dumps", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        write_table(path, ROWS, REQUESTS)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_replaces_the_old_one_with_ordinary_rights(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    path = tmp_path / "page.html"
    path.write_text("old")
    write_text(path, "new ✓")

    assert path.read_text("utf-8") == "new ✓"
    assert path.stat().st_mode == plain.stat().st_mode


def test_outputs_that_cannot_be_are_refused_before_any_work(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("{}")
    (tmp_path / "folder.csv").mkdir()
    refused = {
        tmp_path / "rows.xlsx": "use one of .parquet, .csv, .jsonl",
        tmp_path / "rows": "cannot tell the format",
        tmp_path / "none" / "rows.csv": "does not exist; make it first",
        tmp_path / "folder.csv": "is a folder",
        source: "is one of the inputs",
    }
    for path, message in refused.items():
        with pytest.raises(OutputError, match=message):
            check_outputs([(path, ENDINGS)], Inputs([source]))
    check_outputs([(tmp_path / "rows.csv", ENDINGS)], Inputs([source]))
    assert not (tmp_path / "rows.csv").exists()
