"""What runs on Spark's executors, without Spark: however its shuffles cut and order batches, the rows are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from support.audit.spark_recordings import strewn
from support.audit.spark_rows import key, same, window_key
from support.audit.summary_oracle import judgements

from otel_llm import audit
from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.kernel.judge_batch import JUDGED
from otel_llm.audit.load import LATENESS_NS
from otel_llm.audit.spark import decoding, kernels, totals
from otel_llm.audit.spark.shapes import shaped
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.figures import NUMBERS
from otel_llm.slo.summary import figures

WINDOW_NS = 10_000_000_000
CLASSES = load_slo(None)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return strewn(tmp_path_factory.mktemp("journal"), requests=60)


@pytest.fixture(scope="module")
def local(journal: list[Path]) -> audit.Audit:
    return audit.load(*journal, window="10s")


def files(paths: list[Path]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        yield pa.RecordBatch.from_pydict({"path": [f"s3a://lake/{path.name}"], "content": [path.read_bytes()]})


def cut(rows: list[dict[str, Any]], schema: pa.Schema, random: Random) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of any lengths, some empty, as they come out of a shuffle."""
    while rows:
        some = random.randrange(len(rows) + 1)
        yield shaped(pa.RecordBatch.from_pylist(rows[:some], schema), schema)
        rows = rows[some:]


def records(paths: list[Path]) -> list[dict[str, Any]]:
    return [row for batch in decoding.records(files(paths)) for row in batch.to_pylist()]


def streams(paths: list[Path], random: Random) -> list[dict[str, Any]]:
    spans = [row for row in records(paths) if row["kind"] != "note"]
    random.shuffle(spans)
    spans.sort(key=lambda row: (row["trace_id"], row["span_id"], row["file"], row["number"]))
    found = decoding.assemble(cut(spans, decoding.RECORDS, random))
    return [row for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", range(3))
def test_requests_windows_and_summary_are_those_of_the_local_audit(
    journal: list[Path], local: audit.Audit, seed: int
) -> None:
    random = Random(seed)
    recorded = streams(journal, random)
    random.shuffle(recorded)

    judged = [row for one in kernels.judged(cut(recorded, STREAMS, random), CLASSES) for row in one.to_pylist()]
    wanted = sorted(local.rows, key=key)
    assert [{name: row[name] for name in wanted[0]} for row in sorted(judged, key=key)] == wanted

    parts = list(kernels.partials(cut(recorded, STREAMS, random), CLASSES, WINDOW_NS, LATENESS_NS))
    random.shuffle(parts)
    found = [row for batch in kernels.window_rows(iter(parts), WINDOW_NS) for row in batch.to_pylist()]
    assert {window_key(row): row for row in found} == {window_key(row): row for row in local.window_rows}
    assert len(found) == len(local.window_rows)

    random.shuffle(judged)
    schema = next(kernels.judged(cut(recorded[:1], STREAMS, Random(0)), CLASSES)).schema
    several = [row for one in cut(judged, schema, random) for row in totals.totals([one], CLASSES)]
    random.shuffle(several)
    merged = [row for one in totals.merged(several) for row in one.to_pylist()]
    same(totals.summary(merged, CLASSES, 0), local.summary())


def test_the_recordings_have_all_that_can_be_odd(local: audit.Audit) -> None:
    assert {row["outcome"] for row in local.rows} == {"completed", "cancelled", "error", "lost"}
    assert {row["choice"] for row in local.rows} == {0, 1, None}
    assert {row["met"] for row in local.rows} == {True, False, None}
    coverages = [row["coverage"] for row in local.rows if isinstance(row["coverage"], float)]
    assert any(0 < coverage < 1 for coverage in coverages)
    assert local.counts["duplicate_segments"]
    assert local.counts["unknown_class"]


def test_of_two_that_say_different_things_the_first_file_counts(tmp_path: Path) -> None:
    first, *_ = strewn(tmp_path, requests=1, files=1)
    rows = [row for row in records([first]) if row["kind"] == "span"]
    later = [{**row, "record": row["record"].replace(b'"M"', b'"X"').replace(b'"m"', b'"X"')} for row in rows]

    def models(records: list[dict[str, Any]]) -> set[str]:
        found = decoding.assemble(cut(records, decoding.RECORDS, Random(1)))
        return {row["model"] for batch in found for row in batch.to_pylist()}

    assert models([*rows, *later]) == models(rows) != {"X"}
    assert models([*later, *rows]) == {"X"}


def test_a_file_that_is_no_recording_is_a_note_with_its_own_name(tmp_path: Path) -> None:
    broken = tmp_path / "broken.bin"
    broken.write_bytes(b"no recording at all")
    (row,) = records([broken])
    (note,) = next(decoding.notes(iter([pa.RecordBatch.from_pylist([row], decoding.RECORDS)]))).to_pylist()
    assert note["file"] == "s3a://lake/broken.bin"
    assert note["reason"] == "unreadable_file"
    assert note["note"].startswith("s3a://lake/broken.bin: not a recording")


def test_streams_of_other_formats_come_through_and_once(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text("request,t_seconds\na,0.5\na,0.7\nb,0.9\n")
    rows = [row for row in records([table]) if row["kind"] == "stream"] * 2
    rows.sort(key=lambda row: (row["trace_id"], row["span_id"]))
    found = [row for batch in decoding.assemble(cut(rows, decoding.RECORDS, Random(3))) for row in batch.to_pylist()]
    local = audit.load(table)
    judged = next(kernels.judged(iter([pa.RecordBatch.from_pylist(found, STREAMS)]), CLASSES)).to_pylist()
    assert sorted(row["trace_id"] for row in judged) == sorted(str(row["trace_id"]) for row in local.rows)


def test_columns_that_are_not_there_or_not_known_are_named() -> None:
    batch = pa.RecordBatch.from_pydict({"trace_id": pa.array([b"1"])})
    with pytest.raises(ValueError, match="no column 'span_id' among trace_id"):
        shaped(batch, STREAMS)
    cells = {item.name: pa.nulls(1, item.type) for item in STREAMS}
    with pytest.raises(ValueError, match="1 nulls in the column 'trace_id'"):
        shaped(pa.RecordBatch.from_pydict(cells), STREAMS)


@pytest.mark.parametrize("met", [None, False])
def test_sums_that_no_request_has_a_part_in_are_none_here_too(met: bool | None) -> None:
    row = dict.fromkeys(name for name in totals.TOTALS.names) | dict.fromkeys((*NUMBERS, "end_unix_nano"))
    row |= {"slo_class": "chat", "measured_at": "client", "outcome": "completed", "start_unix_nano": 0, "met": met}
    table = pa.table({name: pa.array([row.get(name)], JUDGED.field(name).type) for name in JUDGED.names})
    found = totals.ClassTotals.of_requests(table, CLASSES.get("chat").objective)

    wanted = figures(judgements([row]), CLASSES.get("chat").objective, 10.0)
    assert found.figures(CLASSES.get("chat").objective, 10.0) == wanted
    assert (wanted["throughput_tok_s"], wanted["smooth_goodput_tok_s"]) == (None, None)
    assert wanted["goodput_req_s"] == (None if met is None else 0.0)
    assert totals.ClassTotals.of(found.row()).figures(CLASSES.get("chat").objective, 10.0) == wanted
