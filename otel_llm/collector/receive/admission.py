"""Admission control of the HTTP receiver: bytes of bodies in memory, exports in progress or waiting."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from otel_llm.collector.receive.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from otel_llm.collector.settings import Limits

T = TypeVar("T")


class Admission:
    """The limits of one receiver; use it in the receiver's event loop only."""

    def __init__(self, limits: Limits) -> None:
        self._most_bytes = limits.receiving_bytes
        self._most_exports = limits.concurrent_exports + limits.queued_exports
        self._threads = ThreadPoolExecutor(limits.concurrent_exports, thread_name_prefix="otlp-http")
        self._exports = 0
        self.held_bytes = 0
        """The bodies of all unanswered requests."""

    @contextmanager
    def receiving(self) -> Iterator[BodyMemory]:
        """Give the account of one request's body, until the end of the block."""
        room = BodyMemory(self)
        try:
            yield room
        finally:
            self.held_bytes -= room.taken

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run `work` in a thread and return its result.

        Raises:
            BusyError: too many exports wait for a thread.
        """
        if self._exports >= self._most_exports:
            raise BusyError("too many exports at once")
        self._exports += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        finally:
            self._exports -= 1

    def hold(self, count: int) -> None:
        """Count bytes.

        Raises:
            BusyError: there are too many.
        """
        if self.held_bytes + count > self._most_bytes:
            raise BusyError("too much is being received")
        self.held_bytes += count


class BodyMemory:
    """The memory that one body takes."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.taken = 0

    def take(self, count: int) -> None:
        """Take room for more bytes.

        Raises:
            BusyError: there is none.
        """
        self._admission.hold(count)
        self.taken += count
