"""Write decision records in a thread: a slow disk does not hold up the streams."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_llm.shared.bounded_queue import BoundedQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_llm.rules.decisions.files import DecisionFiles

    Record: TypeAlias = Mapping[str, Any]

MOST_WAITING: Final = 10_000


class RecordWriter(BoundedQueue["Record"]):
    """A thread that writes records to decision files, in order; `failed` gets each error, in that thread."""

    def __init__(
        self, files: DecisionFiles, failed: Callable[[OSError | ValueError], None], most: int = MOST_WAITING
    ) -> None:
        super().__init__("otel-llm-decisions", capacity=most, batch=1)
        self._files = files
        self._failed = failed
        self._closed = False
        self.start()

    def write(self, record: Record) -> None:
        """Queue a record; never blocks. Raises OSError if too many wait, or after `close`: it is lost then."""
        if self._closed:
            raise OSError(errno.EBADF, "the relay has stopped")
        if not self.offer(record):
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    def close(self) -> None:
        """Write what waits, and close the files; blocks on the disk."""
        self._closed = True
        self.stop(None)
        self._files.close()

    def _work(self, items: Sequence[Record], dropped: int) -> None:  # noqa: ARG002  `write` said so
        for record in items:
            try:
                self._files.write(record)
            except (OSError, ValueError) as problem:
                self._failed(problem)
