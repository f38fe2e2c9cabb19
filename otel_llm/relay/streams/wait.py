"""A wait of one task that an event of another may end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class Wait:
    """The waits of one task, one at a time; `end` ends the one that is under way.

    What is awaited sees a cancellation, as behind `asyncio.timeout`, and must keep what it has received so far.
    """

    __slots__ = ("_ended", "_task")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._ended = False

    async def on(self, what: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a coroutine; None if `end` is called first."""
        task = self._task = asyncio.current_task()
        try:
            return await what
        except asyncio.CancelledError:
            if not self._ended or task is None or task.uncancel() > 0:  # somebody else cancels the task, too
                raise
            return None
        finally:
            self._task, self._ended = None, False

    def end(self) -> None:
        """End the wait under way, if there is one."""
        if self._task is not None and not self._ended and self._task is not asyncio.current_task():
            self._ended = True
            self._task.cancel()
