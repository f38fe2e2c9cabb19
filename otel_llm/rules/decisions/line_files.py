"""Files of JSON lines that one service appends to, and nobody else: decisions, windows."""

from __future__ import annotations

import errno
import fcntl
from typing import TYPE_CHECKING

from otel_llm.rules.decisions.output_file import own_descriptor

if TYPE_CHECKING:
    from pathlib import Path


def hold(file: int, path: Path) -> None:
    """Keep an open file to this process as long as it is open: two that append to one would cut each other's lines.

    Raises:
        OSError: another process holds it. Filesystems that cannot tell hold nothing.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EBUSY, "another process writes to it", str(path)) from error
    except OSError:
        return


def refuse_other_lines(path: Path, first_key: str, what: str) -> None:
    """Refuse a file that holds anything but JSON lines that begin with this key: it would be cut, and appended to.

    An empty file is nobody's, and one that is none (a pipe, a device) is not looked at. Raises OSError.
    """
    if own_descriptor(path) is not None or not path.is_file():
        return
    begin = b'{"' + first_key.encode() + b'":'
    with path.open("rb") as file:
        head = file.read(len(begin))
    if not begin.startswith(head):
        raise OSError(errno.EINVAL, f"it holds something else than {what}", str(path))
