"""A journal file while it is written, and the sync of a file and of its folder."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_llm.rules.decisions.output_file import replace_inside
from otel_llm.shared.whole_files import reason_of, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from otel_llm.journal.names import JournalFile

PROBE_FILE: Final = "journal.probe"


class WrittenFile:
    """An append-only file of whole records.

    `write` is called under the journal's lock, `sync` and `close` by the thread that flushes; the two may overlap.

    Raises:
        OSError: it cannot be created.
    """

    __slots__ = ("_fd", "_has_entry", "began_ns", "broken", "file", "size", "synced", "torn")

    def __init__(self, file: JournalFile, *, began_ns: int) -> None:
        self.file = file
        self.began_ns = began_ns
        """The receipt time of its first record."""
        self.size = 0
        """Bytes of whole records."""
        self.synced = 0
        """The first bytes that survive a power cut."""
        self.broken: str | None = None
        """Why an fsync failed. The state of the bytes after `synced` is unknown, and another fsync would not reveal it:
        the kernel reports such an error once."""
        self.torn = False
        """Whether bytes of a failed record are at its end and cannot be removed."""
        self._has_entry = False
        self._fd = os.open(file.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, parts: tuple[bytes, bytes, bytes], size: int) -> None:
        """Append one record of `size` bytes.

        Raises:
            OSError: it could not be written; its bytes are removed, else the file is `torn`.
        """
        try:
            written = os.writev(self._fd, parts)
            if written < size:  # the disk is full, or the next write reports that it is
                rest = memoryview(b"".join(parts))
                while written < size:
                    written += os.write(self._fd, rest[written:])
        except BaseException:
            try:
                os.ftruncate(self._fd, self.size)
            except OSError:
                self.torn = True
            raise
        self.size += size

    def sync(self, end: int, fsync: Callable[[int], None]) -> bool:
        """Make the first `end` bytes and the file's name durable; return whether that needed an fsync.

        Raises:
            OSError: it failed; the file is broken from now on.
        """
        if self.broken is not None or self.synced >= end:
            return False
        try:
            fsync(self._fd)
            if not self._has_entry:
                sync_folder(self.file.path.parent, fsync)
        except OSError as error:
            self.broken = reason_of(error)
            raise
        self._has_entry = True
        self.synced = end
        return True

    def close(self) -> int:
        """Close the file, remove it if it is empty, and return its size in bytes."""
        in_it = self.size
        with suppress(OSError):
            in_it = os.fstat(self._fd).st_size
        os.close(self._fd)
        if in_it == 0:
            with suppress(OSError):  # an empty file is read as no records
                self.file.path.unlink()
        return in_it


def make_folder(folder: Path, fsync: Callable[[int], None] | None) -> None:
    """Create a folder and its missing parents; with `fsync`, durably.

    Raises:
        OSError: it cannot be created.
    """
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if fsync is not None:
        for one in missing:
            sync_folder(one.parent, fsync)


def try_to_write(folder: Path, size: int, fsync: Callable[[int], None] | None) -> None:
    """Allocate `size` bytes in a folder, and free them again.

    Raises:
        OSError: there is no room for them.
    """
    path = folder / PROBE_FILE
    file = replace_inside(path)
    fd = file.fileno()
    try:
        os.posix_fallocate(fd, 0, max(1, size))
        if fsync is not None:
            fsync(fd)
    finally:
        file.close()
        path.unlink(missing_ok=True)
