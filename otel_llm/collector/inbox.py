"""The inbox of the evaluator's thread: exports, scheduled fairly by sender, and functions to run in that thread.

Exports of one sender leave in order, whichever listener received them (`senders.FairQueue`).
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

from otel_llm.collector.receive.senders import UNKNOWN, FairQueue, Sender
from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.formats.batch import Batch
    from otel_llm.journal.writer import Position

    Item: TypeAlias = "Export | Callable[[], None] | None"
    """An export, a function to run, or None: stop."""

QUEUED_BYTES: Final = 256 * 2**20
"""The room of each process for export requests that wait; beyond it senders are asked to retry."""
HEAVY_WAIT_NS: Final = 20_000_000
"""Waiting exports of a sender that has used much delay the timers of other senders' streams by at most this. Timers
can so overtake such an export: its receipt time is then moved to the instant that they have reached."""
_CHECK_S: Final = 1.0
"""How often a receiver's thread checks that the evaluator's thread is alive."""


T = TypeVar("T")


class Export:
    """An export request on its way through the flow; `receipt_ns` is in unix ns.

    `parts`: its decoded parts that are not in the journal yet, each a message with its records; None before decoding,
    and once it is refused.
    """

    __slots__ = ("parts", "raw", "receipt_ns", "refused", "sender", "tenant", "written")

    def __init__(self, raw: bytes, sender: Sender = UNKNOWN) -> None:
        self.raw = raw
        self.sender, self.tenant = sender
        self.receipt_ns = 0
        self.parts: deque[tuple[bytes, Batch]] | None = None
        self.refused: Counter[str] = Counter()
        """Its refused spans, by reason."""
        self.written: list[Position] = []
        """The positions of its parts in the journal; empty once it is refused."""

    @property
    def whole(self) -> bool:
        """Return whether all parts are in the journal."""
        return bool(self.written) and not self.parts

    def journaled(self) -> None:
        """Note that all parts are in the journal; `Pipeline` then answers an export of the gRPC worker."""

    def refuse(self, error: Exception) -> None:
        """Answer the sender with an error."""
        raise NotImplementedError


class LocalExport(Export):
    """An export that a thread of this process has received; the thread waits for the answer."""

    __slots__ = ("_completed", "_error")

    def __init__(self, raw: bytes, sender: Sender = UNKNOWN) -> None:
        super().__init__(raw, sender)
        self._error: Exception | None = None
        self._completed = threading.Lock()  # released once: cheaper than a Future
        self._completed.acquire()

    def journaled(self) -> None:
        """Wake the receiver's thread, which answers the sender."""
        self._completed.release()

    def refuse(self, error: Exception) -> None:
        """Wake the receiver's thread with an error."""
        self._error = error
        self._completed.release()

    def wait(self, is_alive: Callable[[], bool]) -> None:
        """Wait until the export is in the journal.

        `is_alive`: whether the evaluator's thread runs.

        Raises:
            UnavailableError: the evaluator's thread has ended.
            Exception: the error that the export was refused with.
        """
        while not self._completed.acquire(timeout=_CHECK_S):
            if not is_alive():
                raise UnavailableError("the evaluator has stopped")
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback holds this frame


