"""The writer of records: one file at a time, with rotation and flushes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal, NamedTuple

from otel_llm.formats.io.journal_format import envelope
from otel_llm.formats.records import DecodeError
from otel_llm.journal.file import WrittenFile
from otel_llm.journal.journal_errors import JournalError
from otel_llm.journal.names import NS_PER_S, JournalFile, file_name
from otel_llm.shared.errors import TooLargeError
from otel_llm.shared.whole_files import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)


class Position(NamedTuple):
    """The end of a record in its file."""

    file: WrittenFile
    end_bytes: int

    @property
    def completed(self) -> bool:
        """Return whether the fate of the record is known: it is synced, or its file is broken."""
        return self.file.synced >= self.end_bytes or self.file.broken is not None


class FolderWriter:
    """The files being written; many threads may call `append` and `rotate_old`, one at a time `flush`.

    Args:
        folder: the journal's.
        max_bytes: the limit on a file's size.
        max_age_s: the limit on a file's age.
        fsync: makes a file or folder durable, given its descriptor; None: nothing does.
        on_rotated: called under the lock when a file has ended: `flush` will close it.
        on_closed: called by `flush` with a closed file and its size in bytes, unless it is empty.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        max_age_s: float,
        fsync: Callable[[int], None] | None,
        on_rotated: Callable[[], None],
        on_closed: Callable[[JournalFile, int], None],
    ) -> None:
        self.number = 0
        """The number of the next file."""
        self.named_ns = 0
        """The instant in the last file's name (unix ns): the next is later."""
        self.last_ns = 0
        """The latest receipt time of all records (unix ns): the next name is not before it."""
        self.records = 0
        self.bytes = 0
        self.write_errors = 0
        self.fsyncs = 0
        self.fsync_errors = 0
        self.refused_bytes = 0
        """The size of the last record that could not be written."""
        self.failing: str | None = None
        self._failing_at: Literal["write", "fsync"] = "write"
        self._folder = folder
        self._max_bytes = max_bytes
        self._max_age_ns = round(max_age_s * NS_PER_S)
        self._fsync = fsync
        self._on_rotated = on_rotated
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._open = False
        self._file: WrittenFile | None = None
        self._rotated: list[WrittenFile] = []

    @property
    def path(self) -> Path | None:
        """Return the file being written; None before the first record and between files."""
        file = self._file
        return None if file is None else file.file.path

    @property
    def open_files(self) -> list[WrittenFile]:
        """Return the files that are not closed, in order; without the lock, so as never to wait for a disk."""
        file, rotated = self._file, list(self._rotated)
        return rotated if file is None or file in rotated else [*rotated, file]

    @property
    def has_rotated(self) -> bool:
        """Return whether `flush` has files to close."""
        return bool(self._rotated)

    def start(self) -> None:
        """Accept records from now on."""
        self._open = True

    def append(self, raw: bytes, receipt_ns: int, tenant: str | None = None) -> Position:
        """Write one record; see `Journal.append`."""
        try:
            head, seal = envelope(raw, receipt_ns, tenant)
        except DecodeError:
            raise
        except ValueError as error:
            raise TooLargeError(str(error)) from error
        size = len(head) + len(raw) + len(seal)
        with self._lock:
            if not self._open:
                raise JournalError("closed")
            try:
                file = self._file_for(size, receipt_ns)
                file.write((head, raw, seal), size)
            except OSError as error:
                self.write_errors += 1
                self.refused_bytes = size
                self._mark_failing("write", error)
                raise JournalError(reason_of(error)) from error
            finally:
                self._drop_unusable()
            self._mark_healthy("write")
            self.last_ns = max(self.last_ns, receipt_ns)
            self.bytes += size
            self.records += 1
            return Position(file, file.size)

    def rotate_old(self, now_ns: int) -> None:
        """End the file if it is old; do not wait for the lock: a write in progress checks the age itself."""
        if self._lock.acquire(blocking=False):
            try:
                if self._file is not None and now_ns - self._file.began_ns >= self._max_age_ns:
                    self._rotate()
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Refuse further records and end the file."""
        with self._lock:
            self._open = False
            self._rotate()

    def flush(self) -> None:
        """Sync all records up to now, and close the files that have ended."""
        with self._lock:
            rotated = list(self._rotated)
            ends = [(file, file.size) for file in (*rotated, self._file) if file is not None]
        if self._fsync is not None:
            for file, end in ends:
                self._sync(file, end, self._fsync)
        for file in rotated:
            size = file.close()
            with self._lock:
                self._rotated.remove(file)
                if size:
                    self._on_closed(file.file, size)

    def mark_healthy(self) -> None:
        """Note that there is room again."""
        with self._lock:
            self._mark_healthy(self._failing_at)

    def _sync(self, file: WrittenFile, end: int, fsync: Callable[[int], None]) -> None:
        try:
            done = file.sync(end, fsync)
        except OSError as error:
            with self._lock:
                self.fsync_errors += 1
                self._mark_failing("fsync", error)
                if self._file is file:  # never written to again
                    self._rotate()
            return
        if done:
            with self._lock:
                self.fsyncs += 1
                self._mark_healthy("fsync")

    def _file_for(self, size: int, receipt_ns: int) -> WrittenFile:
        file = self._file
        if file is not None:
            full = file.size + size > self._max_bytes
            if full or receipt_ns - file.began_ns >= self._max_age_ns:
                self._rotate()
        if self._file is None:
            named_ns = max(receipt_ns, self.last_ns, self.named_ns + 1)
            path = self._folder / file_name(named_ns, self.number)
            self._file = WrittenFile(JournalFile(named_ns, self.number, path), began_ns=receipt_ns)
            self.named_ns = named_ns
            self.number += 1
        return self._file

    def _rotate(self) -> None:
        if self._file is not None:
            self._rotated.append(self._file)
            self._file = None
            self._on_rotated()

    def _drop_unusable(self) -> None:
        """End a file with a torn record, and remove a file without a record."""
        file = self._file
        if file is None:
            return
        if file.torn:
            self._rotate()
        elif file.size == 0:
            file.close()
            self._file = None

    def _mark_failing(self, at: Literal["write", "fsync"], error: OSError) -> None:
        if self.failing is None:
            what = (
                "written; exports are refused until it can, streams in flight are evaluated"
                if at == "write"
                else "synced to the disk (fsync)"
            )
            log.error("%s: cannot be %s: %s", self._folder, what, reason_of(error))
        self.failing, self._failing_at = reason_of(error), at

    def _mark_healthy(self, at: Literal["write", "fsync"]) -> None:
        if self.failing is not None and self._failing_at == at:
            log.warning("%s: can be written again", self._folder)
            self.failing = None
