from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.collector.journal_states import tick_until_closed
from support.otlp import T0_NS, export, segment_span
from support.recordings import received

from otel_llm.config.errors import StartError
from otel_llm.formats.io.journal_format import MAX_RECORD_BYTES, Record, split
from otel_llm.formats.io.skipped import Skipped
from otel_llm.journal.journal import LOCK_FILE, Journal
from otel_llm.journal.journal_errors import JournalError, JournalInUseError
from otel_llm.shared.errors import TooLargeError

S = 1_000_000_000
RAW = export(segment_span(1, 0, [T0_NS])).SerializeToString()


def still(folder: Path, **options: Any) -> Journal:
    """Return a journal that leaves closed files as they are and learns only by writing whether it can write again."""
    return Journal(folder, compress=False, retry_s=3600, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.otlp"))


def records(folder: Path) -> list[Record]:
    found = []
    for name in names(folder):
        some, skipped = split((folder / name).read_bytes())
        assert not skipped
        found += some
    return found


def test_what_was_appended_is_read_back_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "journal"
    with still(folder) as journal:
        for i in range(5):
            journal.append(RAW, T0_NS + i)
            # With the operating system before the call returns: another reader sees it now.
            assert records(folder)[-1] == Record(RAW, T0_NS + i)
        assert journal.path is not None
        counts = journal.counts()
        assert (counts["journal_records"], counts["journal_bytes"]) == (5, journal.path.stat().st_size)
    assert names(folder) == ["20260921T141320.000000000Z-000000.otlp"]
    skipped = Skipped()
    assert [one.receipt_ns for one in received([folder], skipped)] == [T0_NS + i for i in range(5)]
    assert skipped.counts == Counter()


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    with still(tmp_path / "j") as journal:
        journal.append(RAW, T0_NS)
        assert journal.path is not None
        assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o700


def test_a_file_that_would_grow_too_large_is_closed(tmp_path: Path) -> None:
    with still(tmp_path, max_bytes=3 * len(RAW)) as journal:
        for i in range(6):
            journal.append(RAW, T0_NS + i)
        journal.append(RAW * 9, T0_NS + 6)  # larger than any file should be: a file of its own
        journal.append(RAW, T0_NS + 7)
    sizes = [(tmp_path / name).stat().st_size for name in names(tmp_path)]
    assert len(sizes) == 5
    assert [size <= 3 * len(RAW) for size in sizes] == [True, True, True, False, True]
    assert [record.receipt_ns for record in records(tmp_path)] == [T0_NS + i for i in range(8)]


def test_a_file_that_is_old_is_closed(tmp_path: Path) -> None:
    with still(tmp_path, max_age_s=10) as journal:
        for seconds in (0, 9, 10, 19, 20):
            journal.append(RAW, T0_NS + seconds * S)
        assert len(names(tmp_path)) == 3
        journal.tick(T0_NS + 29 * S)
        assert journal.path is not None
        tick_until_closed(journal, T0_NS + 30 * S)
        journal.append(RAW, T0_NS + 30 * S)
    assert len(names(tmp_path)) == 4


def test_names_sort_by_time_even_when_the_clock_steps_back_and_over_restarts(tmp_path: Path) -> None:
    for receipt_ns in (T0_NS, T0_NS - 3600 * S, T0_NS + 5, T0_NS, T0_NS + 3600 * S):
        with still(tmp_path) as journal:
            journal.append(RAW, receipt_ns)
    assert len(names(tmp_path)) == 5
    assert [record.receipt_ns for record in records(tmp_path)] == [
        T0_NS,
        T0_NS - 3600 * S,
        T0_NS + 5,
        T0_NS,
        T0_NS + 3600 * S,
    ]


def test_closed_files_that_were_compressed_count_for_the_names(tmp_path: Path) -> None:
    (tmp_path / "29990101T000000.000000000Z-000041.otlp.zst").write_bytes(b"")
    (tmp_path / "99999999T999999.000000000Z-000000.otlp").write_bytes(b"")  # no instant: not ours
    with still(tmp_path) as journal:
        journal.append(RAW, T0_NS)
        assert journal.path is not None
        assert journal.path.name > "29990101T000000.000000000Z-000041.otlp.zst"


def test_a_file_is_never_appended_to_by_another_run(tmp_path: Path) -> None:
    with still(tmp_path) as journal:
        journal.append(RAW, T0_NS)
    (tmp_path / names(tmp_path)[0]).write_bytes(b"\x00\x00\x10\x00torn")
    with still(tmp_path) as journal:
        journal.append(RAW, T0_NS)
    assert len(names(tmp_path)) == 2
    assert (tmp_path / names(tmp_path)[0]).read_bytes() == b"\x00\x00\x10\x00torn"


def test_nothing_written_leaves_no_file(tmp_path: Path) -> None:
    with still(tmp_path):
        pass
    assert names(tmp_path) == []


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with still(tmp_path) as first:
        with pytest.raises(JournalInUseError, match=rf"in use by process {os.getpid()}: stop it, or .*--journal DIR"):
            still(tmp_path).open()
        first.append(RAW, T0_NS)
    with still(tmp_path) as second:  # given back on close
        second.append(RAW, T0_NS)
    assert (tmp_path / LOCK_FILE).exists()


def test_a_folder_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StartError, match=r"file: cannot keep a journal here: .*--journal DIR"):
        still(tmp_path / "file").open()


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = still(tmp_path)
    with pytest.raises(JournalError):
        journal.append(RAW, T0_NS)
    journal.open()
    journal.close()
    journal.close()
    with pytest.raises(JournalError):
        journal.append(RAW, T0_NS)
    assert names(tmp_path) == []


