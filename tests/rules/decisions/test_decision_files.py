"""The decision file: whole lines only, closed by size, read back over its closed files, well on a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules.scripted import S, flushed, key, one_rule, run
from support.patience import WAIT_S

from otel_llm.rules.decisions.decision_records import read_decided
from otel_llm.rules.decisions.files import DecisionFiles, decision_files, read_back


def record(number: int, size: int = 0) -> dict[str, object]:
    """A record of exactly `size` bytes with its newline, or as short as it is."""
    made: dict[str, object] = {"n": number, "x": ""}
    short = len(json.dumps(made, separators=(",", ":"))) + 1
    return {"n": number, "x": "y" * max(0, size - short)}


def numbers(path: Path, most_bytes: int | None = None) -> list[int]:
    return [json.loads(line)["n"] for line in read_back(path, most_bytes)]


def names(path: Path) -> list[str]:
    return [one.name for one in decision_files(path)]


def written(path: Path, count: int, size: int, **settings: int) -> DecisionFiles:
    files = DecisionFiles(path, **settings)
    for number in range(count):
        files.write(record(number, size))
    return files


def test_a_line_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    files = DecisionFiles(path)
    for number in range(3):
        files.write({"n": number, "model": "m\udcff"})
        assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == list(range(number + 1))
    assert json.loads(path.read_text().splitlines()[0])["model"] == "m\udcff"
    files.close()


def test_a_file_is_closed_before_it_would_be_too_long(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "d.jsonl"
    # Ten records of 100 bytes; three fit into 300.
    written(path, 10, 100, max_bytes=300).close()
    assert names(path) == ["d.jsonl.000001", "d.jsonl.000002", "d.jsonl.000003", "d.jsonl"]
    assert [one.stat().st_size for one in decision_files(path)] == [300, 300, 300, 100]
    assert numbers(path) == list(range(10))


def test_one_byte_less_room_holds_one_record_less(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    written(path, 6, 100, max_bytes=299).close()
    assert [one.stat().st_size for one in decision_files(path)] == [200, 200, 200]


def test_a_record_longer_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    written(path, 3, 500, max_bytes=300).close()
    assert [one.stat().st_size for one in decision_files(path)] == [500, 500, 500]


def test_the_next_run_goes_on_with_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    written(path, 4, 100, max_bytes=300).close()
    files = DecisionFiles(path, 300)
    for number in range(4, 10):
        files.write(record(number, 100))
    files.close()
    assert names(path) == ["d.jsonl.000001", "d.jsonl.000002", "d.jsonl.000003", "d.jsonl"]
    assert numbers(path) == list(range(10))


def test_old_files_go_when_there_are_more_than_wanted(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    beside = tmp_path / "d.jsonl.old"
    beside.write_text("not ours")
    written(path, 20, 100, max_bytes=300, retain_bytes=700).close()
    # 18 records in six closed files; 700 bytes hold two of these. The open one counts for itself.
    assert names(path) == ["d.jsonl.000005", "d.jsonl.000006", "d.jsonl"]
    assert numbers(path) == list(range(12, 20))
    assert beside.read_text() == "not ours"


@given(torn=st.binary(max_size=200).filter(lambda tail: b"\n" not in tail), lines=st.integers(0, 3))
def test_a_torn_last_line_is_cut_and_nothing_else(torn: bytes, lines: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.jsonl"
        whole = b"".join(json.dumps(record(number)).encode() + b"\n" for number in range(lines))
        path.write_bytes(whole + torn)
        assert numbers(path) == list(range(lines))
        assert path.read_bytes() == whole + torn, "reading changes nothing"
        files = DecisionFiles(path)
        assert path.read_bytes() == whole
        files.write(record(lines))
        files.close()
        assert numbers(path) == list(range(lines + 1))


def test_a_torn_line_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"n":0}\n' + b"x" * 200_000)
    DecisionFiles(path).close()
    assert path.read_bytes() == b'{"n":0}\n'


@pytest.mark.parametrize(
    ("most", "expect"), [(1, []), (100, [9]), (101, [9]), (200, [8, 9]), (450, [6, 7, 8, 9]), (10**6, range(10))]
)
def test_only_the_newest_are_read_back(tmp_path: Path, most: int, expect: list[int]) -> None:
    path = tmp_path / "d.jsonl"
    written(path, 10, 100, max_bytes=300).close()
    assert numbers(path, most) == list(expect)


def test_what_was_decided_is_known_again_over_closed_files(tmp_path: Path) -> None:
    rules = one_rule("gap_seconds > 0.4")
    made = [one for at in range(1, 30) for one in run(rules, flushed([100], [250], end_ms=900, stream=key(at)), 2 * S)]
    files = DecisionFiles(tmp_path / "d.jsonl", 1000)
    for decision in made:
        files.write(decision.record(1))
    files.close()
    assert len(names(tmp_path / "d.jsonl")) > 10
    decided, broken = read_decided(read_back(tmp_path / "d.jsonl"))
    assert (decided, broken) == ({one.key for one in made}, 0)


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from otel_llm.rules.decisions.files import DecisionFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (250, resource.RLIM_INFINITY))
files = DecisionFiles(Path(sys.argv[1]))
for number in range(4):
    try:
        files.write({"n": number, "x": "y" * (87 if number < 3 else 20)})
    except OSError:
        print("refused", number)
files.close()
"""


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True, timeout=WAIT_S
    )
    # Two of 100 bytes fit into 250; half of the third was written, and taken back, so that the shorter fourth stands.
    assert done.stdout.split() == ["refused", "2"]
    assert numbers(path) == [0, 1, 3]


