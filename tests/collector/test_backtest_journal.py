"""The records of journals in order of receipt, whatever lies in the folders."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from otel_llm.backtest.journal_recordings import Recording
from otel_llm.collector.checkpoints import STOPPED_NS
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.records import InputError
from otel_llm.journal.checkpoint import write_resume
from otel_llm.journal.names import file_name

T = 1_790_000_000_000_000_000


def journal(folder: Path, *files: list[int], number: int = 0) -> Path:
    """Write a journal: of each file the receipts, in ns after T; a record says its own receipt."""
    folder.mkdir(exist_ok=True)
    for index, receipts in enumerate(files, number):
        records = b"".join(frame(b"\n" + bytes([len(str(one))]) + str(one).encode(), T + one) for one in receipts)
        (folder / file_name(T + receipts[0], index)).write_bytes(records)
    return folder


def read(*paths: Path) -> tuple[list[tuple[int, int]], Recording]:
    """Return each record's name and receipt (ns after T)."""
    recording = Recording(paths)
    found = [(int(one.raw[2:]), (one.receipt_ns or 0) - T) for one in recording]
    return found, recording


def test_records_come_in_order_of_receipt(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", [1, 2, 2, 5], [5, 9])
    found, recording = read(folder)
    assert found == [(1, 1), (2, 2), (2, 2), (5, 5), (5, 5), (9, 9)]
    assert (recording.files, recording.records, recording.backwards) == (2, 6, 0)
    assert (recording.first_ns, recording.last_ns) == (T + 1, T + 9)
    assert recording.done_bytes == recording.size > 0


def test_several_journals_are_read_side_by_side(tmp_path: Path) -> None:
    found, recording = read(journal(tmp_path / "a", [1, 4], [8]), journal(tmp_path / "b", [2, 3], [9]))
    assert [name for name, _ in found] == [1, 2, 3, 4, 8, 9]
    assert recording.backwards == 0


def test_files_of_one_folder_are_one_journal_however_they_are_named(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", [1, 2], [3], [4, 5])
    found, _ = read(*sorted(folder.iterdir(), reverse=True))
    assert [name for name, _ in found] == [1, 2, 3, 4, 5]


def test_a_record_of_before_the_one_before_is_taken_with_it(tmp_path: Path) -> None:
    found, recording = read(journal(tmp_path / "a", [3, 7, 5, 7, 8]))
    assert found == [(3, 3), (7, 7), (5, 7), (7, 7), (8, 8)]
    assert recording.backwards == 1


def test_closed_files_are_read_compressed(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", [1, 2], [3])
    first = min(folder.iterdir())
    first.with_name(first.name + ".zst").write_bytes(zstandard.compress(first.read_bytes()))
    first.unlink()
    assert [name for name, _ in read(folder)[0]] == [1, 2, 3]


def test_a_file_that_is_compressed_meanwhile_is_read(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", [1, 2], [3])
    recording = Recording([folder])
    first = min(folder.iterdir())
    first.with_name(first.name + ".zst").write_bytes(zstandard.compress(first.read_bytes()))
    first.unlink()
    assert len(list(recording)) == 3


def test_what_cannot_be_read_costs_itself(tmp_path: Path) -> None:
    folder = journal(tmp_path / "a", [1, 2], [3], [4])
    first, second, third = sorted(folder.iterdir())
    first.write_bytes(first.read_bytes()[:-3])  # a crash
    data = bytearray(second.read_bytes())
    data[7] ^= 1
    second.write_bytes(data)
    third.write_bytes(third.read_bytes() + struct.pack(">I", 3) + b"abc")
    found, recording = read(folder)
    assert [name for name, _ in found] == [1, 4]
    assert recording.skipped.counts["torn_tail"] == 1
    assert recording.skipped.broken == 2


def test_records_of_others_have_no_receipt(tmp_path: Path) -> None:
    (tmp_path / "theirs.otlp").write_bytes(struct.pack(">I", 2) + b"\n\x00")
    found, recording = read(tmp_path)
    assert found == []
    assert recording.skipped.counts["unsealed"] == 1


@pytest.mark.parametrize("data", [b'{"resourceSpans": []}\n', b"\n\x00", b"hello"])
def test_what_is_no_journal_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(data)
    with pytest.raises(InputError, match="no journal"):
        read(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Recording([tmp_path / "none"])
    with pytest.raises(InputError, match="no journal in this folder"):
        Recording([tmp_path])


def test_the_stop_is_known_if_all_were_stopped(tmp_path: Path) -> None:
    a, b = journal(tmp_path / "a", [1]), journal(tmp_path / "b", [2])
    assert Recording([a, b]).stopped_ns() is None
    write_resume(a, {STOPPED_NS: T + 5})
    assert Recording([a]).stopped_ns() == T + 5
    assert Recording([next(iter(a.glob("*.otlp")))]).stopped_ns() == T + 5
    assert Recording([a, b]).stopped_ns() is None
    write_resume(b, {STOPPED_NS: T + 4})
    assert Recording([a, b]).stopped_ns() == T + 5


def test_a_long_journal_is_not_held_in_memory(tmp_path: Path) -> None:
    record = frame(b"\n\x80\x20" + bytes(4096), T)
    (tmp_path / file_name(T, 0)).write_bytes(record * 8_000)
    tracemalloc.start()
    try:
        assert sum(1 for _ in Recording([tmp_path])) == 8_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 12 * 2**20  # of 33 MB