def test_a_record_too_long_for_readers_is_refused(tmp_path: Path) -> None:
    with still(tmp_path) as journal, pytest.raises(TooLargeError, match="at most"):
        journal.append(bytes(MAX_RECORD_BYTES), T0_NS)
    assert names(tmp_path) == []


def test_threads_write_whole_records(tmp_path: Path) -> None:
    raws = {i: export(segment_span(i, 0, [T0_NS + i] * (i % 50))).SerializeToString() for i in range(400)}
    with still(tmp_path, max_bytes=20_000) as journal, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: journal.append(raws[i], T0_NS + i), raws))
    found = records(tmp_path)
    assert {record.receipt_ns: record.raw for record in found} == {T0_NS + i: raw for i, raw in raws.items()}
    assert len(found) == len(raws)
    assert len(names(tmp_path)) > 3


# A full disk


def test_a_record_that_does_not_fit_leaves_nothing_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with still(tmp_path) as journal:
        journal.append(RAW, T0_NS)
        for _ in range(3):
            with monkeypatch.context() as during:
                during.setattr(os, "writev", lambda fd, parts: write(fd, b"".join(parts)[:20]))
                during.setattr(os, "write", full)
                with pytest.raises(JournalError) as raised:
                    journal.append(RAW, T0_NS + 1)
            assert raised.value.reason == journal.failing == "No space left on device"
            assert records(tmp_path) == [Record(RAW, T0_NS)]
        journal.append(RAW, T0_NS + 2)
        assert journal.counts()["journal_records"] == 2
        assert journal.failing is None
    # Said once when it begins, once when it is over.
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert [record.receipt_ns for record in records(tmp_path)] == [T0_NS, T0_NS + 2]
    assert len(names(tmp_path)) == 1


def test_a_write_that_is_cut_short_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "writev", lambda fd, parts: write(fd, b"".join(parts)[:7]))
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:11]))
    with still(tmp_path) as journal:
        journal.append(RAW, T0_NS)
    assert records(tmp_path) == [Record(RAW, T0_NS)]


def test_a_file_that_cannot_be_cut_back_is_left_behind_as_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with still(tmp_path) as journal:
        journal.append(RAW, T0_NS)
        with monkeypatch.context() as during:
            write = os.write
            during.setattr(os, "writev", lambda fd, parts: write(fd, b"".join(parts)[:20]))
            during.setattr(os, "write", fail)
            during.setattr(os, "ftruncate", fail)
            with pytest.raises(JournalError):
                journal.append(RAW, T0_NS + 1)
        journal.append(RAW, T0_NS + 2)
    assert len(names(tmp_path)) == 2
    skipped = Skipped()
    assert [one.receipt_ns for one in received([tmp_path], skipped)] == [T0_NS, T0_NS + 2]
    assert skipped.counts == Counter(torn_tail=1)


def test_failing_from_the_first_record_on_leaves_no_empty_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with still(tmp_path) as journal:
        monkeypatch.setattr(os, "writev", full)
        for i in range(3):
            with pytest.raises(JournalError):
                journal.append(RAW, T0_NS + i)
        assert names(tmp_path) == []


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_a_real_limit_on_file_size(tmp_path: Path) -> None:
    code = """
        import resource, signal, sys
        from pathlib import Path
        from otel_llm.journal.journal_errors import JournalError
        from otel_llm.journal.journal import Journal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        written = 0
        with Journal(Path(sys.argv[1]), compress=False) as journal:
            for i in range(20):
                try:
                    journal.append(bytes(500), i + 1)
                    written += 1
                except JournalError as error:
                    assert error.reason == "File too large", error.reason
                    assert journal.path.stat().st_size == written * 520
        print(written)
    """
    with run(code, tmp_path) as process:
        assert process.communicate()[0] == "7\n"
    assert len(records(tmp_path)) == 7
