"""The lock of a journal's folder, for a single writer; the kernel releases it when the process ends."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from otel_llm.journal.journal_errors import JournalInUseError
from otel_llm.rules.decisions.output_file import open_inside

if TYPE_CHECKING:
    from pathlib import Path

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
