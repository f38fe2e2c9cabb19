"""The audit's kernel gives the rows that the streams give one by one, and streams survive their way through Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.audit_oracle import one_by_one
from support.recordings import vector_classes, vector_messages, write_form
from support.vectors import FOLDER

from otel_llm import audit
from otel_llm.audit.kernel import JUDGED, judge_batch
from otel_llm.audit.streams import batches, from_batch, to_batch
from otel_llm.audit.tables import REQUESTS
from otel_llm.readers.assemble import Assembled, Assembler
from otel_llm.readers.files import read_file
from otel_llm.readers.otlp import decode
from otel_llm.readers.skipped import Skipped
from otel_llm.rules.slo_file import load_slo

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.slo.classes import SloClasses

ROWS = FOLDER / "rows.jsonl"


def recorded(tmp_path: Path) -> list[tuple[list[Assembled], SloClasses]]:
    vectors = write_form(tmp_path, "journal.otlp", vector_messages())
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
        assembler.add(decode(*item))
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


def test_nothing_in_is_nothing_out() -> None:
    assert judge_batch(to_batch([]), load_slo(None)).schema == JUDGED
    assert not len(judge_batch(to_batch([]), load_slo(None)))


def test_recorded_streams_can_be_had_as_batches() -> None:
    found = list(audit.load_streams(ROWS))
    assert sum(len(batch) for batch in found) == len(audit.load(ROWS).rows)
