"""Closed files: compressed so that no crash counts a record twice or not at all, and deleted when they may be."""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from support.collector.journal_states import plain_bytes, tick_until_closed, wait_for
from support.commands import wait_until
from support.otlp import T0_NS, export, segment_span
from support.recordings import received

from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.io.skipped import Skipped
from otel_llm.journal.closed_files import compress_file
from otel_llm.journal.journal import Journal
from otel_llm.journal.names import JournalFile, file_name, list_files, newest_possible, parse_name
from otel_llm.journal.records import records_since
from otel_llm.journal.retention import Horizon, Retention, expired

S = 1_000_000_000
RAW = export(segment_span(1, 0, [T0_NS])).SerializeToString()
RECORD = len(frame(RAW, T0_NS))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if ".otlp" in path.name)


def file_at(folder: Path, seconds: int, *records_s: int, number: int = 0, tail: bytes = b"") -> Path:
    """Write a file as an earlier run would have left it."""
    path = folder / file_name(T0_NS + seconds * S, number)
    path.write_bytes(b"".join(frame(RAW, T0_NS + at_s * S) for at_s in records_s) + tail)
    return path


def audited(folder: Path) -> list[int | None]:
    return [one.receipt_ns for one in received([folder], Skipped())]


def replayed(folder: Path) -> list[int | None]:
    return [record.receipt_ns for record in records_since(folder, 0, Counter())]


def compressed(folder: Path) -> bool:
    return not list(folder.glob("*.otlp"))


# Compression


def test_closed_files_are_compressed_and_read_as_before(tmp_path: Path) -> None:
    with Journal(tmp_path, max_bytes=3 * RECORD) as journal:
        for i in range(10):
            journal.append(RAW, T0_NS + i)
        wait_for(journal, journal_compressed_files=3)
        assert [name.endswith(".zst") for name in names(tmp_path)] == [True, True, True, False]
        assert audited(tmp_path) == replayed(tmp_path) == [T0_NS + i for i in range(10)]
        closed = next(tmp_path.glob("*.zst"))
        assert stat.S_IMODE(closed.stat().st_mode) == 0o600
        assert journal.counts()["journal_files"] == 4
        on_disk = sum((tmp_path / name).stat().st_size for name in names(tmp_path))
        assert journal.counts()["journal_folder_bytes"] == on_disk
    assert audited(tmp_path) == [T0_NS + i for i in range(10)]


def test_who_wants_plain_files_has_them(tmp_path: Path) -> None:
    file_at(tmp_path, 0, 0)
    with Journal(tmp_path, max_bytes=RECORD, compress=False) as journal:
        for i in range(3):
            journal.append(RAW, T0_NS + 100 * S + i)
        wait_for(journal, journal_files=4)
    assert [name.endswith(".otlp") for name in names(tmp_path)] == [True] * 4


def test_a_restart_compresses_what_earlier_runs_left_torn_ends_included(tmp_path: Path) -> None:
    torn = file_at(tmp_path, 0, 0, 1, tail=b"\x00\x00\x10\x00torn")
    wrong = file_at(tmp_path, 10, 10, number=1, tail=b"\x00\x00\x00\x40" + bytes(64))
    contents = {path.name: path.read_bytes() for path in (torn, wrong)}
    file_at(tmp_path, 20, number=2)  # begun, and killed before the first record
    foreign = {
        "notes.otlp": b"x",
        "20260101T000000.otlp": b"y",
        "a.zst": b"z",
        "99999999T999999.000000000Z-000000.otlp": b"",
    }
    for name, data in foreign.items():
        (tmp_path / name).write_bytes(data)
    before = Skipped()
    expected = [one.receipt_ns for one in received([torn, wrong], before)]
    with Journal(tmp_path) as journal:
        wait_for(journal, journal_compressed_files=2)
        assert journal.counts()["journal_files"] == 2
    for name, data in contents.items():
        assert not (tmp_path / name).exists()
        assert plain_bytes(tmp_path / f"{name}.zst") == data
    assert {name: (tmp_path / name).read_bytes() for name in foreign} == foreign
    after = Skipped()
    assert [one.receipt_ns for one in received([tmp_path / f"{name}.zst" for name in contents], after)] == expected
    assert after.counts == before.counts
    assert before.counts["torn_tail"] == 1


