"""Write decision records in a thread: a slow disk does not hold up the streams."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.rules.decisions.files import DecisionFiles

MOST_WAITING: Final = 10_000


class RecordWriter:
    """A thread that writes records to decision files, in order; `failed` gets each error, in that thread."""

    def __init__(
        self, files: DecisionFiles, failed: Callable[[OSError | ValueError], None], most: int = MOST_WAITING
    ) -> None:
        self._files = files
        self._failed = failed
        self._most = most
        self._thread = ThreadPoolExecutor(1, "otel-llm-decisions")
        self._taken = 0
        self._written = 0
        self._closed = False

    def write(self, record: Mapping[str, Any]) -> None:
        """Queue a record; never blocks. Raises OSError where too many wait, or after `close`: it is lost then."""
        if self._closed:
            raise OSError(errno.EBADF, "the relay has stopped")
        if self._taken - self._written >= self._most:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        self._taken += 1
        self._thread.submit(self._write, record)

    def close(self) -> None:
        """Write what waits, and close the files; blocks on the disk."""
        self._closed = True
        self._thread.shutdown()
        self._files.close()

    def _write(self, record: Mapping[str, Any]) -> None:
        try:
            self._files.write(record)
        except (OSError, ValueError) as problem:
            self._failed(problem)
        finally:
            self._written += 1
