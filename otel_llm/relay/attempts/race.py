"""The destinations of one move or resumption, asked in turn until one has text that the reader does not have."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.relay.answers import NO_BACKEND
from otel_llm.relay.attempts.run import close_late
from otel_llm.relay.backends.upstream import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.relay.attempts.run import Run
    from otel_llm.relay.splice.reply import Reply

MOST_REQUESTED: Final = 2
"""Destinations that prefill at one time for one stream."""
SLOW: Final = "slow"
SILENT: Final = "silent"


def _nothing() -> None:
    """Do nothing."""


class Candidates(Protocol):
    """The backends that may go on with a reply."""

    @property
    def gives_up(self) -> bool:
        """Tell whether no other backend is asked in turn."""

    async def destination(self, name: str, reply: Reply) -> Run:
        """Return a backend's stream once it has something for the reader; raises UpstreamError."""

    def start_s(self, name: str, reply: Reply) -> float:
        """Return how long a backend may take to its first token before another is asked (s)."""

    def failed(self, name: str, reason: str) -> None:
        """Note that a backend did not go on."""


class Race:
    """One walk through ranked destinations.

    One that fails gives way to the next at once. One without a first token within its start limit gives way too, if
    there is another; while the reader has no text left it goes on beside the next, two at most. `is_dry` tells whether
    the reader has no text left. Without it only one that answers with a failure gives way: a slow one is waited for,
    and after one that stays silent no other one is asked: the fleet may be overloaded. `on_request` is called for each.
    `late` is called if the last destination has no first token within `patience` start limits, and goes on.
    """

    def __init__(
        self,
        connector: Candidates,
        reply: Reply,
        names: Sequence[str],
        is_dry: Callable[[], bool] | None,
        *,
        on_request: Callable[[], None] = _nothing,
        late: Callable[[], None] | None = None,
        patience: int = 1,
    ) -> None:
        self.to = names[0] if names else ""
        """The destination that was asked last, or has won."""
        self.failures: list[tuple[str, str]] = []
        """The destinations that failed, and their reasons."""
        self._connector = connector
        self._reply = reply
        self._waiting = deque(names)
        self._is_dry = is_dry
        self._on_request = on_request
        self._late = late
        self._patience = patience
        self._asked: dict[asyncio.Task[Run], str] = {}
        self._until_s = 0.0
        """The end of the start limit of the destination that was asked last."""

    async def run(self) -> Run:
        """Return the first destination that goes on; the others are closed.

        Raises:
            UpstreamError: none does; the reasons are in `failures`.
        """
        try:
            while self._asked or self._waiting:
                if not self._asked:
                    self._request_next()
                won = await self._step()
                if won is not None:
                    return won
        finally:
            for task in list(self._asked):
                self._leave(task)
        raise UpstreamError(self.failures[-1][1] if self.failures else NO_BACKEND)

    async def _step(self) -> Run | None:
        """Wait for an answer, or for the end of the start limit; return the destination that has won."""
        limited = self._is_dry is not None and (self._waiting or self._late is not None)
        limit_s = max(0.0, self._until_s - _now_s()) if limited else None
        done, _ = await asyncio.wait(self._asked, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        newest = next(reversed(self._asked))
        for task in done:
            try:
                won = task.result()
            except UpstreamError as problem:
                name = self._asked.pop(task)
                self.failures.append((name, problem.reason))
                if self._is_dry is None and problem.reason == SILENT:
                    self._waiting.clear()
                self._connector.failed(name, problem.reason)
            else:
                self.to = self._asked.pop(task)
                return won
        if self._connector.gives_up:
            self._waiting.clear()
        if self._waiting and (newest in done or not done):
            if not done:
                self._make_room(newest)
            self._request_next()
        elif not done and self._late is not None:
            late, self._late = self._late, None
            late()
        return None

    def _make_room(self, newest: asyncio.Task[Run]) -> None:
        if self._is_dry is not None and not self._is_dry():
            self.failures.append((self._asked[newest], SLOW))
            self._leave(newest)
        elif len(self._asked) >= MOST_REQUESTED:
            oldest = next(iter(self._asked))
            self.failures.append((self._asked[oldest], SLOW))
            self._leave(oldest)

    def _request_next(self) -> None:
        self.to = self._waiting.popleft()
        self._on_request()
        task = asyncio.get_running_loop().create_task(self._connector.destination(self.to, self._reply))
        self._asked[task] = self.to
        limits = 1 if self._waiting else self._patience
        self._until_s = _now_s() + limits * self._connector.start_s(self.to, self._reply)

    def _leave(self, task: asyncio.Task[Run]) -> None:
        """Leave a destination, which may have answered in this very instant."""
        del self._asked[task]
        task.cancel()
        task.add_done_callback(close_late)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
