"""The audit's kernel gives the rows that the streams give one by one, and streams survive their way through Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from support.audit.audit_oracle import one_by_one
from support.recordings import vector_classes, vector_messages, write_format
from support.vectors import FOLDER

from otel_llm import audit
from otel_llm.audit.input.retained import copied_row
from otel_llm.audit.input.stream_batch import batches, dictionary_of, from_batch, to_batch
from otel_llm.audit.kernel.judge_batch import JUDGED, judge_batch
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.files import read_file
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.otlp.export_request import decode
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.metrics import REQUESTS

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.slo.classes import SloClasses

ROWS = FOLDER / "rows.jsonl"


def recorded(tmp_path: Path) -> list[tuple[list[Assembled], SloClasses]]:
    vectors = write_format(tmp_path, "journal.otlp", vector_messages())
    return [
        (read(ROWS), load_slo(None)),
        (read(vectors), vector_classes()),
    ]


def rows_of(streams: list[Assembled], classes: SloClasses) -> list[dict[str, Any]]:
    return [{**one.row, "fluid_tbt_ns": one.fluid_tbt_ns} for one in one_by_one(streams, classes)]


def read(path: Path) -> list[Assembled]:
    assembler = Assembler()
    for item in read_file(path, Skipped()):
        assert not isinstance(item, Assembled)
        assembler.add(decode(item.message, item.receipt_ns))
    return assembler.finish()


@pytest.mark.parametrize("most_tokens", [1, 50, 10**9])
def test_the_kernel_gives_the_rows_of_the_streams(tmp_path: Path, most_tokens: int) -> None:
    for streams, classes in recorded(tmp_path):
        found = [row for batch in batches(streams, most_tokens) for row in judge_batch(batch, classes).to_pylist()]
        names = [*REQUESTS, "fluid_tbt_ns"]
        assert [{name: row[name] for name in names} for row in found] == rows_of(streams, classes)


def test_streams_survive_arrow(tmp_path: Path) -> None:
    for streams, classes in recorded(tmp_path):
        back = [stream for batch in batches(streams, 100) for stream in from_batch(batch)]
        assert rows_of(back, classes) == rows_of(streams, classes)
        assert [one.times_ns for one in back] == [one.times_ns for one in streams]


def test_any_part_of_a_batch_gives_its_rows(tmp_path: Path) -> None:
    for streams, classes in recorded(tmp_path):
        (batch,) = batches(streams)
        rows = judge_batch(batch, classes).to_pylist()
        for start, length in ((0, 2), (1, len(batch)), (3, 4), (len(batch) - 1, 1), (2, 0)):
            assert judge_batch(batch.slice(start, length), classes).to_pylist() == rows[start : start + length]


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary(16), pa.dictionary(pa.int8(), pa.binary())])
def test_ids_of_any_binary_type_are_read(tmp_path: Path, kind: pa.DataType) -> None:
    streams, classes = recorded(tmp_path)[0]
    (batch,) = batches(streams)
    column = batch.column("trace_id")
    other = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    own = batch.set_column(0, "trace_id", other).slice(1)
    assert judge_batch(own, classes).to_pylist() == judge_batch(batch, classes).to_pylist()[1:]


@pytest.mark.parametrize("name", ["trace_id", "span_id", "outcome"])
def test_a_stream_without_an_id_or_outcome_is_refused(tmp_path: Path, name: str) -> None:
    streams, classes = recorded(tmp_path)[0]
    (batch,) = batches(streams)
    column = batch.column(name)
    place = batch.schema.get_field_index(name)
    with pytest.raises(ValueError, match="a stream has no"):
        judge_batch(batch.set_column(place, name, pa.array([*column.to_pylist()[:-1], None], column.type)), classes)


@pytest.mark.parametrize(("kind", "number"), [(pa.int8(), 128), (pa.uint8(), 256), (pa.int32(), 3)])
def test_words_are_found_in_a_dictionary_that_is_full(kind: pa.DataType, number: int) -> None:
    reported = [str(one) for one in range(number)]
    indices = pa.array([number - 1, None, 0], kind)
    places, words = dictionary_of(pa.DictionaryArray.from_arrays(indices, pa.array(reported)))
    assert [words[place] for place in places.tolist()] == [reported[-1], None, reported[0]]


def test_a_row_that_is_kept_holds_no_more_than_itself(tmp_path: Path) -> None:
    streams, _ = recorded(tmp_path)[0]
    (batch,) = batches(streams * 200)
    row = copied_row(batch, len(streams) + 1)
    assert row.to_pylist() == batch.slice(len(streams) + 1, 1).to_pylist()
    assert row.get_total_buffer_size() < 20_000 < batch.slice(len(streams) + 1, 1).get_total_buffer_size()


def test_nothing_in_is_nothing_out() -> None:
    assert judge_batch(to_batch([]), load_slo(None)).schema == JUDGED
    assert not len(judge_batch(to_batch([]), load_slo(None)))


def test_recorded_streams_can_be_had_as_batches() -> None:
    found = list(audit.load_streams(ROWS))
    assert sum(len(batch) for batch in found) == len(audit.load(ROWS).rows)
