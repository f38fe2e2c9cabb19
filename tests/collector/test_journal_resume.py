"""The checkpoint: whole or not at all, and never a reason not to start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.journal.checkpoint import RESUME_FILE, read_resume, write_resume
from otel_llm.journal.journal import Journal
from otel_llm.journal.journal_errors import JournalError


@given(st.dictionaries(st.text(max_size=20), st.integers(-(2**70), 2**70), max_size=5), st.booleans())
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, int], durable: bool
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    write_resume(folder, {"old": 1})
    write_resume(folder, values, durable=durable)
    assert read_resume(folder) == values
    assert [path.name for path in folder.iterdir()] == [RESUME_FILE]


def test_it_is_a_file_that_the_journal_leaves_alone(tmp_path: Path) -> None:
    with Journal(tmp_path, retain_bytes=0) as journal:
        journal.keep_from_ns = 2**63
        write_resume(tmp_path, {"from_ns": 7})
        journal.append(b"", 1)
    assert read_resume(tmp_path) == {"from_ns": 7}


def test_there_is_none_at_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert read_resume(tmp_path) == {}
    assert read_resume(tmp_path / "none") == {}
    assert not caplog.records


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"7", b'{"a": 1.5}', b'{"a": true}', b'{"a": "1"}', b'{"a": null}', b'{"a": NaN}',
        b"\xff\xfe", b"[" * 100_000, b'{"a": ' + b"1" * 10_000 + b"}", b'{"a": 1}' + b" " * 2**21,
    ],
)  # fmt: skip
def test_a_broken_one_is_reported_once_and_counts_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    (tmp_path / RESUME_FILE).write_bytes(data)
    assert read_resume(tmp_path) == {}
    assert len(caplog.records) == 1
    assert RESUME_FILE in caplog.text


def test_one_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / RESUME_FILE).mkdir()
    assert read_resume(tmp_path) == {}


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_after_an_error_the_old_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    write_resume(tmp_path, {"a": 1})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "fsync" else Path, step, fail)
    with pytest.raises(JournalError) as raised:
        write_resume(tmp_path, {"a": 2}, durable=True)
    assert raised.value.reason == "No space left on device"
    assert read_resume(tmp_path) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == [RESUME_FILE]


def test_it_lasts_before_its_name_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    replace, fsync = Path.replace, os.fsync

    def fsynced(fd: int) -> None:
        steps.append("folder" if Path(f"/proc/self/fd/{fd}").is_dir() else "file")
        fsync(fd)

    def replaced(path: Path, target: Path) -> Path:
        steps.append("replace")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsynced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_resume(tmp_path, {"a": 1}, durable=True)
    assert steps == ["file", "replace", "folder"]
    write_resume(tmp_path, {"a": 2})
    assert steps[3:] == ["replace"]


def test_what_a_crash_left_of_writing_one_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f"{RESUME_FILE}.tmp").write_bytes(b'{"a": 1')
    assert read_resume(tmp_path) == {}
    write_resume(tmp_path, {"a": 2})
    assert read_resume(tmp_path) == {"a": 2}
