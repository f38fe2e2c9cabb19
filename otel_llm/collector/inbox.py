"""What waits for the evaluator's thread, and the export requests among it, with the answer on their way back.

Exports are given out by sender (`senders.FairQueue`): those of one sender in order, whichever listener they came by.
"""

from __future__ import annotations

import os
import select
import threading
from collections import Counter, deque
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

from otel_llm.collector.receive.senders import UNKNOWN, FairQueue
from otel_llm.shared.clock import monotonic_s
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


T = TypeVar("T")


class Export:
    """Hold a request's bytes, and what becomes of them.

    `parts`: what is decoded of them and not yet in the journal, each a message with its records; None until they are
    decoded. A large request comes in several, between which others have their turn.
    """

    __slots__ = ("parts", "raw", "receipt_ns", "refused", "sender", "written")

    def __init__(self, raw: bytes, sender: int = UNKNOWN) -> None:
        self.raw = raw
        self.sender = sender
        self.receipt_ns = 0
        self.parts: deque[tuple[bytes, Batch]] | None = None
        self.refused: Counter[str] = Counter()
        """Spans of it that are not taken, by reason."""
        self.written: list[Position] = []
        """Where it is in the journal."""

    @property
    def whole(self) -> bool:
        """Tell whether all of it is in the journal."""
        return bool(self.written) and not self.parts

    def accept(self) -> None:
        """Note that all of it is in the journal."""

    def refuse(self, error: Exception) -> None:
        """Tell whoever sent it why it is not taken."""
        raise NotImplementedError


class HeldExport(Export):
    """An export with which a thread of this process waits."""

    __slots__ = ("_error", "_taken")

    def __init__(self, raw: bytes, sender: int = UNKNOWN) -> None:
        super().__init__(raw, sender)
        self._error: Exception | None = None
        self._taken = threading.Lock()  # released once: cheaper than a Future, of which thousands are made
        self._taken.acquire()

    def accept(self) -> None:
        """Tell the receiver that it is in the journal."""
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
        self._told: deque[Callable[[], None] | None] = deque()
        """What is no export, in order."""
        self._told_last = False
        self._exports: FairQueue[Export] = FairQueue(monotonic_s)
        self._back: deque[tuple[int, Export | None]] = deque()
        """What was under way elsewhere and comes again, by sender; None: it does not."""
        self._put = 0
        """How many exports wait that were put in here."""
        self._doors: dict[int, Door] = {}
        """By what they can be waited for with."""
        self._poll = select.poll()
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        self._poll.register(self._wake, select.POLLIN)
        self._putting = threading.Lock()
        self._sorting = threading.Lock()
        self._closed = False

    def attach(self, door: Door) -> None:
        """Take from this door too; before anybody waits here."""
        self._doors[door.fileno()] = door
        self._poll.register(door.fileno(), select.POLLIN)

    def put(self, item: Item) -> None:
        """Put something in, from any thread."""
        with self._putting:
            self._put += isinstance(item, HeldExport)
            self._items.append(item)
            self._wake_up()

    def ask(self, question: Callable[[], T], timeout_s: float) -> T:
        """Have the thread that takes run `question`; return what it returns, raise its error or TimeoutError."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001  handed to the asker
                answer.set_exception(error)

        self.put(run)
        return answer.result(timeout=timeout_s)

    def put_back(self, sender: int, export: Export | None) -> None:
        """Put in what was taken and is to be taken again, before all else of its sender; None: it is done with.

        The sender was held; from any thread.
        """
        with self._putting:
            self._put += isinstance(export, HeldExport)
            self._back.append((sender, export))
            self._wake_up()

    def get(self, timeout_s: float) -> Item:
        """Return the next, waiting for it; raises `queue.Empty` if nothing comes in time."""
        self._sort()
        with suppress(Empty):
            return self.get_nowait()
        self._poll.poll(timeout_s * 1000)
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._sort()
        return self.get_nowait()

    def get_nowait(self) -> Item:
        """Return the next; raises `queue.Empty` where there is none. Exports and all else take turns."""
        if not self._exports:
            self._sort()
        with self._sorting:
            told = self._told and (self._told[0] is not None or not self._exports)
            if told and not (self._told_last and self._exports):
                self._told_last = True
                return self._told.popleft()
            self._told_last = False
            try:
                export = self._exports.take()
            except Empty:
                if told:
                    return self._told.popleft()
                raise
        if isinstance(export, HeldExport):
            with self._putting:
                self._put -= 1
        return export

    # For the thread that takes.

    def hold(self, sender: int) -> None:
        """Give out no export of a sender until `put_back`: the one that was taken is under way elsewhere."""
        with self._sorting:
            self._exports.hold(sender)

    def charge(self, sender: int, cost_s: float) -> None:
        """Charge the CPU time of an export to its sender."""
        with self._sorting:
            self._exports.charge(sender, cost_s)

    def is_heavy(self, sender: int) -> bool:
        """Tell whether a sender has used much, and there are others."""
        with self._sorting:
            return self._exports.is_heavy(sender)

    def empty(self) -> bool:
        """Tell whether nothing waits."""
        self._sort()
        return not self._told and not self._exports

    def qsize(self) -> int:
        """Return how many exports wait that were put in; those from doors the doors count, until they are answered."""
        return self._put

    def oldest_ns(self) -> int | None:
        """Return when the first export of those was received."""
        with self._sorting:
            waiting = [*self._exports.first(), *tuple(self._items)]
        return min((item.receipt_ns for item in waiting if isinstance(item, HeldExport)), default=None)

    def close(self) -> None:
        """Give back what was taken from the system: nobody takes anything out any more."""
        with self._putting:
            if not self._closed:
                self._closed = True
                os.close(self._wake)
                os.close(self._waker)

    def _wake_up(self) -> None:
        if not self._closed:
            with suppress(BlockingIOError):  # it is awake
                os.write(self._waker, b"\0")

    def _sort(self) -> None:
        """Take what has come to where it waits; what came by two ways in turns."""
        with self._sorting:
            while self._back:
                sender, export = self._back.popleft()
                if export is None:
                    self._exports.release(sender)
                else:
                    self._exports.put_back(sender, export)
            sent = self._read()
            while self._items or sent:
                if self._items:
                    item = self._items.popleft()
                    if isinstance(item, Export):
                        self._exports.put(item.sender, item)
                    else:
                        self._told.append(item)
                if sent:
                    export = sent.popleft()
                    self._exports.put(export.sender, export)

    def _read(self) -> deque[Export]:
        found: deque[Export] = deque()
        for fd, door in list(self._doors.items()):
            found.extend(door.read())
            if door.gone:
                del self._doors[fd]
                self._poll.unregister(fd)
        return found