@pytest.mark.parametrize("left", ["nothing", "empty", "half", "whole", "garbage"])
def test_a_crash_while_compressing_costs_the_work_and_no_record(tmp_path: Path, left: str) -> None:
    """Every state of the folder that `kill -9` can leave between the first and the last step."""
    path = file_at(tmp_path, 0, *range(50), tail=b"\x00\x01torn")
    data = path.read_bytes()
    whole = zstandard.compress(data)
    unfinished = {"empty": b"", "half": whole[: len(whole) // 2], "whole": whole, "garbage": b"\x28\xb5\x2f\xfd??"}
    if left in unfinished:
        path.with_name(path.name + ".zst").write_bytes(unfinished[left])
    expected = [T0_NS + i * S for i in range(50)]
    assert audited(tmp_path) == replayed(tmp_path) == expected
    with Journal(tmp_path, compress=False):
        assert names(tmp_path) == [path.name]  # the rest is never taken for a file, whatever becomes of the other
    with Journal(tmp_path) as journal:
        wait_until("a compressed file is there", lambda: compressed(tmp_path))
        wait_for(journal, journal_compressed_files=1)
    assert names(tmp_path) == [path.name + ".zst"]
    assert plain_bytes(tmp_path / names(tmp_path)[0]) == data
    assert audited(tmp_path) == replayed(tmp_path) == expected


def test_the_plain_file_goes_only_once_the_other_lasts(tmp_path: Path) -> None:
    path = file_at(tmp_path, 0, *range(50))
    target = path.with_name(path.name + ".zst")
    data, steps = path.read_bytes(), []

    def fsync(fd: int) -> None:
        assert path.read_bytes() == data
        assert plain_bytes(target) == data  # written whole before it is made to last
        steps.append(stat.S_ISDIR(os.fstat(fd).st_mode))

    assert compress_file(path, target, fsync=fsync, stopping=lambda: False)
    assert steps == [False, True]  # the file, then its name
    assert not path.exists()


@pytest.mark.parametrize("step", [0, 1])
def test_an_error_at_any_step_leaves_the_plain_file_alone(tmp_path: Path, step: int) -> None:
    path = file_at(tmp_path, 0, *range(50))
    calls = []

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) == step + 1:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        compress_file(path, path.with_name(path.name + ".zst"), fsync=fsync, stopping=lambda: False)
    assert names(tmp_path) == [path.name]


def test_stopping_gives_up_at_once_and_cleanly(tmp_path: Path) -> None:
    path = file_at(tmp_path, 0, *range(50))
    assert not compress_file(path, path.with_name(path.name + ".zst"), fsync=os.fsync, stopping=lambda: True)
    assert names(tmp_path) == [path.name]


def test_what_cannot_be_compressed_is_counted_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    def fsync(fd: int) -> None:
        if broken and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".zst":
            raise OSError(28, "No space left on device")

    file_at(tmp_path, 0, 0)
    with Journal(tmp_path, fsync="never", fsync_call=fsync, retry_s=0.005) as journal:
        wait_until("it was tried three times", lambda: journal.counts()["journal_compress_errors"] >= 3)
        wait_until("none is being tried", lambda: not list(tmp_path.glob("*.zst")))  # while none is being tried
        journal.append(RAW, T0_NS + S)  # the journal itself works
        broken = False
        wait_for(journal, journal_compressed_files=1)
        assert audited(tmp_path) == [T0_NS, T0_NS + S]
    reported = [record.getMessage() for record in caplog.records]
    assert len(reported) == 1
    assert "cannot compress" in reported[0]


def test_one_file_that_cannot_be_read_does_not_keep_the_others(tmp_path: Path) -> None:
    first, second = file_at(tmp_path, 0, 0), file_at(tmp_path, 10, 10, number=1)
    first.with_name(first.name + ".zst").mkdir()  # in the way
    with Journal(tmp_path, retry_s=3600) as journal:
        wait_for(journal, journal_compressed_files=1)
        assert journal.counts()["journal_compress_errors"] == 1
    assert first.exists()
    assert not second.exists()


def test_a_large_file_is_compressed_with_little_memory(tmp_path: Path) -> None:
    path = tmp_path / file_name(T0_NS, 0)
    with path.open("wb") as file:
        file.truncate(2**28)  # zeros, no blocks
    target = path.with_name(path.name + ".zst")
    with Path("/proc/self/status").open() as status:
        before = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert compress_file(path, target, fsync=os.fsync, stopping=lambda: False)
    with Path("/proc/self/status").open() as status:
        after = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert after - before < 32 * 1024


def test_an_audit_that_listed_the_folder_before_a_file_was_compressed_finds_it(tmp_path: Path) -> None:
    paths = [file_at(tmp_path, 10 * i, 10 * i, number=i) for i in range(4)]
    skipped: Counter[str] = Counter()
    reading = records_since(tmp_path, 0, skipped)
    assert next(reading).receipt_ns == T0_NS
    compress_file(paths[1], paths[1].with_name(paths[1].name + ".zst"), fsync=os.fsync, stopping=lambda: False)
    paths[2].unlink()
    assert [record.receipt_ns for record in reading] == [T0_NS + 10 * S, T0_NS + 30 * S]
    assert skipped == Counter(deleted_file=1)


# Names


def test_names_say_when_and_sort(tmp_path: Path) -> None:
    instants = [0, 1, T0_NS, T0_NS + 1, 2**63]
    paths = [tmp_path / file_name(at_ns, number) for number, at_ns in enumerate(instants)]
    assert sorted(paths) == paths
    assert [parse_name(path) for path in paths] == [JournalFile(at, i, paths[i]) for i, at in enumerate(instants)]


@pytest.mark.parametrize(
    "name",
    [
        "20260921T141320.000000000Z-000000.otlp.gz",
        "20260921T141320.000000000Z-00000.otlp",
        "20261321T141320.000000000Z-000000.otlp",
        "x20260921T141320.000000000Z-000000.otlp",
        "٢٠260921T141320.000000000Z-000000.otlp",
        "journal.lock",
    ],
)
def test_other_names_are_not_ours(name: str) -> None:
    assert parse_name(Path(name)) is None


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=4), min_size=1, max_size=6))
def test_a_file_never_holds_a_record_younger_than_the_next_files_name(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[int]]
) -> None:
    """Also when the clock was set back between runs, or records come in any order."""
    folder = tmp_path_factory.mktemp("journal")
    for run in runs:
        with Journal(folder, fsync="never", compress=False, max_bytes=2 * RECORD) as journal:
            for at_s in run:
                journal.append(RAW, T0_NS + at_s * S)
    files, _ = list_files(folder)
    for file, until_ns in zip(files, newest_possible(files, None), strict=True):
        times = [one.receipt_ns for one in received([file.path]) if one.receipt_ns is not None]
        assert until_ns is None or max(times) <= until_ns
    for since_s in (1, 25, 50):
        found = [record.receipt_ns for record in records_since(folder, T0_NS + since_s * S, Counter())]
        assert found == [T0_NS + at_s * S for run in runs for at_s in run if at_s >= since_s]


