"""Threads that work for receivers side by side, so that one that hangs takes only its own."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONE_RECEIVER: Final = 16
"""Items that are worked on at one time for one receiver; further ones wait."""
AT_ONCE: Final = 64
"""Items that are worked on at one time for all; beyond it each receiver has one."""
MOST_IDLE: Final = 16
"""Threads that wait for work at most."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Lanes:
    """Items in one queue a receiver, first in first out; the receivers take turns: `start`, `put`, `stop`.

    `work(receiver, item)` is called in a thread; it may wait, and raises nothing. A receiver that nothing is worked on
    for gets a thread at once, however many others hang: their number is that of the settings.
    """

    work: Callable[[str, str], None]
    _waiting: OrderedDict[str, deque[str]] = field(default_factory=OrderedDict)
    _running: Counter[str] = field(default_factory=Counter)
    _idle: int = 0
    _stopped: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self) -> None:
        """Start to work on the items that wait, and on later ones."""
        self._spawn()

    def put(self, receiver: str, item: str) -> None:
        """Queue an item without waiting: a thread of the lanes starts the next thread, not this call."""
        with self._changed:
            self._waiting.setdefault(receiver, deque()).append(item)
            self._changed.notify()

    def stop(self) -> None:
        """End the threads once nothing waits for them."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _spawn(self) -> None:
        threading.Thread(target=self._run, name="otel-llm-act", daemon=True).start()

    def _run(self) -> None:
        while (found := self._take()) is not None:
            receiver, item = found
            try:
                self.work(receiver, item)
            finally:
                leaving = self._done(receiver)
            if leaving:
                return

    def _take(self) -> tuple[str, str] | None:
        """Return the next receiver and item, None to stop; see to it that another thread waits for the one after."""
        with self._changed:
            self._idle += 1
            while (found := self._next()) is None and not self._stopped:
                self._changed.wait()
            self._idle -= 1
            alone = self._idle == 0
        if found is not None and alone:
            try:
                self._spawn()
            except RuntimeError as problem:  # no thread can be started: this one takes the next item, later
                log.warning("otel-llm: actions wait: %s", problem)
        return found

    def _next(self) -> tuple[str, str] | None:
        crowded = self._running.total() >= AT_ONCE
        for receiver, items in self._waiting.items():
            running = self._running[receiver]
            if running == 0 or (running < AT_ONE_RECEIVER and not crowded):
                item = items.popleft()
                if items:
                    self._waiting.move_to_end(receiver)
                else:
                    del self._waiting[receiver]
                self._running[receiver] += 1
                return receiver, item
        return None

    def _done(self, receiver: str) -> bool:
        """Free the slot; return whether the thread is one too many."""
        with self._changed:
            self._running[receiver] -= 1
            if not self._running[receiver]:
                del self._running[receiver]
            self._changed.notify()
            return self._idle >= MOST_IDLE
