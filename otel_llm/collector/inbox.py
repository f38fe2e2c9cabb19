"""An export request on its way from a receiver's thread to the evaluator's, and the answer on its way back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from otel_llm.collector.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.collector.journal_writer import Position
    from otel_llm.readers.records import Batch

_LOOK_S = 1.0
"""How often a receiver looks whether anybody is still there to take its export."""


class Export:
    """Hold a request's bytes, and what becomes of them: `batch` is None until they are decoded."""

    __slots__ = ("_error", "_taken", "batch", "raw", "receipt_ns", "written")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.receipt_ns = 0
        self.batch: Batch | None = None
        self.written: Position | None = None
        self._error: Exception | None = None
        self._taken = threading.Lock()  # released once: cheaper than a Future, of which thousands are made
        self._taken.acquire()

    def accept(self, written: Position) -> None:
        """Tell the receiver that it is in the journal, and where."""
        self.written = written
        self._taken.release()

    def refuse(self, error: Exception) -> None:
        """Tell the receiver why it is not."""
        self._error = error
        self._taken.release()

    def taken(self, alive: Callable[[], bool]) -> tuple[Batch, Position]:
        """Wait until it is in the journal; raise what it was refused with, or UnavailableError if nobody is `alive`."""
        while not self._taken.acquire(timeout=_LOOK_S):
            if not alive():
                raise UnavailableError("the evaluator has stopped")
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame
        assert self.batch is not None  # noqa: S101
        assert self.written is not None  # noqa: S101
        return self.batch, self.written
