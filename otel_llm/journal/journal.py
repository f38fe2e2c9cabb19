"""The journal: every accepted export request, on disk before it is acknowledged.

One folder of files `*.otlp`, with a single writer. Only the process that began a file appends to it: a record that a
crash has torn stays the last of its file. Two threads support the writer: one syncs (by the fsync policy), one
compresses closed files and deletes old ones.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from otel_llm.config.errors import StartError
from otel_llm.config.file_defaults import FILE_BYTES, FILE_S, FSYNC_INTERVAL_S
from otel_llm.journal.closed_files import ClosedFiles
from otel_llm.journal.file import make_folder, try_to_write
from otel_llm.journal.journal_errors import JournalError, JournalInUseError
from otel_llm.journal.records import last_receipt_ns
from otel_llm.journal.retention import Horizon, Retention
from otel_llm.journal.writer import FolderWriter, Position
from otel_llm.rules.decisions.output_file import open_inside
from otel_llm.shared.whole_files import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.journal.names import JournalFile

log = logging.getLogger(__name__)


class GroupCommit:
    """Runs `flush` in the thread of the first waiter, one at a time; safe from any thread.

    Threads that arrive during a flush wait for it; then one of them flushes for all. With a slow disk a writer waits
    for two flushes at most, however many writers there are.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._turn = threading.Condition()
        self._flushing = False

    def wait_for(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`; a flush that begins after this call must make it true.

        Raises:
            Exception: what `flush` raises.
        """
        while not done():
            with self._turn:
                if self._flushing:
                    self._turn.wait_for(lambda: not self._flushing)
                    continue
                self._flushing = True
            self._run()

    def flush_now(self) -> None:
        """Flush all writes up to now.

        Raises:
            Exception: what `flush` raises.
        """
        with self._turn:
            self._turn.wait_for(lambda: not self._flushing)
            self._flushing = True
        self._run()

    def _run(self) -> None:
        try:
            self._flush()
        finally:
            with self._turn:
                self._flushing = False
                self._turn.notify_all()


class IntervalFlush:
    """A thread that flushes soon after a write, at most once in `interval_s`."""

    def __init__(self, flush: Callable[[], None], interval_s: float) -> None:
        self._flush = flush
        self._interval_s = interval_s
        self._written = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-llm-journal-sync", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def written(self) -> None:
        """Note a write."""
        if not self._written.is_set():
            self._written.set()

    def stop(self) -> None:
        """End the thread; the caller flushes writes after its last flush."""
        self._stop.set()
        self._written.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._written.wait()
            if self._stop.is_set():
                return
            self._written.clear()
            try:
                self._flush()
            except Exception:  # a bug must not end the flushing of later records
                log.exception("otel-llm: the journal could not be flushed")
            if self._stop.wait(self._interval_s):
                return


LOCK_FILE: Final = "journal.lock"


class FolderLock:
    """The lock of one folder; its file stays, and names the last holder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Return whether this process holds the lock."""
        return self._fd is not None

    def acquire(self) -> None:
        """Acquire the lock, without waiting.

        Raises:
            JournalInUseError: another process holds it.
            OSError: the folder cannot be used, or the lock file is not a regular file.
        """
        with open_inside(self._folder / LOCK_FILE) as file:
            fd = os.dup(file.fileno())
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise JournalInUseError(
                f"{self._folder}: this journal is in use by process {holder or 'unknown'}:"
                " stop it, or choose another folder with --journal DIR"
            ) from None
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Release the lock. May be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


FsyncPolicy: TypeAlias = Literal["always", "interval", "never"]
log = logging.getLogger(__name__)


class Journal:
    """The writer of one folder, opened once; safe from any thread.

    Args:
        folder: created with mode 0700 if it is missing; files have 0600. Other files in it are left alone.
        max_bytes: the limit on a file's size; the next record begins a new file.
        max_age_s: the limit on a file's age, from its first record to the next.
        fsync: when a record survives a power cut: with `always` once `wait_durable` returns, with `interval` after
            `fsync_interval_s` and one fsync, with `never` when the operating system writes it.
        compress: closed files become `*.otlp.zst`.
        retain_bytes, retain_s: closed files are deleted, the oldest first, while all files together are larger, and
            once their last record is older; never beyond `keep_from_ns`. None: no limit.
        retry_s: the interval of retries after a failed compression or deletion, and on a full disk.
        fsync_call: makes a file or folder durable, given its descriptor.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = FILE_BYTES,
        max_age_s: float = FILE_S,
        fsync: FsyncPolicy = "interval",
        fsync_interval_s: float = FSYNC_INTERVAL_S,
        compress: bool = True,
        retain_bytes: int | None = None,
        retain_s: float | None = None,
        retry_s: float = 5.0,
        fsync_call: Callable[[int], None] = os.fsync,
    ) -> None:
        self.folder = folder
        self.fsync: FsyncPolicy = fsync
        self.keep_from_ns = 0
        """The receipt time (unix ns) from which a restart reads: files that may hold later records are not deleted."""
        self._fsync_call = None if fsync == "never" else fsync_call
        self._retry_s = retry_s
        self._lock = FolderLock(folder)
        self._now_ns = 0
        self._stop, self._wake = threading.Event(), threading.Event()
        self._closed: deque[tuple[JournalFile, int]] = deque()
        """Closed files that are not yet in `_closed_files`."""
        self._writer = FolderWriter(
            folder,
            max_bytes=max_bytes,
            max_age_s=max_age_s,
            fsync=self._fsync_call,
            on_rotated=self._wake.set,
            on_closed=lambda file, size: self._closed.append((file, size)),
        )
        self._closed_files = ClosedFiles(
            folder,
            compress=compress,
            retention=Retention(retain_bytes, retain_s),
            horizon=self._horizon,
            fsync=fsync_call,
            stopping=self._stop.is_set,
        )
        self._commit = GroupCommit(self._writer.flush)
        self._interval = IntervalFlush(self._commit.flush_now, fsync_interval_s) if fsync == "interval" else None
        self._maintenance = threading.Thread(target=self._maintain, name="otel-llm-journal-maintenance", daemon=True)

    @property
    def path(self) -> Path | None:
        """Return the file being written; None before the first record and between files."""
        return self._writer.path

    @property
    def failing(self) -> str | None:
        """Return why the last write or sync failed; None if it succeeded."""
        return self._writer.failing

    def open(self) -> Self:
        """Lock the folder and start the threads; the first file begins with the first record.

        Raises:
            JournalInUseError: another process has locked it.
            StartError: it cannot be created or used.
        """
        try:
            make_folder(self.folder, self._fsync_call)
            self._lock.acquire()
            self._closed_files.recover()
            self._continue_names()
        except OSError as error:
            self._lock.release()
            raise StartError(
                f"{self.folder}: cannot keep a journal here: {reason_of(error)}: choose another with --journal DIR"
            ) from error
        self._writer.start()
        if self._interval is not None:
            self._interval.start()
        self._wake.set()  # for files of earlier runs
        self._maintenance.start()
        return self

    def append(self, raw: bytes, receipt_ns: int, tenant: str | None = None) -> Position:
        """Write one record; once this returns, the record survives the process.

        `tenant`: that of the sender's token, None if senders have no tokens.

        Raises:
            JournalError: it could not be written (disk full ...); nothing of it stays.
            TooLargeError: it is longer than a record may be.
            DecodeError: it holds a record of a journal.
        """
        position = self._writer.append(raw, receipt_ns, tenant)
        if self._interval is not None:
            self._interval.written()
        return position

    def wait_durable(self, position: Position) -> None:
        """Wait until the record at `position` survives a power cut, with the policy `always`; else return at once.

        A return says nothing of earlier records: each writer waits for its own.

        Raises:
            JournalError: the fsync failed; the record may be lost in a power cut.
        """
        if self.fsync != "always":
            return
        self._commit.wait_for(lambda: position.completed)
        if position.file.synced < position.end_bytes:
            raise JournalError(position.file.broken or "")

    def tick(self, now_ns: int) -> None:
        """Set the current time (unix ns), and end an old file without a further record; never wait for the disk."""
        self._now_ns = now_ns
        self._writer.rotate_old(now_ns)

    def close(self) -> None:
        """Flush, close the file and unlock the folder; refuse further records. May be called twice."""
        self._writer.stop()
        if not self._lock.held:
            return
        self._stop.set()
        self._wake.set()
        self._maintenance.join()
        if self._interval is not None:
            self._interval.stop()
        self._commit.flush_now()
        self._lock.release()

    def counts(self) -> dict[str, int]:
        """Return the counts, by the keys of the collector's counts; records and bytes are since the start."""
        writer, closed_files, open_files = self._writer, self._closed_files, self._writer.open_files
        closed = list(self._closed)
        open_bytes = sum(file.size for file in open_files) + sum(size for _, size in closed)
        return {
            "journal_records": writer.records,
            "journal_bytes": writer.bytes,
            "journal_files": len(closed_files.files) + len(open_files) + len(closed),
            "journal_folder_bytes": closed_files.total_bytes + open_bytes,
            "journal_write_errors": writer.write_errors,
            "journal_fsyncs": writer.fsyncs,
            "journal_fsync_errors": writer.fsync_errors,
            "journal_compressed_files": closed_files.compressed_files,
            "journal_compress_errors": closed_files.compress_errors,
            "journal_deleted_files": closed_files.deleted_files,
            "journal_failing": int(writer.failing is not None),
        }

    def __enter__(self) -> Self:
        return self if self._lock.held else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _continue_names(self) -> None:
        """Make the next file's name sort after all existing names, also if the clock was set back."""
        writer, files = self._writer, self._closed_files.files
        if files:
            writer.named_ns = files[-1].named_ns
            writer.number = max(file.number for file in files) + 1
            writer.last_ns = max(writer.named_ns, last_receipt_ns(self.folder) or 0)

    def _horizon(self) -> Horizon:
        open_files = self._writer.open_files
        return Horizon(
            now_ns=self._now_ns,
            keep_from_ns=self.keep_from_ns,
            last_ns=open_files[0].file.named_ns if open_files else self._writer.last_ns,
            other_bytes=sum(file.size for file in open_files),
        )

    def _maintain(self) -> None:
        while True:
            self._wake.wait(self._retry_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self._maintain_once()
            except Exception:  # a bug must not end the maintenance of later files
                log.exception("otel-llm: the journal's closed files could not be compressed or deleted")

    def _maintain_once(self) -> None:
        if self._writer.has_rotated:
            self._commit.flush_now()
        while self._closed:
            self._closed_files.add(*self._closed.popleft())
        self._closed_files.compact_and_expire()
        if self.failing is not None:  # tried here, as a collector that is not ready may receive no export
            with suppress(OSError):
                try_to_write(self.folder, self._writer.refused_bytes, self._fsync_call)
                self._writer.mark_healthy()
