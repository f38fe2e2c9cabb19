"""What waits for the evaluator's thread, and the export requests among it, with the answer on their way back."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from otel_llm.shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.journal.writer import Position
    from otel_llm.readers.batch import Batch

    Item: TypeAlias = "Export | Callable[[], None] | None"
    """Something to do; None: stop."""

QUEUED_BYTES: Final = 256 * 2**20
"""Export requests accepted and not yet evaluated, in bytes, at each door; beyond them senders are told to come back."""
_LOOK_S: Final = 1.0
"""How often a receiver looks whether anybody is still there to take its export."""


class Export:
    """Hold a request's bytes, and what becomes of them: `batch` is None until they are decoded."""

    __slots__ = ("batch", "raw", "receipt_ns", "written")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.receipt_ns = 0
        self.batch: Batch | None = None
        self.written: Position | None = None

    def accept(self, written: Position) -> None:
        """Note that it is in the journal, and where."""
        self.written = written

    def refuse(self, error: Exception) -> None:
        """Tell whoever sent it why it is not taken."""
        raise NotImplementedError


class HeldExport(Export):
    """An export with which a thread of this process waits."""

    __slots__ = ("_error", "_taken")

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
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

    def taken(self, alive: Callable[[], bool]) -> None:
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


class Door(Protocol):
    """A door in another process."""

    gone: bool

    def fileno(self) -> int:
        """Return what can be waited for until there is something to `read`."""

    def read(self) -> Sequence[Export]:
        """Return the exports that have come, without waiting."""


class Inbox:
    """What other threads put in, and what comes from doors in other processes; taken out by one thread."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._sent: deque[Export] = deque()
        self._doors: dict[int, Door] = {}
        """By what they can be waited for with."""
        self._poll = select.poll()
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        self._poll.register(self._wake, select.POLLIN)
        self._sent_last = False
        self._putting = threading.Lock()
        self._closed = False

    def attach(self, door: Door) -> None:
        """Take from this door too; before anybody waits here."""
        self._doors[door.fileno()] = door
        self._poll.register(door.fileno(), select.POLLIN)

    def put(self, item: Item) -> None:
        """Put something in, from any thread."""
        self._items.append(item)
        with self._putting, suppress(BlockingIOError):  # it is awake
            if not self._closed:
                os.write(self._waker, b"\0")

    def get(self, timeout_s: float) -> Item:
        """Return the next, waiting for it; raises `queue.Empty` if nothing comes in time."""
        with suppress(Empty):
            return self.get_nowait()
        self._poll.poll(timeout_s * 1000)
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        return self.get_nowait()

    def get_nowait(self) -> Item:
        """Return the next; raises `queue.Empty` where there is none. Neither door keeps the other waiting."""
        if not self._sent:
            self._read()
        if self._sent and (not self._sent_last or not self._items or self._items[0] is None):
            self._sent_last = True
            return self._sent.popleft()
        self._sent_last = False
        if self._items:
            return self._items.popleft()
        raise Empty

    def empty(self) -> bool:
        """Tell whether nothing waits."""
        if not self._sent:
            self._read()
        return not self._items and not self._sent

    def qsize(self) -> int:
        """Return how many wait that were put in; what comes from doors they count themselves until it is answered."""
        return len(self._items)

    def oldest_ns(self) -> int | None:
        """Return when the first export of those was received."""
        return min((item.receipt_ns for item in tuple(self._items) if isinstance(item, Export)), default=None)

    def close(self) -> None:
        """Give back what was taken from the system: nobody takes anything out any more."""
        with self._putting:
            if not self._closed:
                self._closed = True
                os.close(self._wake)
                os.close(self._waker)

    def _read(self) -> None:
        for fd, door in list(self._doors.items()):
            self._sent.extend(door.read())
            if door.gone:
                del self._doors[fd]
                self._poll.unregister(fd)
