"""How much the HTTP door has in hand at once: bytes of bodies, and exports being accepted or waiting for it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from otel_llm.collector.receive.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.collector.config.settings import Limits

T = TypeVar("T")


class Admission:
    """Count; all of it in the door's event loop."""

    def __init__(self, limits: Limits) -> None:
        self._most_bytes = limits.receiving_bytes
        self._most_exports = limits.concurrent_exports + limits.queued_exports
        self._threads = ThreadPoolExecutor(limits.concurrent_exports, thread_name_prefix="otlp-http")
        self._exports = 0
        self.held_bytes = 0
        """Of the bodies of all requests that are not answered."""

    @contextmanager
    def receiving(self) -> Iterator[Room]:
        """Return what counts the body of one request, until the end of the block."""
        room = Room(self)
        try:
            yield room
        finally:
            self.held_bytes -= room.taken

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return what `work` returns, in a thread; raises BusyError where too many wait for one."""
        if self._exports >= self._most_exports:
            raise BusyError("too many exports at once")
        self._exports += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        finally:
            self._exports -= 1

    def hold(self, count: int) -> None:
        """Count bytes; raises BusyError where there are too many."""
        if self.held_bytes + count > self._most_bytes:
            raise BusyError("too much is being received")
        self.held_bytes += count


class Room:
    """What one body takes."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.taken = 0

    def take(self, count: int) -> None:
        """Take room for more bytes; raises BusyError where there is none."""
        self._admission.hold(count)
        self.taken += count
