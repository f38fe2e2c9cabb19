"""The viewers of the live page: a bounded mailbox each, in the event loop of the web port."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from otel_llm.live.selection import Selection

MOST_UNSENT: Final = 4
"""Messages that wait for a viewer; one that leaves more unread is dropped."""


class Viewer:
    """One viewer: the feed's thread offers messages, the handler of its request sends them.

    Create it in the event loop of the handler. It is closed once: by the feed, by the handler, or since the viewer
    reads too slowly (`overrun`). Messages are shared between viewers, and never copied.
    """

    def __init__(
        self, selection: Selection, joined_ns: int, most_unsent: int = MOST_UNSENT, *, owner: str | None = None
    ) -> None:
        self.selection = selection
        self.owner = owner
        self.joined_ns = joined_ns
        self.greeted = False
        """Whether it has been offered the history; only the feed's thread reads and writes it."""
        self.closed = False
        self.overrun = False
        self._loop = asyncio.get_running_loop()
        self._most = most_unsent
        self._unsent: asyncio.Queue[bytes | None] = asyncio.Queue()

    def offer(self, message: bytes) -> None:
        """Queue a message; safe from any thread."""
        self._soon(message)

    def close(self) -> None:
        """End the viewer's messages; those that wait are dropped. Safe from any thread."""
        self._soon(None)

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield the messages, until the viewer is closed."""
        while not self.closed:
            message = await self._unsent.get()
            if message is None:
                return
            yield message

    def _soon(self, message: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop is closed, and the handler with it
            self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: bytes | None) -> None:
        if self.closed:
            return
        if message is not None and self._unsent.qsize() < self._most:
            self._unsent.put_nowait(message)
            return
        self.overrun = message is not None
        self.closed = True
        self._unsent.put_nowait(None)