# Retention


def closed_files(*named_s: int) -> list[JournalFile]:
    return [JournalFile(at_s * S, i, Path(f"{i}")) for i, at_s in enumerate(named_s)]


def gone(
    files: list[JournalFile], sizes: list[int], retention: Retention, *, now_s: int = 1000, keep_from_s: int = 10**6,
    last_s: int = 100, other: int = 0,
) -> list[int]:  # fmt: skip
    horizon = Horizon(now_ns=now_s * S, keep_from_ns=keep_from_s * S, last_ns=last_s * S, other_bytes=other)
    return [file.number for file in expired(files, dict(zip(files, sizes, strict=True)), retention, horizon)]


def test_the_oldest_go_while_all_are_too_large() -> None:
    files, sizes = closed_files(0, 10, 20, 30), [5, 1, 1, 1]
    for total, expected in [(8, []), (7, [0]), (3, [0]), (2, [0, 1]), (1, [0, 1, 2]), (0, [0, 1, 2, 3])]:
        assert gone(files, sizes, Retention(total_bytes=total)) == expected
    assert gone(files, sizes, Retention(total_bytes=8), other=1) == [0]
    assert gone(files, sizes, Retention(total_bytes=8), other=5) == [0]
    assert gone(files, sizes, Retention(total_bytes=8), other=6) == [0, 1]
    assert gone([], [], Retention(total_bytes=0), other=100) == []


