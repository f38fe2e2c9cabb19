"""Append every accepted export request to the journal, before it is acknowledged.

One folder of files `*.otlp`, one writer. A file is begun by one process and only ever grows: it is never appended to
again, so that what a crash tore stays the last thing in its file. Names sort by time whatever the clock does.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from calendar import timegm
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final, Self

from otel_llm.collector.errors import JournalError, JournalInUseError, StartError, TooLargeError
from otel_llm.readers.journal_format import envelope

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NS_PER_S: Final = 1_000_000_000
LOCK_FILE: Final = "journal.lock"
_NAME: Final = re.compile(r"(\d{8}T\d{6})\.(\d{9})Z-(\d{6,})\.otlp(?:\.zst)?")
_TIME_FORMAT: Final = "%Y%m%dT%H%M%S"
_log = logging.getLogger(__name__)


class Journal:
    """The writer of one folder; safe to use from several threads.

    Args:
        folder: made with mode 0700 where it is missing; files have 0600. Other files in it are left alone.
        max_bytes: a file that would grow beyond it is closed and the next begun.
        max_age_s: so is one whose first record is that much older than the record to be written.
        sync: called with the file descriptor after each record, before `append` returns; the place for a policy of
            fsync. Without one a record is with the operating system: it survives the process, not the machine.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 64 * 2**20,
        max_age_s: float = 600,
        sync: Callable[[int], None] | None = None,
    ) -> None:
        self.folder = folder
        self.written_records = 0
        self.written_bytes = 0
        """Since the start, lengths and seals included."""
        self.path: Path | None = None
        """The file being written; None before the first record and between files."""
        self.failing: str | None = None
        """Why the last record could not be written; None when it could."""
        self._max_bytes = max_bytes
        self._max_age_ns = round(max_age_s * NS_PER_S)
        self._sync = sync
        self._lock = Lock()
        self._lock_fd: int | None = None
        self._fd: int | None = None
        self._size = 0
        self._began_ns = 0
        self._named_ns = 0
        self._number = 0

    def open(self) -> Self:
        """Take the folder; nothing is written yet.

        Raises:
            JournalInUseError: another process has it.
            StartError: it cannot be made or used.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_fd = os.open(self.folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._take_lock(self._lock_fd)
            self._continue_names()
        except OSError as error:
            self.close()
            reason = error.strerror or str(error)
            raise StartError(
                f"{self.folder}: cannot keep a journal here: {reason}: choose another with --journal DIR"
            ) from error
        return self

    def append(self, raw: bytes, receipt_ns: int) -> None:
        """Write one record; when it returns, the record is with the operating system.

        Raises:
            JournalError: it could not be written (disk full ...), and nothing of it stays.
            TooLargeError: it would be longer than a record may be.
        """
        try:
            head, seal = envelope(raw, receipt_ns)
        except ValueError as error:
            raise TooLargeError(str(error)) from error
        size = len(head) + len(raw) + len(seal)
        with self._lock:
            if self._lock_fd is None:
                raise JournalError("closed")
            try:
                fd = self._file_for(size, receipt_ns)
                self._write(fd, (head, raw, seal), size)
            except OSError as error:
                reason = error.strerror or str(error)
                if self.failing is None:
                    _log.error("%s: cannot be written: %s; exports are refused until it can", self.folder, reason)
                self.failing = reason
                raise JournalError(reason) from error
            if self.failing is not None:
                _log.warning("%s: can be written again", self.folder)
                self.failing = None
            self._size += size
            self.written_bytes += size
            self.written_records += 1

    def tick(self, now_ns: int) -> None:
        """Close the file if it is old, though nothing is written: who reads closed files need not wait for traffic."""
        with self._lock:
            if self._fd is not None and now_ns - self._began_ns >= self._max_age_ns:
                self._close_file()

    def close(self) -> None:
        """Close the file and give the folder back; further records are refused. Doing it twice is fine."""
        with self._lock:
            self._close_file()
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def __enter__(self) -> Self:
        return self if self._lock_fd is not None else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            self.close()
            raise JournalInUseError(
                f"{self.folder}: this journal is in use by process {holder or 'unknown'}:"
                " stop it, or choose another folder with --journal DIR"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)

    def _continue_names(self) -> None:
        """Let the next name sort behind every name that is there, also after the clock stepped back."""
        for entry in self.folder.iterdir():
            match = _NAME.fullmatch(entry.name)
            seconds = None if match is None else _seconds_of(match[1])
            if match is not None and seconds is not None:
                self._named_ns = max(self._named_ns, seconds * NS_PER_S + int(match[2]))
                self._number = max(self._number, int(match[3]) + 1)

    def _file_for(self, size: int, receipt_ns: int) -> int:
        if self._fd is not None:
            full = self._size > 0 and self._size + size > self._max_bytes
            if full or receipt_ns - self._began_ns >= self._max_age_ns:
                self._close_file()
        if self._fd is None:
            named_ns = max(receipt_ns, self._named_ns + 1)
            seconds, nanos = divmod(named_ns, NS_PER_S)
            instant = time.strftime(_TIME_FORMAT, time.gmtime(seconds))
            path = self.folder / f"{instant}.{nanos:09d}Z-{self._number:06d}.otlp"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.path, self._size = path, 0
            self._began_ns, self._named_ns = receipt_ns, named_ns
            self._number += 1
        return self._fd

    def _write(self, fd: int, parts: tuple[bytes, bytes, bytes], size: int) -> None:
        try:
            written = os.writev(fd, parts)
            if written < size:  # the disk is full, or will say so now
                rest = memoryview(b"".join(parts))
                while written < size:
                    written += os.write(fd, rest[written:])
            if self._sync is not None:
                self._sync(fd)
        except BaseException:
            self._undo(fd)
            raise

    def _undo(self, fd: int) -> None:
        """Take back what was written of a record that failed; a file where that is not possible is left as torn."""
        try:
            os.ftruncate(fd, self._size)
        except OSError:
            self._close_file()
            return
        if self._size == 0:
            self._close_file()

    def _close_file(self) -> None:
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        if self._size == 0 and self.path is not None:
            with suppress(OSError):  # an empty file is read as no records
                if self.path.stat().st_size == 0:
                    self.path.unlink()
        self.path = None


def _seconds_of(instant: str) -> int | None:
    """Return the unix seconds of a name's instant, None where the digits are no instant."""
    try:
        return timegm(time.strptime(instant, _TIME_FORMAT))
    except ValueError:
        return None
