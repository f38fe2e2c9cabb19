"""Files of JSON lines with a single writing process: decisions, windows."""

from __future__ import annotations

import errno
import fcntl
from typing import TYPE_CHECKING

from otel_llm.rules.decisions.output_file import own_descriptor

if TYPE_CHECKING:
    from pathlib import Path


def lock_file(file: int, path: Path) -> None:
    """Lock an open file for this process: the lines of two writers would cut each other.

    Raises:
        OSError: another process holds it. Filesystems without locks lock nothing.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(errno.EBUSY, "another process writes to it", str(path)) from error
    except OSError:
        return


def refuse_other_lines(path: Path, first_key: str, what: str) -> None:
    """Refuse a file whose lines do not begin with this key: it is another file, named by mistake.

    An empty file is accepted, and what is no file (a pipe, a device) is not checked. Raises OSError.
    """
    if own_descriptor(path) is not None or not path.is_file():
        return
    begin = b'{"' + first_key.encode() + b'":'
    with path.open("rb") as file:
        head = file.read(len(begin))
    if not begin.startswith(head):
        raise OSError(errno.EINVAL, f"it holds something else than {what}", str(path))
