"""Open a path for reading: a file, a descriptor of the process, the null device, a pipe with a writer.

Anything else under the name is refused at once: opening a pipe without a writer would block for ever, and a device such
as `/dev/zero` has no end. Files of recordings, rules, settings, secrets and certificates are opened by this module.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import WriteableBuffer

_NO_WRITER: Final = "a pipe without a writer: start its writer first, or name a file"
_NO_FILE: Final = "no file, and no pipe: name a file, a pipe that is written to, or - for standard input"
_NO_PATH: Final = "no name that a file can have (a NUL byte, or half a character): name a file"
_FIRST_BYTES: Final = 65536


def open_input(path: Path) -> io.BufferedReader:
    """Open a path for reading; links are followed. The data of a pipe is waited for when it is read, not here.

    Raises:
        OSError: it cannot be read; `strerror` holds the remedy.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except ValueError as error:
        raise OSError(errno.EINVAL, _NO_PATH, str(path)) from error
    try:
        begun = _first_bytes(opened, path)
    except OSError:
        os.close(opened)
        raise
    os.set_blocking(opened, True)
    file = io.FileIO(opened, "rb")
    return io.BufferedReader(_Begun(file, begun) if begun else file)


class _Begun(io.RawIOBase):
    """A pipe whose first bytes were read already."""

    def __init__(self, pipe: io.FileIO, begun: bytes) -> None:
        super().__init__()
        self._pipe = pipe
        self._begun = begun

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._begun:
            return self._pipe.readinto(buffer)
        into = memoryview(buffer).cast("B")
        count = min(len(into), len(self._begun))
        into[:count], self._begun = self._begun[:count], self._begun[count:]
        return count

    def close(self) -> None:
        self._pipe.close()
        super().close()


def _first_bytes(opened: int, path: Path) -> bytes:
    """Return the bytes that a pipe has now: b"" if its writer has written nothing yet, and for other files."""
    status = os.fstat(opened)
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISFIFO(status.st_mode):
        if stat.S_ISREG(status.st_mode) or _is_null(status) or _is_given(status):
            return b""
        raise OSError(errno.EINVAL, _NO_FILE, str(path))
    try:
        begun = os.read(opened, _FIRST_BYTES)
    except BlockingIOError:
        return b""
    if not begun:
        raise OSError(errno.ENXIO, _NO_WRITER, str(path))
    return begun


def _is_null(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116


def _is_given(status: os.stat_result) -> bool:
    """Tell whether it is the terminal of our standard input, under any name."""
    try:
        given = os.fstat(0)
    except OSError:
        return False
    return os.isatty(0) and (given.st_dev, given.st_ino) == (status.st_dev, status.st_ino)
