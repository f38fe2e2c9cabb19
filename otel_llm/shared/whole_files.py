"""Files that are consistent after a crash: replaced atomically, or read without a torn last line."""

from __future__ import annotations

import errno
import io
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_llm.rules.decisions.output_file import own_descriptor, replace_inside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TAIL_BYTES: Final = 64 * 2**20
"""The size of the end of a file that is read back: days of windows, millions of decisions."""


def replace_whole(path: Path, data: bytes, *, durable: bool) -> None:
    """Replace a file atomically, also in a crash; `durable`: also in a power cut.

    Raises:
        OSError: it could not be written; the old one stays.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with io.BufferedWriter(replace_inside(temporary)) as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent, os.fsync)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def whole_lines(path: Path, tail_bytes: int = TAIL_BYTES) -> list[str]:
    """Return the last lines of a file of JSON lines, and cut a torn last line off the file; a pipe has none.

    `tail_bytes`: how much of its end is read.

    Raises:
        OSError: it cannot be read or cut.
    """
    if own_descriptor(path) is not None or not path.is_file():
        return []
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail_bytes))
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if (whole < len(data) and size <= tail_bytes) or whole:
            file.truncate(size - len(data) + whole)
    lines = data[:whole].decode("utf-8", "replace").splitlines()
    return lines if size <= tail_bytes else lines[1:]


def sync_folder(folder: Path, fsync: Callable[[int], None]) -> None:
    """Make the names in a folder durable; do nothing on filesystems that cannot sync folders (EINVAL).

    Raises:
        OSError: the sync failed.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(fd)


def reason_of(error: OSError) -> str:
    """Return the reason of an error, without paths."""
    return error.strerror or str(error)
