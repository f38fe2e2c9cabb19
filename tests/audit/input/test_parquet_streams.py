"""Parquet of token times: what the audit wrote is read again the same, and what others write, by documented rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.recordings import vector_classes, vector_messages, write_format
from support.vectors import FOLDER

from otel_llm import audit
from otel_llm.audit.input import parquet_streams
from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.cli.main import main
from otel_llm.formats.records import InputError

ROWS = FOLDER / "rows.jsonl"
S = 1_000_000_000


def written(tmp_path: Path, source: Path) -> Path:
    path = tmp_path / "streams.parquet"
    with path.open("wb") as file:
        writer = parquet_streams.Writer(file)
        for batch in audit.load_streams(source):
            writer.write(batch)
        writer.close()
    return path


def test_what_is_written_is_read_again_the_same(tmp_path: Path) -> None:
    recordings = ((ROWS, None), (write_format(tmp_path, "journal.otlp", vector_messages()), vector_classes()))
    for source, classes in recordings:
        path = written(tmp_path, source)
        before, after = audit.load(source, slo=classes), audit.load(path, slo=classes)
        assert after.judged_table == before.judged_table
        assert after.window_rows == before.window_rows
        assert after.summary() == before.summary()
        whole = pa.Table.from_batches(audit.load_streams(source)).to_pylist()
        for rows_at_once in (1, 3, 10**6):
            batches = list(parquet_streams.read_batches(path, rows_at_once))
            assert max(len(batch) for batch in batches) <= rows_at_once
            assert [row for batch in batches for row in batch.to_pylist()] == whole


def test_the_command_writes_them_beside_its_other_work(tmp_path: Path) -> None:
    out = tmp_path / "s.parquet"
    done = CliRunner().invoke(main, ["audit", str(ROWS), "--streams", str(out), "--format", "json", "--jobs", "1"])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(main, ["audit", str(out), "--format", "json", "--jobs", "1"])
    assert again.stdout.splitlines()[0] == done.stdout.splitlines()[0]


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_seconds_since_the_commit_are_all_that_a_file_needs(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", t_seconds=[[0.5, 0.75, 4.0], [], [0.25]])
    found = audit.load(path)
    rows: dict[Any, Any] = {row["tokens"]: row for row in found.rows}
    assert sorted(rows) == [0, 1, 3]
    assert {row["outcome"] for row in found.rows} == {"completed"}
    assert {row["start_unix_nano"] for row in found.rows} == {0}
    assert rows[3]["ttft_s"] == 0.5
    assert rows[3]["tbt_max_s"] == 3.25
    # By hand: at 5 tokens/s the third token is due 0.6 s after the commit, and comes at 4 s.
    assert rows[3]["idle_s"] == pytest.approx(3.4)
    assert rows[3]["e2e_s"] == 4.0
    assert [row["trace_id"] for row in found.rows] == [row["trace_id"] for row in audit.load(path).rows]
    assert len({row["trace_id"] for row in found.rows}) == 3


def test_times_without_a_commit_are_not_judged(tmp_path: Path) -> None:
    (row,) = audit.load(table(tmp_path / "a.parquet", times_ns=[[S, 2 * S]])).rows
    assert (row["start_unix_nano"], row["tokens"], row["idle_s"], row["met"]) == (None, 2, None, None)


def test_what_a_row_says_is_taken_and_times_out_of_order_are_sorted(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.parquet",
        trace_id=pa.array([bytes(15) + b"\x01"], pa.binary(16)),
        commit_ns=pa.array([S], pa.uint64()),
        end_ns=pa.array([9 * S]),
        times_ns=pa.array([[3 * S, 2 * S]], pa.large_list(pa.int64())),
        kinds=pa.array([b"\x01\x00"]),
        outcome=pa.array(["cancelled"]).dictionary_encode(),
        model=pa.array(["m"], pa.large_string()),
        measured_at=["server"],
        other=[1],
    )
    (row,) = audit.load(path, class_name="chat").rows
    assert row["trace_id"] == "00" * 15 + "01"
    assert row["span_id"] == "00" * 8
    assert (row["model"], row["measured_at"], row["outcome"]) == ("m", "server", "cancelled")
    assert (row["tokens"], row["tokens_read"], row["ttft_s"], row["ttfo_s"], row["e2e_s"]) == (2, 1, 1.0, 1.0, 8.0)


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "times of text": ({"times_ns": [["a"]]}, "column times_ns"),
    "no list": ({"times_ns": [1, 2]}, "column times_ns"),
    "null in a list": ({"times_ns": [[1, None]]}, "column times_ns: null"),
    "beyond all years": ({"times_ns": [[2**62]]}, "2116"),
    "no number": ({"t_seconds": [[float("nan")]]}, "column t_seconds"),
    "infinite": ({"t_seconds": [[float("inf")]]}, "column t_seconds"),
    "outcome": ({"t_seconds": [[1.0]], "outcome": ["done"]}, "column outcome: 'done'"),
    "model": ({"t_seconds": [[1.0]], "model": [3]}, "column model: int64; expected string"),
    "commit": ({"t_seconds": [[1.0]], "commit_ns": [1.5]}, "column commit_ns: double; expected int64"),
    "kinds": ({"t_seconds": [[1.0]], "kinds": [b"\x00\x00"]}, "column kinds"),
    "kinds beside none": (
        {"t_seconds": [[1.0], [1.0]], "kinds": pa.array([None, b"\x09"], pa.binary())},
        "column kinds",
    ),
    "kind": ({"t_seconds": [[1.0]], "kinds": [b"\x09"]}, "column kinds"),
    "null": ({"t_seconds": [[1.0]], "measured_at": pa.array([None], pa.string())}, "column measured_at: null"),
    "known": ({"t_seconds": [[1.0]], "known_tokens": [5]}, "column known_tokens"),
    "judged without a start": (
        {"times_ns": [[1]], "complete": [True], "commit_ns": pa.array([None], pa.int64())},
        "column complete",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_names_file_and_column(tmp_path: Path, name: str) -> None:
    columns, reported = BROKEN[name]
    with pytest.raises(InputError, match=r"a\.parquet") as error:
        audit.load(table(tmp_path / "a.parquet", **columns))
    assert reported in str(error.value)


def test_a_cut_file_is_reported(tmp_path: Path) -> None:
    path = table(tmp_path / "a.parquet", t_seconds=[[1.0]])
    data = bytearray(path.read_bytes())
    data[4:40] = bytes(36)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"a\.parquet"):
        audit.load(path)


def test_every_column_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "audit.md").read_text("utf-8")
    for name in (*STREAMS.names, parquet_streams.T_SECONDS):
        assert f"`{name}`" in page, name
    assert np.dtype(np.int64).itemsize * 10**6 == parquet_streams.BATCH_BYTES
