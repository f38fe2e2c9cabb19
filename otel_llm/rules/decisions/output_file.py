"""Open a path for writing: a file, a descriptor of the process, the null device, a pipe with a reader.

Anything else under the name is refused at once: opening a pipe without a reader would block for ever, and a device
could be anything.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.config.file_defaults import PRIVATE, SHARED

if TYPE_CHECKING:
    from pathlib import Path

_MOST_LINKS: Final = 40
_NO_READER: Final = "a pipe without a reader: start its reader first, or name a file"
_NO_FILE: Final = "no file, and no pipe: name a file, a pipe that is read, /dev/null or /dev/stdout"
_NOT_OPEN: Final = "not open for writing: name a descriptor that is, or a file"
_LINK: Final = "a link, or a name of another file: remove it"


class Output(NamedTuple):
    """An opened file, unbuffered, and whether it is a regular one that only this descriptor writes."""

    file: io.FileIO
    regular: bool


def open_output(path: Path, *, append: bool = False, mode: int = SHARED) -> Output:
    """Open a path for writing, at its end with `append`, else emptied; a new file gets `mode`.

    PRIVATE and the mode of the settings are exact, SHARED is less the umask; an existing file keeps its own. Links are
    followed. Nothing blocks.

    Raises:
        OSError: it cannot be written; `strerror` holds the remedy.
    """
    number = own_descriptor(path)
    if number is not None:
        return Output(_descriptor(number, path), regular=False)
    flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (os.O_APPEND if append else 0)
    target = os.path.realpath(path)
    try:
        opened = os.open(target, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        opened = _open_old(path, target, flags)
    else:
        if mode != SHARED:
            os.fchmod(opened, mode)
    return _checked(opened, path, append=append)


def open_inside(path: Path, *, append: bool = False, mode: int = PRIVATE) -> io.FileIO:
    """Open one of our files in one of our folders for reading and writing; it is created if it is missing.

    Raises:
        OSError: it cannot be opened, or is a link, a name of another file, or no file: another program put it there.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
    try:
        opened = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        opened = _open_ours(path, flags)
    else:
        os.fchmod(opened, mode)
    status = os.fstat(opened)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(opened)
        raise OSError(errno.ELOOP, _LINK, str(path))
    return io.FileIO(opened, "r+b")


def read_inside(path: Path) -> io.FileIO:
    """Open one of our files in one of our folders for reading; a pipe in its place reads as empty. Raises OSError."""
    return io.FileIO(_open_ours(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW), "rb")


def replace_inside(path: Path, mode: int = PRIVATE) -> io.FileIO:
    """Create a file anew in one of our folders, whatever stands under its name. Raises OSError."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return io.FileIO(os.open(path, flags, mode), "wb")


def is_passed_on(path: Path) -> bool:
    """Tell whether a path is a descriptor of ours, or exists and is no regular file: it is written to as it is."""
    if own_descriptor(path) is not None:
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def own_descriptor(path: Path) -> int | None:
    """Return the number of the open descriptor of this process to which a path leads (`/dev/stdout`, `/dev/fd/3`)."""
    ours = f"/proc/{os.getpid()}/fd"
    at = os.path.abspath(path)  # noqa: PTH100 - `resolve` would follow the last link, too
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(at)
        folder = os.path.realpath(folder)
        if folder == ours:
            return int(name) if name.isascii() and name.isdigit() else None
        at = os.path.join(folder, name)  # noqa: PTH118
        if not os.path.islink(at):  # noqa: PTH114
            return None
        at = os.path.join(folder, os.readlink(at))  # noqa: PTH115, PTH118
    return None


def refuse_device(path: Path) -> None:
    """Refuse a path that can never be written, before any work is done; a pipe's reader may still come.

    Raises:
        OSError: as `open_output`.
    """
    if own_descriptor(path) is None:
        try:
            mode, device = path.stat().st_mode, path.stat().st_rdev
        except OSError:
            return
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or _is_null(mode, device)):
            raise OSError(errno.EINVAL, _NO_FILE, str(path))


def _open_ours(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, _LINK, str(path)) from error


def _open_old(path: Path, target: str, flags: int) -> int:
    try:
        return os.open(target, flags)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise OSError(error.errno, error.strerror, str(path)) from error
        piped = stat.S_ISFIFO(os.stat(target).st_mode)  # noqa: PTH116
        raise OSError(errno.ENXIO, _NO_READER if piped else _NO_FILE, str(path)) from error


def _checked(opened: int, path: Path, *, append: bool) -> Output:
    """Return the file of a descriptor that was opened without blocking; its writes block."""
    status = os.fstat(opened)
    regular = stat.S_ISREG(status.st_mode)
    if not (regular or stat.S_ISFIFO(status.st_mode) or _is_null(status.st_mode, status.st_rdev)):
        os.close(opened)
        raise OSError(errno.EINVAL, _NO_FILE, str(path))
    if regular and not append:
        os.ftruncate(opened, 0)
    os.set_blocking(opened, True)
    return Output(io.FileIO(opened, "wb"), regular)


def _descriptor(number: int, path: Path) -> io.FileIO:
    try:
        writable = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    except OSError:
        writable = False
    if not writable:
        raise OSError(errno.EBADF, _NOT_OPEN, str(path))
    return io.FileIO(os.dup(number), "wb")


def _is_null(mode: int, device: int) -> bool:
    return stat.S_ISCHR(mode) and device == os.stat(os.devnull).st_rdev  # noqa: PTH116
