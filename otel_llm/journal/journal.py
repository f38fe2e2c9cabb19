"""Append every accepted export request to the journal, before it is acknowledged.

One folder of files `*.otlp`, one writer. A file is begun by one process and only ever grows: it is never appended to
again, so that what a crash tore stays the last thing in its file. Two threads stand behind the writer: one makes what
was written last (fsync by policy), one compresses closed files and deletes old ones.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from otel_llm.journal.closed_files import Keeper
from otel_llm.journal.file import make_folder, try_to_write
from otel_llm.journal.group_commit import GroupCommit, IntervalFlush
from otel_llm.journal.journal_errors import JournalError
from otel_llm.journal.lock import FolderLock
from otel_llm.journal.reader import last_receipt_ns
from otel_llm.journal.retention import Horizon, Retention
from otel_llm.journal.writer import FolderWriter, Position
from otel_llm.shared.errors import StartError
from otel_llm.shared.whole_files import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.journal.names import JournalFile

FsyncPolicy: TypeAlias = Literal["always", "interval", "never"]
log = logging.getLogger(__name__)


class Journal:
    """The writer of one folder, opened once; safe to use from several threads.

    Args:
        folder: made with mode 0700 where it is missing; files have 0600. Other files in it are left alone.
        max_bytes: a file that would grow beyond it is closed and the next begun.
        max_age_s: so is one whose first record is that much older than the record to be written.
        fsync: when a record survives the machine, not only the process: `always` once `wait_durable` returned,
            `interval` soon (`fsync_interval_s` and what an fsync takes), `never` when the operating system likes.
        compress: closed files become `*.otlp.zst`.
        retain_bytes, retain_s: closed files go, the oldest first, while all files are larger than this together, and
            once their last record is that old; but not before `keep_from_ns` allows it. None: they stay.
        retry_s: what could not be compressed or deleted, and a full disk, is tried again this often.
        fsync_call: makes a file or folder last, given its descriptor.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 64 * 2**20,
        max_age_s: float = 600,
        fsync: FsyncPolicy = "interval",
        fsync_interval_s: float = 0.2,
        compress: bool = True,
        retain_bytes: int | None = None,
        retain_s: float | None = None,
        retry_s: float = 5.0,
        fsync_call: Callable[[int], None] = os.fsync,
    ) -> None:
        self.folder = folder
        self.fsync: FsyncPolicy = fsync
        self.keep_from_ns = 0
        """What a restart needs: no file is deleted that may hold a record received then (unix ns) or later."""
        self._fsync_call = None if fsync == "never" else fsync_call
        self._retry_s = retry_s
        self._lock = FolderLock(folder)
        self._now_ns = 0
        self._stop, self._wake = threading.Event(), threading.Event()
        self._closed: deque[tuple[JournalFile, int]] = deque()
        """Closed, and not yet in the keeper's charge."""
        self._writer = FolderWriter(
            folder,
            max_bytes=max_bytes,
            max_age_s=max_age_s,
            fsync=self._fsync_call,
            left=self._wake.set,
            closed=lambda file, size: self._closed.append((file, size)),
        )
        self._keeper = Keeper(
            folder,
            compress=compress,
            retention=Retention(retain_bytes, retain_s),
            horizon=self._horizon,
            fsync=fsync_call,
            stopping=self._stop.is_set,
        )
        self._commit = GroupCommit(self._writer.flush)
        self._interval = IntervalFlush(self._commit.flush_now, fsync_interval_s) if fsync == "interval" else None
        self._tidying = threading.Thread(target=self._tidy, name="otel-llm-journal-tidy", daemon=True)

    @property
    def path(self) -> Path | None:
        """Return the file being written; None before the first record and between files."""
        return self._writer.path

    @property
    def failing(self) -> str | None:
        """Return why the last record could not be written, or not be made to last; None when it is known to work."""
        return self._writer.failing

    @property
    def written_records(self) -> int:
        """Return how many since the start."""
        return self._writer.records

    @property
    def written_bytes(self) -> int:
        """Return how many since the start, lengths and seals included."""
        return self._writer.bytes

    def open(self) -> Self:
        """Take the folder; nothing is written yet.

        Raises:
            JournalInUseError: another process has it.
            StartError: it cannot be made or used.
        """
        try:
            make_folder(self.folder, self._fsync_call)
            self._lock.take()
            self._keeper.take_stock()
            self._continue()
        except OSError as error:
            self._lock.give_back()
            raise StartError(
                f"{self.folder}: cannot keep a journal here: {reason_of(error)}: choose another with --journal DIR"
            ) from error
        self._writer.start()
        if self._interval is not None:
            self._interval.start()
        self._wake.set()  # for what earlier runs left
        self._tidying.start()
        return self

    def append(self, raw: bytes, receipt_ns: int) -> Position:
        """Write one record; when it returns, the record is with the operating system: it survives the process.

        Raises:
            JournalError: it could not be written (disk full ...), and nothing of it stays.
            TooLargeError: it would be longer than a record may be.
        """
        position = self._writer.append(raw, receipt_ns)
        if self._interval is not None:
            self._interval.written()
        return position

    def wait_durable(self, position: Position) -> None:
        """Return once the record that ends there survives the machine, where the policy is `always`; else at once.

        Whoever wrote a record waits for that record: one before it may have been lost with an earlier file, and its
        writer was told.

        Raises:
            JournalError: the fsync failed; nobody knows whether the record is there after a crash.
        """
        if self.fsync != "always":
            return
        self._commit.wait_for(lambda: position.settled)
        if position.file.synced < position.end_bytes:
            raise JournalError(position.file.broken or "")

    def tick(self, now_ns: int) -> None:
        """Learn what time it is, and close the file if it is old without waiting for traffic, nor ever for the disk."""
        self._now_ns = now_ns
        self._writer.leave_old(now_ns)

    def close(self) -> None:
        """Flush, close the file and give the folder back; further records are refused. Doing it twice is fine."""
        self._writer.stop()
        if not self._lock.held:
            return
        self._stop.set()
        self._wake.set()
        self._tidying.join()
        if self._interval is not None:
            self._interval.stop()
        self._commit.flush_now()
        self._lock.give_back()

    def counts(self) -> dict[str, int]:
        """Return what the journal says of itself; `journal_records` and `journal_bytes` are since the start."""
        writer, keeper, open_files = self._writer, self._keeper, self._writer.open_files
        closed = list(self._closed)
        open_bytes = sum(file.size for file in open_files) + sum(size for _, size in closed)
        return {
            "journal_records": writer.records,
            "journal_bytes": writer.bytes,
            "journal_files": len(keeper.files) + len(open_files) + len(closed),
            "journal_folder_bytes": keeper.total_bytes + open_bytes,
            "journal_write_errors": writer.write_errors,
            "journal_fsyncs": writer.fsyncs,
            "journal_fsync_errors": writer.fsync_errors,
            "journal_compressed_files": keeper.compressed_files,
            "journal_compress_errors": keeper.compress_errors,
            "journal_deleted_files": keeper.deleted_files,
            "journal_failing": int(writer.failing is not None),
        }

    def __enter__(self) -> Self:
        return self if self._lock.held else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _continue(self) -> None:
        """Let the next name sort behind every name that is there, also after the clock stepped back."""
        writer, files = self._writer, self._keeper.files
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

    def _tidy(self) -> None:
        while True:
            self._wake.wait(self._retry_s)
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                self._tidy_once()
            except Exception:  # a bug of ours must not end the keeping of all other files
                log.exception("otel-llm: the journal's closed files could not be kept")

    def _tidy_once(self) -> None:
        if self._writer.has_left:
            self._commit.flush_now()
        while self._closed:
            self._keeper.add(*self._closed.popleft())
        self._keeper.tidy()
        if self.failing is not None:  # asked here: while the collector is not ready no export may come to find it out
            with suppress(OSError):
                try_to_write(self.folder, self._writer.refused_bytes, self._fsync_call)
                self._writer.recovered()
