"""How much is kept without a word of the operator, what the start says of it, and what a full disk does not stop."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from rules.scripted import one_rule
from support.collector.flow import flowing
from support.commands import wait_until
from support.core.core_spans import sent_segment
from support.otlp import IDENTITY, export

from otel_llm.collector.keeping import journal_bytes, keeping
from otel_llm.collector.settings import SHARE, JournalSettings, Settings, load_settings
from otel_llm.config.sections import DecisionSettings
from otel_llm.journal.file import WrittenFile
from otel_llm.journal.journal_errors import JournalError
from otel_llm.journal.retention import MOST_BYTES, share_of_volume
from otel_llm.shared.clock import FakeClock

GB = 10**9


def volume(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=size // 4096, f_frsize=4096))


@pytest.mark.parametrize(
    ("size", "most"), [(100 * 4096, 40960), (400 * GB, 40 * GB), (500 * GB, MOST_BYTES), (9000 * GB, MOST_BYTES)]
)
def test_a_journal_keeps_a_tenth_of_its_volume_and_50_gb_at_most(
    monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    volume(monkeypatch, size)
    assert journal_bytes(JournalSettings(), Path("j")) == pytest.approx(most, abs=4096)


def test_a_volume_without_a_size_counts_as_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    volume(monkeypatch, 0)
    assert share_of_volume(Path("j")) == MOST_BYTES


def test_the_volume_is_that_of_the_folder_which_may_be_missing(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    assert share_of_volume(tmp_path / "a" / "b") == min(MOST_BYTES, found.f_blocks * found.f_frsize // 10)


@pytest.mark.parametrize(
    ("text", "journal", "decisions"),
    [
        ("", SHARE, 2**30),
        ("journal: {retain_bytes: 8192}\ndecisions: {retain_bytes: 8193}", 8192, 8193),
        ("journal: {retain_bytes: none}\ndecisions: {retain_bytes: none}", None, None),
    ],
)
def test_a_number_or_none_stands_in_the_file(
    tmp_path: Path, text: str, journal: int | None, decisions: int | None
) -> None:
    (tmp_path / "c.yaml").write_text(f"version: 1\n{text}\n")
    found = load_settings(tmp_path / "c.yaml")
    assert (found.journal.retain_bytes, found.decisions.retain_bytes) == (journal, decisions)


def test_the_start_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    volume(monkeypatch, 400 * GB)
    assert keeping(Settings(), Path("j"), decisions=True) == (
        "kept of the journal: at most 40 GB, a tenth of its volume (journal: {retain_bytes}); of the closed decision "
        "files: at most 1.07 GB (decisions: {retain_bytes}); the oldest files go first"
    )
    volume(monkeypatch, 4000 * GB)
    assert "journal: at most 50 GB, the default (" in keeping(Settings(), Path("j"), decisions=False)
    everything = Settings(journal=JournalSettings(retain_bytes=None), decisions=DecisionSettings(retain_bytes=None))
    assert keeping(everything, Path("j"), decisions=True).count("all, until the disk is full") == 2


def test_streams_in_flight_are_evaluated_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    now_ns = clock.now_ns()
    token = sent_segment(0, 0, [now_ns], start_ns=now_ns, end_ns=now_ns, attributes=IDENTITY)
    raw = export(token).SerializeToString()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with flowing(tmp_path, rules=one_rule("gap_seconds > 0.4"), clock=clock) as flow:
        flow.accept(raw)
        monkeypatch.setattr(WrittenFile, "write", refuse)
        with pytest.raises(JournalError):
            flow.accept(raw)
        clock.pass_s(1)
        wait_until("the rule fires", lambda: flow.counts()["decisions"] == 1)
        assert flow.why_not_ready() == "No space left on device"
        assert flow.counts()["journal_failing"] == 1
    assert "exports are refused until it can, streams in flight are evaluated: No space left on device" in caplog.text