def test_the_old_go_when_their_last_record_is_too_old() -> None:
    files, sizes = closed_files(0, 10, 20), [1, 1, 1]
    # A file's last record is not younger than the next one's name: 10, 20 and (for the last) 100.
    for now_s, expected in [(60, []), (61, [0]), (70, [0]), (71, [0, 1]), (150, [0, 1]), (151, [0, 1, 2])]:
        assert gone(files, sizes, Retention(age_s=50), now_s=now_s) == expected


def test_what_a_restart_needs_stays_whatever_its_age_and_size() -> None:
    files, sizes = closed_files(0, 10, 20), [1, 1, 1]
    for retention in (Retention(total_bytes=0), Retention(age_s=0)):
        for keep_from_s, expected in [(0, []), (10, []), (11, [0]), (20, [0]), (21, [0, 1]), (101, [0, 1, 2])]:
            assert gone(files, sizes, retention, keep_from_s=keep_from_s) == expected


def test_without_bounds_everything_stays() -> None:
    assert gone(closed_files(0, 10), [9, 9], Retention()) == []


def filled(folder: Path, **options: Any) -> Journal:
    journal = Journal(folder, max_bytes=RECORD, retry_s=0.005, **options).open()
    for i in range(5):
        journal.append(RAW, T0_NS + i * S)
    return journal


def test_nothing_is_deleted_until_it_is_known_what_a_restart_needs(tmp_path: Path) -> None:
    with filled(tmp_path, retain_bytes=0, retain_s=0) as journal:
        wait_for(journal, journal_compressed_files=4)
        journal.append(RAW, T0_NS + 9 * S)
        # The thread that compressed this one had looked for what may go after it compressed the others.
        wait_for(journal, journal_compressed_files=5)
        assert journal.counts()["journal_deleted_files"] == 0
    assert len(names(tmp_path)) == 6


@pytest.mark.parametrize("compress", [True, False])
def test_the_folder_keeps_its_size(tmp_path: Path, *, compress: bool) -> None:
    (tmp_path / "notes.otlp").write_bytes(bytes(1000))
    with filled(tmp_path, compress=compress, retain_bytes=1) as journal:
        journal.keep_from_ns = T0_NS + 3 * S
        # Of the files of 0, 1, 2, 3 (closed) and 4 s those of 0 and 1 s certainly end before 3 s.
        wait_for(journal, journal_deleted_files=2)
        journal.keep_from_ns = 2**63
        wait_for(journal, journal_deleted_files=4)
        assert names(tmp_path) == [Path(str(journal.path)).name, "notes.otlp"]
        assert journal.counts()["journal_files"] == 1
        assert journal.counts()["journal_folder_bytes"] == RECORD
        journal.append(RAW, T0_NS + 9 * S)
    assert audited(tmp_path / names(tmp_path)[-2]) == [T0_NS + 9 * S]


