"""A model's name in a CSV file is text for a spreadsheet, and the same name again for our readers."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run

from otel_llm.audit.report.saved import read_table
from otel_llm.audit.write import GUARDED, csv_text, guarded, write_table
from otel_llm.slo.metrics import Kind

RUNS: Final = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\n=1")
STAYS: Final = ("gpt-4o", "'quoted'", "a=b", "", "1", "'")
COLUMNS: Final[dict[str, Kind]] = {"model": "text", "idle_s": "real", "tokens": "integer"}


@given(st.text(alphabet="'=+-@\t\r\nab1 "))
def test_what_is_guarded_runs_nowhere_and_comes_back(text: str) -> None:
    cell = guarded(text)
    assert cell[:1] not in set("=+-@\t\r\n")
    assert re.sub(GUARDED, r"\1", cell) == text


def test_text_is_guarded_and_numbers_stay_numbers() -> None:
    rows = [{"model": text, "idle_s": -1.5, "tokens": -3} for text in (*RUNS, *STAYS)]
    read = list(csv.DictReader(io.StringIO(csv_text(rows, list(COLUMNS)), newline="")))
    assert [row["model"] for row in read] == [f"'{text}" for text in RUNS] + list(STAYS)
    assert {(row["idle_s"], row["tokens"]) for row in read} == {("-1.5", "-3")}
    raw = csv.DictReader(io.StringIO(csv_text(rows, list(COLUMNS), raw=True), newline=""))
    assert [row["model"] for row in raw] == [*RUNS, *STAYS]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_our_reader_gives_what_was_written(tmp_path: Path, ending: str) -> None:
    names = [*RUNS, *(f"'{text}" for text in RUNS), *(text for text in STAYS if text)]
    rows = [{"model": text, "idle_s": -1.5, "tokens": -3} for text in names]
    write_table(tmp_path / f"t.{ending}", rows, COLUMNS)
    table, _ = read_table(tmp_path / f"t.{ending}", COLUMNS, ())
    assert list(table["model"]) == names
    assert set(table["tokens"]) == {-3}


def test_the_audit_guards_a_models_name_unless_told_otherwise(tmp_path: Path) -> None:
    recording = tmp_path / "times.csv"
    with recording.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["request", "t_seconds", "model", "outcome"])
        lines.writerows(["r", second, "=1+1", "completed"] for second in (0.1, 0.2))
    found = {}
    for option in ((), ("--csv-raw",)):
        outputs = [tmp_path / f"{name}{len(option)}.csv" for name in ("requests", "windows")]
        done = run("audit", recording, "--requests", outputs[0], "--windows", outputs[1], "--format", "csv", *option)
        assert done.returncode == 0, done.stderr
        for output in outputs:
            with output.open(newline="") as file:
                found[output.stem] = {row["model"] for row in csv.DictReader(file)}
    assert found == {"requests0": {"'=1+1"}, "windows0": {"'=1+1"}, "requests1": {"=1+1"}, "windows1": {"=1+1"}}
