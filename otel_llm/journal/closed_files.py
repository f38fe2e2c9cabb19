"""The closed files of a journal: compaction, retention, and their number and size."""

from __future__ import annotations

import errno
import io
import logging
import time
from bisect import insort
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import zstandard

from otel_llm.journal.file import PROBE_FILE
from otel_llm.journal.names import list_files
from otel_llm.journal.retention import Retention, expired
from otel_llm.rules.decisions.output_file import replace_inside
from otel_llm.shared.whole_files import reason_of, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.journal.names import JournalFile
    from otel_llm.journal.retention import Horizon

LEVEL: Final = -1
"""On a journal, level 1 takes twice the time, level 3 four times, and neither saves bytes."""
_CHUNK_BYTES: Final = 2**20
"""Smaller chunks take a third more time."""
_PAUSE_S: Final = 0.006
"""The pause after each chunk, about three times its CPU time: compression yields the core to the evaluator."""


def compress_file(path: Path, target: Path, *, fsync: Callable[[int], None], stopping: Callable[[], bool]) -> bool:
    """Replace `path` by its compressed form at `target`, byte for byte, a torn end included.

    At every instant exactly one of the two forms is valid: `X.otlp.zst` is written and synced before `X.otlp` is
    removed. While both exist the `.zst` is unfinished and is not read (the journal's contract): a crash at any point
    loses no record.

    Returns:
        False if `stopping` became true; then, as after an error, `path` is unchanged and `target` is removed.

    Raises:
        OSError: it could not be read, written (disk full ...) or synced.
    """
    try:
        if not _write(path, target, fsync, stopping):
            target.unlink(missing_ok=True)
            return False
        sync_folder(target.parent, fsync)
    except OSError:
        target.unlink(missing_ok=True)
        raise
    path.unlink()
    return True


def _write(path: Path, target: Path, fsync: Callable[[int], None], stopping: Callable[[], bool]) -> bool:
    parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, write_checksum=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with path.open("rb", buffering=0) as source, io.BufferedWriter(replace_inside(target)) as file:
        while chunk := source.read(_CHUNK_BYTES):
            if stopping():
                return False
            file.write(compressor.compress(chunk))
            time.sleep(_PAUSE_S)
        file.write(compressor.flush())
        file.flush()
        fsync(file.fileno())
    return True


_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
log = logging.getLogger(__name__)


class ClosedFiles:
    """The closed files of one folder; one thread at a time calls `compact_and_expire` or `add`.

    Args:
        folder: the journal's.
        compress: whether files are compressed.
        retention: the limits on size and age.
        horizon: returns the state of the rest of the journal, before files are deleted.
        fsync: makes a file or folder durable, given its descriptor.
        stopping: called often during a compression, which ends when it is true.
    """

    def __init__(
        self,
        folder: Path,
        *,
        compress: bool,
        retention: Retention,
        horizon: Callable[[], Horizon],
        fsync: Callable[[int], None],
        stopping: Callable[[], bool],
    ) -> None:
        self.files: list[JournalFile] = []
        """In order of writing."""
        self.total_bytes = 0
        self.compressed_files = 0
        self.compress_errors = 0
        self.deleted_files = 0
        self._sizes: dict[JournalFile, int] = {}
        self._folder = folder
        self._compress = compress
        self._retention = retention
        self._horizon = horizon
        self._fsync = fsync
        self._stopping = stopping
        self._logged: set[str] = set()

    def recover(self) -> None:
        """Read the folder, and remove files that a crash left unfinished.

        Raises:
            OSError: the folder cannot be used.
        """
        (self._folder / PROBE_FILE).unlink(missing_ok=True)
        files, unfinished = list_files(self._folder)
        for file in unfinished:
            file.path.unlink(missing_ok=True)
        for file in files:
            size = file.path.stat().st_size
            if size == 0 and not file.compressed:  # begun, without a record
                file.path.unlink()
            else:
                self.add(file, size)

    def add(self, file: JournalFile, size: int) -> None:
        """Add a closed file of `size` bytes."""
        insort(self.files, file)
        self._sizes[file] = size
        self.total_bytes += size

    def compact_and_expire(self) -> None:
        """Compress files, then delete those beyond the limits; a failure is retried at the next call.

        The limit on size is applied last, since compression makes room.
        """
        self._delete(self._retention.by_age())
        if self._compress:
            for file in [file for file in self.files if not file.compressed]:
                if not self._compress_one(file):
                    break
        if not self._stopping():
            self._delete(self._retention)

    def _compress_one(self, file: JournalFile) -> bool:
        """Compress a file; return whether to continue with the next."""
        target = file._replace(path=file.compressed_path)
        try:
            if not compress_file(file.path, target.path, fsync=self._fsync, stopping=self._stopping):
                return False
            size = target.path.stat().st_size
        except FileNotFoundError:  # another process removed it
            self._forget(file)
            return True
        except OSError as error:
            self.compress_errors += 1
            self._log_once("compress", file, error)
            return error.errno not in _FULL
        self._logged.discard("compress")
        self._forget(file)
        self.add(target, size)
        self.compressed_files += 1
        return True

    def _delete(self, retention: Retention) -> None:
        if retention == Retention():
            return
        for file in expired(self.files, self._sizes, retention, self._horizon()):
            try:
                # The unfinished form first: without the plain file it would pass for finished.
                if not file.compressed:
                    file.compressed_path.unlink(missing_ok=True)
                file.path.unlink(missing_ok=True)
            except OSError as error:
                self._log_once("delete", file, error)
                return
            self._logged.discard("delete")
            self._forget(file)
            self.deleted_files += 1

    def _forget(self, file: JournalFile) -> None:
        with suppress(ValueError):
            self.files.remove(file)
        self.total_bytes -= self._sizes.pop(file, 0)

    def _log_once(self, what: str, file: JournalFile, error: OSError) -> None:
        if what not in self._logged:
            self._logged.add(what)
            log.warning("%s: cannot %s it: %s; tried again later", file.path, what, reason_of(error))
