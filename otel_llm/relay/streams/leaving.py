"""Move a stream off its backend without a rule: it is drained, or has been silent for too long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_llm.shared.backoff import Backoff
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.relay.attempts.connector import Connector
    from otel_llm.relay.attempts.run import Run
    from otel_llm.relay.deciding.own_actions import Complete
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.splice.reply import Reply

IDLE: Final = "idle"


class Leaver(Protocol):
    """A stream that can be moved."""

    recorded: Recorded
    reply: Reply

    @property
    def run(self) -> Run | None:
        """Return the answer of the backend that serves it, or served it last."""

    def migrate(self, to: str, why: Mapping[str, str], complete: Complete, *, decisive: bool = False) -> None:
        """Begin to move it to another backend by a placement policy; `complete` gets the outcome, once."""


class Leaving:
    """The attempts of one stream to leave its backend, each for one reason, until one is done or there is no need."""

    def __init__(self, session: Leaver, connector: Connector) -> None:
        self._session = session
        self._connector = connector
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.TimerHandle | None = None

    def begin(self, reason: str, still: Callable[[], bool]) -> None:
        """Attempt to leave the backend while it is `still` to be left."""
        if reason not in self._tasks:
            self._tasks[reason] = asyncio.get_running_loop().create_task(self._attempt(reason, still))

    def watch(self, run: Run) -> None:
        """Leave a backend that is silent for too long behind the first token."""
        self._stop_watch()
        if self._connector.idle_s:
            self._watch_for(run, self._connector.idle_s)

    def close(self) -> None:
        """Attempt nothing more."""
        self._stop_watch()
        for task in self._tasks.values():
            task.cancel()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _watch_for(self, run: Run, delay_s: float) -> None:
        self._watch = asyncio.get_running_loop().call_later(delay_s, self._evaluate, run)

    def _evaluate(self, run: Run) -> None:
        """Check whether a backend is silent; its bytes may wait for a client that reads slowly."""
        self._watch = None
        if self._session.run is not run or run.closed:
            return
        heard_ns = run.read_ns
        left_s = self._connector.idle_s - (monotonic_ns() - heard_ns) / 1e9
        if left_s <= 0 and not run.unread and self._session.reply.begun:
            self.begin(IDLE, lambda: self._session.run is run and run.read_ns == heard_ns and not run.unread)
        self._watch_for(run, left_s if left_s > 0 else self._connector.idle_s)

    async def _attempt(self, reason: str, still: Callable[[], bool]) -> None:
        session, backoff = self._session, Backoff(self._session.recorded.key[1])
        try:
            while still() and not session.reply.over:
                if not await self._moved(reason):
                    await asyncio.sleep(backoff.next_s())
        finally:
            del self._tasks[reason]

    async def _moved(self, reason: str) -> bool:
        """Attempt one move; return whether it was done."""
        completed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def complete(outcome: str, _detail: str, _facts: Mapping[str, Any]) -> None:
            if not completed.done():
                completed.set_result(outcome)

        self._session.migrate(self._connector.policy, {"reason": reason}, complete, decisive=reason != IDLE)
        return await completed == "done"