def test_deleting_leaves_no_unfinished_file_that_would_pass_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, order = Path.unlink, []

    def unlinked(path: Path, missing_ok: bool = False) -> None:
        order.append(path.name)
        unlink(path, missing_ok=missing_ok)

    with filled(tmp_path, compress=False, retain_bytes=0) as journal:
        closed = names(tmp_path)[:4]
        (tmp_path / f"{closed[0]}.zst").write_bytes(b"half")
        monkeypatch.setattr(Path, "unlink", unlinked)
        journal.keep_from_ns = 2**63
        wait_for(journal, journal_deleted_files=4)
    assert order[:2] == [f"{closed[0]}.zst", closed[0]]
    assert not list(tmp_path.glob("*.zst"))


def test_files_go_with_age_though_nothing_is_written(tmp_path: Path) -> None:
    with filled(tmp_path, retain_s=100, max_age_s=10) as journal:
        journal.keep_from_ns = 2**63
        tick_until_closed(journal, T0_NS + 103 * S)  # the newest closed file ends where the one being written begins
        wait_for(journal, journal_deleted_files=2)
        wait_until(
            "three files are left", lambda: len(names(tmp_path)) == 3
        )  # those that were deleted may have been compressed before
        journal.tick(T0_NS + 104 * S + 1)
        wait_for(journal, journal_deleted_files=5)
        assert names(tmp_path) == []
        assert journal.counts()["journal_folder_bytes"] == 0


def test_a_name_from_the_future_makes_nothing_old(tmp_path: Path) -> None:
    (tmp_path / "29990101T000000.000000000Z-000041.otlp.zst").write_bytes(b"")
    file_at(tmp_path, 0, 0)
    journal = Journal(tmp_path, retain_s=100)
    journal.keep_from_ns = 2**63
    journal.tick(T0_NS + 50 * S)
    with journal:
        wait_for(journal, journal_compressed_files=1)
    assert journal.counts()["journal_deleted_files"] == 0


def test_size_is_that_of_compressed_files(tmp_path: Path) -> None:
    """What would fit once it is compressed is not deleted for being too large before."""
    big = bytes(200_000)
    with Journal(tmp_path, max_bytes=200_100, retain_bytes=450_000) as journal:
        journal.keep_from_ns = 2**63
        for i in range(10):
            journal.append(big, T0_NS + i)
            wait_for(journal, journal_compressed_files=i)
        assert journal.counts()["journal_deleted_files"] == 0


def test_a_file_that_cannot_be_deleted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unlink = Path.unlink
    refused = 0

    def refuse(path: Path, missing_ok: bool = False) -> None:
        nonlocal refused
        if path.name.endswith(".otlp") and refused < 3:
            refused += 1
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok=missing_ok)

    with filled(tmp_path, compress=False, retain_bytes=0) as journal:
        monkeypatch.setattr(Path, "unlink", refuse)
        journal.keep_from_ns = 2**63
        wait_for(journal, journal_deleted_files=4)
    assert refused == 3
    assert ["cannot delete" in record.getMessage() for record in caplog.records] == [True]


def test_the_counts_are_those_of_the_declared_table(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(RAW, T0_NS)
        assert set(journal.counts()) == {
            "journal_records", "journal_bytes", "journal_files", "journal_folder_bytes", "journal_write_errors",
            "journal_fsyncs", "journal_fsync_errors", "journal_compressed_files", "journal_compress_errors",
            "journal_deleted_files", "journal_failing",
        }  # fmt: skip
        assert journal.counts()["journal_records"] == 1
        assert journal.counts()["journal_bytes"] == journal.counts()["journal_folder_bytes"] == RECORD
