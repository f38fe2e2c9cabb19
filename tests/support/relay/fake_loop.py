"""An event loop in which time passes only while nothing is left to do, and then at once."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

from otel_llm.shared.clock import FakeClock

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Let the clock pass instead of waiting, unless something runs in a thread."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.in_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self.in_threads:
            return super().select(timeout if timeout is None or timeout <= 0 else None)
        found = super().select(0)
        if not found:
            self.clock.at_ns += max(1, round(timeout * 1e9))
        return found


class FakeLoop(asyncio.SelectorEventLoop):
    """See the module; its time is that of the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self.jumping = _Jumping(clock)
        self._began_ns = clock.at_ns
        super().__init__(self.jumping)

    def time(self) -> float:
        return (self.jumping.clock.at_ns - self._began_ns) / 1e9

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        self.jumping.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._is_back)
        return future

    def _is_back(self, _future: object) -> None:
        self.jumping.in_threads -= 1


def run(clock: FakeClock, main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in such a loop."""
    loop = FakeLoop(clock)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