class ExportSource(Protocol):
    """A receiver in another process."""

    gone: bool

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to `read`."""

    def read(self) -> Sequence[Export]:
        """Return the exports received since the last call, without waiting."""


class Inbox:
    """Collects items from many threads and from receivers in other processes, for one consumer thread."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        """Items in order of arrival, not yet sorted into the queues below."""
        self._functions: deque[Callable[[], None] | None] = deque()
        self._function_last = False
        """Whether the last item that left was a function: exports and functions alternate."""
        self._exports: FairQueue[Export] = FairQueue(monotonic_s)
        self._returned: deque[tuple[int, Export | None]] = deque()
        """Calls of `put_back`, not yet sorted."""
        self._local_exports = 0
        """How many exports of this process wait."""
        self._sources: dict[int, ExportSource] = {}
        """By descriptor."""
        self._poll = select.poll()
        self._wake, self._waker = os.pipe()
        for end in (self._wake, self._waker):
            os.set_blocking(end, False)
        self._poll.register(self._wake, select.POLLIN)
        self._putting = threading.Lock()
        self._sorting = threading.Lock()
        self._closed = False

    def attach(self, source: ExportSource) -> None:
        """Read exports from a source too; call it before the consumer runs."""
        self._sources[source.fileno()] = source
        self._poll.register(source.fileno(), select.POLLIN)

    def put(self, item: Item) -> None:
        """Add an item; safe from any thread."""
        with self._putting:
            self._local_exports += isinstance(item, LocalExport)
            self._items.append(item)
            self._wake_up()

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """Run a function in the consumer's thread, and return its result.

        Raises:
            TimeoutError: it did not run in time.
            Exception: what the function raises.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001  handed to the caller
                result.set_exception(error)

        self.put(run)
        return result.result(timeout=timeout_s)

    def put_back(self, sender: int, export: Export | None) -> None:
        """End the hold of a sender; an export that is given leaves again before all others of that sender.

        Safe from any thread.
        """
        with self._putting:
            self._local_exports += isinstance(export, LocalExport)
            self._returned.append((sender, export))
            self._wake_up()

    def get(self, timeout_s: float) -> Item:
        """Return the next item, waiting for one.

        Raises:
            queue.Empty: none arrived in time.
        """
        self._sort()
        with suppress(Empty):
            return self.get_nowait()
        self._poll.poll(timeout_s * 1000)
        with suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._sort()
        return self.get_nowait()

    def get_nowait(self) -> Item:
        """Return the next item; exports and functions alternate.

        Raises:
            queue.Empty: there is none.
        """
        if not self._exports:
            self._sort()
        with self._sorting:
            has_function = self._functions and (self._functions[0] is not None or not self._exports)
            if has_function and not (self._function_last and self._exports):
                self._function_last = True
                return self._functions.popleft()
            self._function_last = False
            try:
                export = self._exports.take()
            except Empty:
                if has_function:
                    return self._functions.popleft()
                raise
        if isinstance(export, LocalExport):
            with self._putting:
                self._local_exports -= 1
        return export

    # For the consumer's thread.

    def hold(self, sender: int) -> None:
        """Keep back the exports of a sender until `put_back`: one of them is not finished."""
        with self._sorting:
            self._exports.hold(sender)

    def charge(self, sender: int, cost_s: float) -> None:
        """Charge the CPU time of an export to its sender."""
        with self._sorting:
            self._exports.charge(sender, cost_s)

    def is_heavy(self, sender: int) -> bool:
        """Return whether a sender has used much CPU time while there are others."""
        with self._sorting:
            return self._exports.is_heavy(sender)

    def complete_ns(self, now_ns: int) -> int:
        """Return up to which instant (unix ns) timers may run: the oldest receipt time that waits, or `now_ns`."""
        self._sort()
        with self._sorting:
            return min(
                (
                    max(export.receipt_ns, now_ns - HEAVY_WAIT_NS if self._exports.is_heavy(sender) else 0)
                    for sender, export in self._exports.first()
                ),
                default=now_ns,
            )

    def empty(self) -> bool:
        """Return whether no item waits."""
        self._sort()
        return not self._functions and not self._exports

    def qsize(self) -> int:
        """Return how many exports of this process wait; a source counts its own."""
        return self._local_exports

    def oldest_ns(self) -> int | None:
        """Return the receipt time (unix ns) of the oldest export of this process; None if none waits."""
        with self._sorting:
            waiting = [*self._exports.waiting(), *tuple(self._items)]
        return min((item.receipt_ns for item in waiting if isinstance(item, LocalExport)), default=None)

    def close(self) -> None:
        """Close the descriptors; call it when the consumer has ended."""
        with self._putting:
            if not self._closed:
                self._closed = True
                os.close(self._wake)
                os.close(self._waker)

    def _wake_up(self) -> None:
        if not self._closed:
            with suppress(BlockingIOError):  # the pipe is full: a wake-up is under way
                os.write(self._waker, b"\0")

    def _sort(self) -> None:
        """Sort new items into the queues; exports of this process and of sources alternate."""
        with self._sorting:
            while self._returned:
                sender, export = self._returned.popleft()
                if export is None:
                    self._exports.release(sender)
                else:
                    self._exports.put_back(sender, export)
            remote = self._read()
            while self._items or remote:
                if self._items:
                    item = self._items.popleft()
                    if isinstance(item, Export):
                        self._exports.put(item.sender, item)
                    else:
                        self._functions.append(item)
                if remote:
                    export = remote.popleft()
                    self._exports.put(export.sender, export)

    def _read(self) -> deque[Export]:
        found: deque[Export] = deque()
        for fd, source in list(self._sources.items()):
            found.extend(source.read())
            if source.gone:
                del self._sources[fd]
                self._poll.unregister(fd)
        return found