def test_where_no_file_can_be_begun_the_old_one_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.jsonl"
    rename = Path.rename

    def taken(self: Path, target: Path) -> Path:
        target.mkdir()  # another process took the name between the choice and the renaming
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", taken)
    files = DecisionFiles(path, 300)
    for number in range(10):
        files.write(record(number, 100))
    files.close()
    assert [json.loads(line)["n"] for line in path.read_text().splitlines()] == list(range(10))
    assert len([one for one in caplog.records if "goes on growing" in one.message]) == 1


def test_what_is_no_regular_file_is_only_written_to(tmp_path: Path) -> None:
    """As root, renaming a device would be the end of it for everybody."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        written(path, 10, 100, max_bytes=300).close()
        assert [json.loads(line)["n"] for line in os.read(reader, 10_000).splitlines()] == list(range(10))
    finally:
        os.close(reader)
    assert path.is_fifo()
    assert [one.name for one in tmp_path.iterdir()] == ["pipe"]


def test_closed_files_lie_beside_what_a_link_leads_to(tmp_path: Path) -> None:
    there = tmp_path / "disk" / "real.jsonl"
    there.parent.mkdir()
    link = tmp_path / "d.jsonl"
    link.symlink_to(there)
    written(link, 5, 100, max_bytes=300).close()
    assert link.is_symlink()
    assert names(link) == ["real.jsonl.000001", "real.jsonl"]
    assert numbers(link) == list(range(5))


def test_a_process_that_stops_shares_its_file_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    before = DecisionFiles(path, 300)
    before.write(record(0, 100))
    with pytest.raises(OSError, match="another process writes to it"):
        DecisionFiles(path, 300)
    before.share()
    after = DecisionFiles(path, 300)
    for number in (1, 2, 3):  # more than the file may hold: only the next process closes it
        before.write(record(number, 100))
    for number in (4, 5, 6):
        after.write(record(number, 100))
    before.write(record(7, 100))
    after.close()
    before.close()
    found = [json.loads(line)["n"] for file in decision_files(path) for line in file.read_text().splitlines()]
    assert sorted(found) == list(range(8))
    assert len(decision_files(path)) == 2
