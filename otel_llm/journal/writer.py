"""Write records to the files of one folder, one file at a time, and flush what was written."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal, NamedTuple

from otel_llm.journal.file import WrittenFile
from otel_llm.journal.journal_errors import JournalError
from otel_llm.journal.names import NS_PER_S, JournalFile, file_name
from otel_llm.readers.io.journal_format import envelope
from otel_llm.shared.errors import TooLargeError
from otel_llm.shared.whole_files import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger(__name__)


class Position(NamedTuple):
    """Where a record ends."""

    file: WrittenFile
    end_bytes: int

    @property
    def settled(self) -> bool:
        """Return whether it is known what became of it: it lasts, or its file is broken."""
        return self.file.synced >= self.end_bytes or self.file.broken is not None


class FolderWriter:
    """The files that are being written; `append` and `leave_old` from several threads, `flush` from one at a time.

    Args:
        fsync: None: files are not made to last.
        left: called under the lock when a file was left: `flush` will close it.
        closed: called from `flush` with a file that was closed and how many bytes are in it, unless it was empty.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int,
        max_age_s: float,
        fsync: Callable[[int], None] | None,
        left: Callable[[], None],
        closed: Callable[[JournalFile, int], None],
    ) -> None:
        self.number = 0
        """That of the next file."""
        self.named_ns = 0
        """The instant in the last file's name: the next is later."""
        self.last_ns = 0
        """The latest receipt time of all records: the next name is not before it."""
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
        self._on_left = left
        self._on_closed = closed
        self._lock = threading.Lock()
        self._taking = False
        self._file: WrittenFile | None = None
        self._left: list[WrittenFile] = []

    @property
    def path(self) -> Path | None:
        """Return the file being written; None before the first record and between files."""
        file = self._file
        return None if file is None else file.file.path

    @property
    def open_files(self) -> list[WrittenFile]:
        """Return the files that are not closed, in order; without the lock, so that nobody waits for a disk."""
        file, left = self._file, list(self._left)
        return left if file is None or file in left else [*left, file]

    @property
    def has_left(self) -> bool:
        """Return whether `flush` has files to close."""
        return bool(self._left)

    def start(self) -> None:
        """Take records from now on."""
        self._taking = True

    def append(self, raw: bytes, receipt_ns: int) -> Position:
        """Write one record; see `Journal.append`."""
        try:
            head, seal = envelope(raw, receipt_ns)
        except ValueError as error:
            raise TooLargeError(str(error)) from error
        size = len(head) + len(raw) + len(seal)
        with self._lock:
            if not self._taking:
                raise JournalError("closed")
            try:
                file = self._file_for(size, receipt_ns)
                file.write((head, raw, seal), size)
            except OSError as error:
                self.write_errors += 1
                self.refused_bytes = size
                self._fail("write", error)
                raise JournalError(reason_of(error)) from error
            finally:
                self._abandon_unusable()
            self._recover("write")
            self.last_ns = max(self.last_ns, receipt_ns)
            self.bytes += size
            self.records += 1
            return Position(file, file.size)

    def leave_old(self, now_ns: int) -> None:
        """Leave the file if it is old; at once: where a record is being written it is left to that."""
        if self._lock.acquire(blocking=False):
            try:
                if self._file is not None and now_ns - self._file.began_ns >= self._max_age_ns:
                    self._leave()
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Refuse further records and leave the file."""
        with self._lock:
            self._taking = False
            self._leave()

    def flush(self) -> None:
        """Make what was written up to now last, and close the files that were left."""
        with self._lock:
            left = list(self._left)
            ends = [(file, file.size) for file in (*left, self._file) if file is not None]
        if self._fsync is not None:
            for file, end in ends:
                self._sync(file, end, self._fsync)
        for file in left:
            size = file.close()
            with self._lock:
                self._left.remove(file)
                if size:
                    self._on_closed(file.file, size)

    def recovered(self) -> None:
        """Learn that there is room again."""
        with self._lock:
            self._recover(self._failing_at)

    def _sync(self, file: WrittenFile, end: int, fsync: Callable[[int], None]) -> None:
        try:
            done = file.sync(end, fsync)
        except OSError as error:
            with self._lock:
                self.fsync_errors += 1
                self._fail("fsync", error)
                if self._file is file:  # never written to again
                    self._leave()
            return
        if done:
            with self._lock:
                self.fsyncs += 1
                self._recover("fsync")

    def _file_for(self, size: int, receipt_ns: int) -> WrittenFile:
        file = self._file
        if file is not None:
            full = file.size + size > self._max_bytes
            if full or receipt_ns - file.began_ns >= self._max_age_ns:
                self._leave()
        if self._file is None:
            named_ns = max(receipt_ns, self.last_ns, self.named_ns + 1)
            path = self._folder / file_name(named_ns, self.number)
            self._file = WrittenFile(JournalFile(named_ns, self.number, path), began_ns=receipt_ns)
            self.named_ns = named_ns
            self.number += 1
        return self._file

    def _leave(self) -> None:
        if self._file is not None:
            self._left.append(self._file)
            self._file = None
            self._on_left()

    def _abandon_unusable(self) -> None:
        """Go on in a new file behind a torn record, and keep no file in which nothing could be written."""
        file = self._file
        if file is None:
            return
        if file.torn:
            self._leave()
        elif file.size == 0:
            file.close()
            self._file = None

    def _fail(self, at: Literal["write", "fsync"], error: OSError) -> None:
        if self.failing is None:
            what = "written; exports are refused until it can" if at == "write" else "made to last (fsync)"
            log.error("%s: cannot be %s: %s", self._folder, what, reason_of(error))
        self.failing, self._failing_at = reason_of(error), at

    def _recover(self, at: Literal["write", "fsync"]) -> None:
        if self.failing is not None and self._failing_at == at:
            log.warning("%s: can be written again", self._folder)
            self.failing = None
