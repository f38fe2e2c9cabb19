"""Replay: what was received since an instant, in order, whatever state the folder is in."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.otlp import T0_NS

from otel_llm.formats.io.journal_format import Record, frame
from otel_llm.journal.journal import Journal
from otel_llm.journal.names import file_name
from otel_llm.journal.records import last_receipt_ns, records_since

S = 1_000_000_000


@dataclass(frozen=True)
class Written:
    """A file as it may stand in a folder."""

    receipts: tuple[int, ...]
    form: str
    tail: bytes


@st.composite
def folders(draw: st.DrawFn) -> list[Written]:
    """Draw files whose receipt times go on from file to file, each in a state that a crash can leave."""
    now, files = T0_NS, []
    for _ in range(draw(st.integers(0, 5))):
        steps = draw(st.lists(st.integers(0, 5), max_size=6))
        receipts = tuple((now := now + step) for step in steps)
        form = draw(st.sampled_from(["plain", "compressed", "unfinished", "both"]))
        files.append(Written(receipts, form, draw(st.sampled_from([b"", b"\x00", b"\x00\x00\x01\x00half of it"]))))
    return files


def payload(receipt_ns: int) -> bytes:
    return b"\x0a\x00" * (receipt_ns % 300)


def put(folder: Path, files: list[Written]) -> None:
    now = T0_NS
    for number, file in enumerate(files):
        now = max([now, *file.receipts[:1]])
        path = folder / file_name(now, number)
        data = b"".join(frame(payload(receipt_ns), receipt_ns) for receipt_ns in file.receipts) + file.tail
        now = max([now, *file.receipts])
        whole = zstandard.compress(data)
        if file.form != "compressed":
            path.write_bytes(data)
        if file.form != "plain":
            closed = path.with_name(path.name + ".zst")
            closed.write_bytes(whole[:5] if file.form == "unfinished" else whole)


@settings(max_examples=examples(300))
@given(folders(), st.integers(-5, 60))
def test_replay_is_the_records_since_then_in_order(
    tmp_path_factory: pytest.TempPathFactory, files: list[Written], since: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    put(folder, files)
    (folder / "capture.otlp").write_bytes(frame(b"", T0_NS + 10**9))  # of another tool
    (folder / "resume.json").write_bytes(b"{}")
    skipped: Counter[str] = Counter()
    found = list(records_since(folder, T0_NS + since, skipped))
    receipts = [receipt_ns for file in files for receipt_ns in file.receipts]
    assert found == [Record(payload(at_ns), at_ns) for at_ns in receipts if at_ns >= T0_NS + since]
    assert set(skipped) <= {"torn_tail"}
    skipped.clear()
    assert list(records_since(folder, 0, skipped)) == [Record(payload(at), at) for at in receipts]
    assert skipped["torn_tail"] == sum(bool(file.tail) for file in files)
    assert last_receipt_ns(folder) == (receipts[-1] if receipts else None)


@pytest.mark.parametrize("compress", [True, False])
def test_what_a_journal_wrote_over_rotations_and_restarts_is_replayed(tmp_path: Path, *, compress: bool) -> None:
    for run in range(3):
        with Journal(tmp_path, max_bytes=2_000, compress=compress) as journal:
            for i in range(40):
                journal.append(payload(run * 40 + i), T0_NS + run * 40 + i)
                if i % 10 == 0:  # while files are closed, compressed and replaced
                    skipped: Counter[str] = Counter()
                    found = [record.receipt_ns for record in records_since(tmp_path, T0_NS, skipped)]
                    assert found == [T0_NS + k for k in range(run * 40 + i + 1)]
                    assert skipped == Counter()
    assert last_receipt_ns(tmp_path) == T0_NS + 119


def test_files_that_hold_only_older_records_are_not_opened(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / file_name(T0_NS + number * S, number)).write_bytes(frame(b"", T0_NS + number * S) + b"\x00")
    for since, torn in [(0, 3), (S, 3), (S + 1, 2), (2 * S, 2), (2 * S + 1, 1), (9 * S, 1)]:
        skipped: Counter[str] = Counter()
        list(records_since(tmp_path, T0_NS + since, skipped))
        assert skipped["torn_tail"] == torn  # each file that was read has one


def test_records_of_other_tools_are_left_out_and_counted(tmp_path: Path) -> None:
    plain = (2).to_bytes(4, "big") + b"\x0a\x00"
    (tmp_path / file_name(T0_NS, 0)).write_bytes(plain * 3)
    (tmp_path / file_name(T0_NS + 1, 1)).write_bytes(frame(b"", T0_NS + 1))
    skipped: Counter[str] = Counter()
    assert list(records_since(tmp_path, 0, skipped)) == [Record(b"", T0_NS + 1)]
    assert skipped == Counter(unsealed=3)
    assert last_receipt_ns(tmp_path) == T0_NS + 1


def test_damage_costs_what_is_damaged(tmp_path: Path) -> None:
    frames = [frame(payload(T0_NS + 100 + i), T0_NS + 100 + i) for i in range(5)]
    data = bytearray(b"".join(frames))
    data[len(frames[0]) + 10] ^= 1
    (tmp_path / file_name(T0_NS, 0)).write_bytes(data)
    (tmp_path / (file_name(T0_NS + 200, 1) + ".zst")).write_bytes(zstandard.compress(b"".join(frames))[:-3])
    (tmp_path / (file_name(T0_NS + 300, 2) + ".zst")).write_bytes(b"no zstd")
    skipped: Counter[str] = Counter()
    found = [(record.receipt_ns or 0) - T0_NS - 100 for record in records_since(tmp_path, 0, skipped)]
    assert found[:4] == [0, 2, 3, 4]
    assert skipped["bad_crc"] == 1
    assert sum(skipped.values()) >= 3


def test_a_file_that_cannot_be_read_is_reported_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / file_name(T0_NS, 0)).write_bytes(frame(b"", T0_NS))
    (tmp_path / file_name(T0_NS + 1, 1)).symlink_to("/proc/self/mem")  # opens, and cannot be read
    skipped: Counter[str] = Counter()
    assert [record.receipt_ns for record in records_since(tmp_path, 0, skipped)] == [T0_NS]
    assert skipped == Counter(unreadable_file=1)
    assert "cannot be read" in caplog.text


def test_an_empty_folder_and_none(tmp_path: Path) -> None:
    assert list(records_since(tmp_path, 0, Counter())) == []
    assert last_receipt_ns(tmp_path) is None
    with pytest.raises(FileNotFoundError):
        next(records_since(tmp_path / "none", 0, Counter()))


def test_a_long_journal_is_replayed_in_little_memory(tmp_path: Path) -> None:
    with Journal(tmp_path, max_bytes=64 * 2**20, fsync="never", compress=False) as journal:
        for i in range(4000):
            journal.append(bytes(65_536), T0_NS + i)
    code = """
        import resource, sys
        from collections import Counter
        from pathlib import Path
        from otel_llm.journal.records import last_receipt_ns, records_since
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(sum(1 for _ in records_since(Path(sys.argv[1]), 0, Counter())), last_receipt_ns(Path(sys.argv[1])))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    count, last_ns, grown_mib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert (int(count), int(last_ns)) == (4000, T0_NS + 3999)
    assert int(grown_mib) < 32  # of 250 MiB
