"""When a record is safe from a power cut: the three policies, group commit, and an fsync that fails."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.collector.journal_states import SlowDisk, tick_until_closed, wait_for
from support.commands import wait_until
from support.otlp import T0_NS
from support.patience import WAIT_S
from support.recordings import received

from otel_llm.formats.io.journal_format import split
from otel_llm.journal.journal import FsyncPolicy, IntervalFlush, Journal
from otel_llm.journal.journal_errors import JournalError

RAW = b"\x0a\x00" * 50


def opened(folder: Path, fsync: FsyncPolicy, disk: SlowDisk, **options: Any) -> Journal:
    return Journal(folder, fsync=fsync, fsync_call=disk, compress=False, retry_s=3600, **options).open()


def write(journal: Journal, i: int) -> None:
    journal.wait_durable(journal.append(RAW, T0_NS + i))


def test_always_means_that_the_record_and_the_name_of_its_file_last(tmp_path: Path) -> None:
    disk = SlowDisk()
    with opened(tmp_path / "a" / "b", "always", disk) as journal:
        made = {(tmp_path / "a").stat().st_ino, tmp_path.stat().st_ino}
        assert set(disk.folders) == made  # the folders that were made are there after a power cut
        for i in range(3):
            write(journal, i)
            assert journal.path is not None
            assert disk.files[-1] == (journal.path.stat().st_ino, journal.counts()["journal_bytes"])
            assert disk.folders[len(made) :] == [(tmp_path / "a" / "b").stat().st_ino]  # once a file
        assert journal.counts()["journal_fsyncs"] == 3


def test_append_alone_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    disk = SlowDisk(is_open=False)
    journal = opened(tmp_path, "always", disk)
    position = journal.append(RAW, T0_NS)
    assert disk.files == []
    disk.gate.set()
    journal.wait_durable(position)
    journal.wait_durable(position)  # known already
    assert len(disk.files) == 1
    journal.close()
    journal.wait_durable(position)


def test_one_fsync_serves_all_that_wrote_before_it_began(tmp_path: Path) -> None:
    disk = SlowDisk(is_open=False)
    journal = opened(tmp_path, "always", disk)
    with ThreadPoolExecutor(17) as pool:
        first = pool.submit(write, journal, 0)
        assert disk.requested.wait(WAIT_S)
        others: list[Future[None]] = [pool.submit(write, journal, i) for i in range(1, 17)]
        wait_for(journal, journal_records=17)
        # They came after the fsync began, so it does not speak for them; and none returns before one that does.
        assert not any(future.done() for future in (first, *others))
        disk.gate.set()
        for future in (first, *others):
            future.result(WAIT_S)
    sizes = [size for _, size in disk.files]
    assert sizes == [journal.counts()["journal_bytes"] // 17, journal.counts()["journal_bytes"]]
    journal.close()


def test_an_fsync_does_not_speak_for_what_came_after_it_began(tmp_path: Path) -> None:
    gates = [threading.Event(), threading.Event()]
    seen: list[int] = []

    def fsync(fd: int) -> None:
        if not Path(f"/proc/self/fd/{fd}").is_dir():
            seen.append(fd)
            assert gates[len(seen) - 1].wait(WAIT_S)

    with (
        Journal(tmp_path, fsync="always", fsync_call=fsync, compress=False) as journal,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(write, journal, 0)
        wait_until("the first is written", lambda: len(seen) == 1)
        second = pool.submit(write, journal, 1)
        wait_for(journal, journal_records=2)
        gates[0].set()
        first.result(WAIT_S)
        wait_until("the second is written", lambda: len(seen) == 2)
        assert not second.done()
        gates[1].set()
        second.result(WAIT_S)


def test_waiting_covers_files_that_were_left_meanwhile(tmp_path: Path) -> None:
    disk = SlowDisk()
    with opened(tmp_path, "always", disk, max_bytes=300) as journal:
        positions = [journal.append(RAW, T0_NS + i) for i in range(9)]
        inodes = {path.stat().st_ino for path in tmp_path.glob("*.otlp")}
        assert len(inodes) == 5
        for position in positions:
            journal.wait_durable(position)
        assert {inode for inode, _ in disk.files} == inodes
        assert disk.folders.count(tmp_path.stat().st_ino) == 5


def test_a_storm_of_threads_over_rotations_loses_nothing(tmp_path: Path) -> None:
    disk = SlowDisk()
    durable: dict[int, int] = {}

    def work(i: int) -> None:
        position = journal.append(RAW, T0_NS + i)
        journal.wait_durable(position)
        durable[i] = max(size for inode, size in list(disk.files) if inode == inodes[position.file.file.path])
        assert durable[i] >= position.end_bytes

    inodes: dict[Path, int] = {}
    with opened(tmp_path, "always", disk, max_bytes=2_000) as journal:
        append = journal.append

        def remember(raw: bytes, receipt_ns: int, tenant: str | None = None) -> Any:
            position = append(raw, receipt_ns, tenant)
            inodes.setdefault(position.file.file.path, position.file.file.path.stat().st_ino)
            return position

        journal.append = remember  # type: ignore[method-assign]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(500)))
    assert len(durable) == 500
    assert len(disk.files) <= 500 + len(inodes)


@pytest.mark.parametrize("policy", ["interval", "never"])
def test_the_other_policies_wait_for_nothing(tmp_path: Path, policy: FsyncPolicy) -> None:
    disk = SlowDisk(is_open=False)
    journal = opened(tmp_path, policy, disk)
    for i in range(10):
        write(journal, i)
    disk.gate.set()
    journal.close()
    assert bool(disk.files) == (policy == "interval")


def test_interval_makes_safe_soon_then_at_most_every_interval_and_at_the_end(tmp_path: Path) -> None:
    disk = SlowDisk()
    with opened(tmp_path, "interval", disk, fsync_interval_s=3600) as journal:
        write(journal, 0)
        wait_for(journal, journal_fsyncs=1)
        size = journal.counts()["journal_bytes"]
        for i in range(1, 50):
            write(journal, i)
        time.sleep(0.05)  # room to do it too early
        assert [size for _, size in disk.files] == [size]
    assert [size for _, size in disk.files] == [size, 50 * size]
    assert disk.folders == [tmp_path.stat().st_ino]


def test_nothing_is_done_while_nothing_is_written() -> None:
    flushed: list[None] = []
    interval = IntervalFlush(lambda: flushed.append(None), 0.001)
    interval.start()
    for i in range(3):
        assert len(flushed) == i
        interval.written()
        wait_until("it is flushed", lambda i=i: len(flushed) > i)
        time.sleep(0.02)  # room to do it again
    interval.stop()
    assert len(flushed) == 3


def test_interval_goes_on_for_as_long_as_something_is_written(tmp_path: Path) -> None:
    disk = SlowDisk()
    with opened(tmp_path, "interval", disk, fsync_interval_s=0.001) as journal:
        for i in range(5):
            write(journal, i)
            wait_until(
                "all is synced", lambda: bool(disk.files) and disk.files[-1][1] == journal.counts()["journal_bytes"]
            )
        requested = len(disk.files)
    assert len(disk.files) == requested  # nothing was left for the end


def test_never_leaves_all_to_the_operating_system(tmp_path: Path) -> None:
    disk = SlowDisk()
    with opened(tmp_path / "new", "never", disk, max_bytes=300) as journal:
        for i in range(10):
            write(journal, i)
    assert (disk.files, disk.folders) == ([], [])
    assert len(received([tmp_path / "new"])) == 10


# An fsync that fails


def test_after_a_failed_fsync_the_file_is_never_touched_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = SlowDisk()
    with opened(tmp_path, "always", disk) as journal:
        write(journal, 0)
        broken = journal.path
        assert broken is not None
        disk.gate.clear()
        disk.requested.clear()
        disk.error = OSError(5, "Input/output error")
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(write, journal, 1)
            assert disk.requested.wait(WAIT_S)
            late = [pool.submit(write, journal, i) for i in (2, 3)]  # into the same file, while its fsync fails
            wait_for(journal, journal_records=4)
            disk.gate.set()
            for future in (first, *late):
                error = future.exception(60)
                assert isinstance(error, JournalError)
                assert error.reason == "Input/output error"
        assert journal.failing == "Input/output error"
        assert journal.counts()["journal_fsync_errors"] == journal.counts()["journal_failing"] == 1
        assert journal.path is None
        before = broken.read_bytes()
        disk.error = None
        write(journal, 4)
        assert journal.path not in (None, broken)
        assert journal.failing is None
    assert broken.read_bytes() == before
    assert [inode for inode, _ in disk.files].count(broken.stat().st_ino) == 2  # one that worked, one that did not
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    # What was acknowledged before stands.
    assert split(broken.read_bytes())[0][0].receipt_ns == T0_NS


def test_a_folder_that_cannot_be_made_to_last_counts_as_the_file(tmp_path: Path) -> None:
    fail = False

    def fsync(fd: int) -> None:
        if fail and Path(f"/proc/self/fd/{fd}").is_dir():
            raise OSError(5, "Input/output error")

    with Journal(tmp_path, fsync="always", fsync_call=fsync, compress=False, retry_s=3600) as journal:
        fail = True
        with pytest.raises(JournalError):
            write(journal, 0)
        fail = False
        write(journal, 1)
        assert len(list(tmp_path.glob("*.otlp"))) == 2


def test_a_filesystem_without_fsync_of_folders_will_do(tmp_path: Path) -> None:
    def fsync(fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").is_dir():
            raise OSError(22, "Invalid argument")

    with Journal(tmp_path / "new", fsync="always", fsync_call=fsync, compress=False) as journal:
        write(journal, 0)


def test_a_failure_behind_the_scenes_is_reported_and_is_over_when_the_disk_works_again(tmp_path: Path) -> None:
    disk = SlowDisk()
    options: dict[str, Any] = {"fsync": "interval", "fsync_interval_s": 0.001, "compress": False, "retry_s": 0.01}
    with Journal(tmp_path, fsync_call=disk, **options) as journal:
        disk.error = OSError(5, "Input/output error")
        write(journal, 0)
        wait_until("it fails", lambda: journal.failing is not None)
        wait_until("it was tried again", lambda: len(disk.files) > 3)
        assert journal.failing == "Input/output error"
        disk.error = None
        wait_until("it recovers without an export", lambda: journal.failing is None)
    assert [path.name for path in tmp_path.iterdir() if "probe" in path.name] == []


def test_closing_with_a_broken_disk_ends(tmp_path: Path) -> None:
    disk = SlowDisk()
    journal = opened(tmp_path, "always", disk)
    position = journal.append(RAW, T0_NS)
    disk.error = OSError(5, "Input/output error")
    journal.close()
    with pytest.raises(JournalError):
        journal.wait_durable(position)


def test_tick_does_not_wait_for_a_record_that_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, gate, writev = threading.Event(), threading.Event(), os.writev

    def slow(fd: int, parts: Any) -> int:
        inside.set()
        assert gate.wait(WAIT_S)
        return writev(fd, parts)

    with opened(tmp_path, "never", SlowDisk(), max_age_s=1) as journal, ThreadPoolExecutor(2) as pool:
        write(journal, 0)
        monkeypatch.setattr(os, "writev", slow)
        writing = pool.submit(write, journal, 1)
        assert inside.wait(WAIT_S)
        pool.submit(journal.tick, T0_NS + 10**12).result(WAIT_S)
        assert pool.submit(journal.counts).result(WAIT_S)["journal_records"] == 1
        gate.set()
        writing.result(WAIT_S)
        tick_until_closed(journal, T0_NS + 10**12)


def test_tick_does_not_wait_for_an_fsync(tmp_path: Path) -> None:
    disk = SlowDisk(is_open=False)
    journal = opened(tmp_path, "always", disk, max_age_s=1)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write, journal, 0)
        assert disk.requested.wait(WAIT_S)
        pool.submit(tick_until_closed, journal, T0_NS + 10**12).result(WAIT_S)
        disk.gate.set()
        writing.result(WAIT_S)
    journal.close()
