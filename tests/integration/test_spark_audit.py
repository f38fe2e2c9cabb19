"""The audit on a real Spark of two workers gives what the local audit gives, whatever dies and however files come."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.audit.spark_cluster import JOB, run_python
from support.audit.spark_recordings import strewn
from support.audit.spark_rows import check, rows

from otel_llm import audit
from otel_llm.audit.input.stream_batch import STREAMS

PAGE = Path(__file__).parents[2] / "docs" / "audit-spark.md"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spark")
    (folder / "journal").mkdir()
    (folder / "streams").mkdir()
    files = strewn(folder / "journal")
    for number, batch in enumerate(audit.load_streams(*files)):
        for start in range(0, len(batch), 25):
            with pq.ParquetWriter(folder / "streams" / f"{number}-{start:03}.parquet", STREAMS) as writer:
                writer.write_batch(batch.slice(start, 25))
    # Damage costs itself, there as here.
    (folder / "journal" / "broken.txt").write_bytes(b"no recording at all")
    here = folder / "here"
    shutil.copytree(folder / "journal", here / "journal")
    run_python(here, JOB, folder / "journal", folder / "streams", PAGE, folder / "out")
    return folder


@pytest.fixture(scope="module")
def local(work: Path) -> audit.Audit:
    return audit.load(*sorted((work / "journal").glob("*.otlp")), window="10s")


def test_a_worker_killed_in_mid_job_changes_nothing(work: Path, local: audit.Audit) -> None:
    check(work / "out" / "killed", local)
    assert "Lost executor" in (work / "here" / "spark.log").read_text(errors="replace")


def test_what_cannot_be_read_is_named_and_costs_itself(work: Path, local: audit.Audit) -> None:
    notes = json.loads((work / "out" / "killed" / "notes.json").read_text())
    (broken,) = [note for note in notes if note["file"].endswith("broken.txt")]
    assert broken["reason"] == "unreadable_file"
    assert broken["number"] == 1
    assert "journal/broken.txt: not a recording" in broken["note"]
    assert {note["file"] for note in notes} == {broken["file"]}


def test_streams_in_parquet_are_judged_the_same_by_the_command(work: Path, local: audit.Audit) -> None:
    check(work / "out" / "parquet", local)


def test_a_growing_folder_of_journals_gives_what_all_of_it_gives(work: Path, local: audit.Audit) -> None:
    check(work / "out" / "growing-journal", local)


def test_a_growing_folder_of_streams_gives_what_all_of_it_gives(work: Path, local: audit.Audit) -> None:
    check(work / "out" / "growing-streams", local)


@pytest.mark.parametrize("kind", ["journal", "streams"])
def test_what_was_judged_otherwise_is_not_mixed(work: Path, kind: str) -> None:
    refusal = (work / "out" / f"growing-{kind}" / "refusal.txt").read_text()
    assert refusal.endswith("followed: judged by other window_ns so far; use the same, or another folder")


def test_the_page_writes_what_it_says(work: Path, local: audit.Audit) -> None:
    assert len(rows(work / "here" / "streams")) == len(local.rows)
    assert len(rows(work / "here" / "judged" / "requests")) == len(local.rows)
