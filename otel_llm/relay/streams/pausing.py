"""The pauses of one stream: its backend is left while its reader has text, and resumed before that is read."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from otel_llm.relay.attempts.breaks import is_of_stream
from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.relay.streams.lifecycle import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.relay.attempts.connector import Connector
    from otel_llm.relay.attempts.run import Run
    from otel_llm.relay.deciding.own_actions import Complete
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.splice.reply import Reply
    from otel_llm.relay.streams.client import Client
    from otel_llm.relay.streams.lifecycle import Lifecycle
    from otel_llm.relay.streams.pauses import Pause, Pauses

PAUSED: Final = "paused"
"""The comment that the client of a paused stream gets, and the reason for the cut if the stream cannot resume."""
ASKED: Final = "the stream is being paused already"
NO_SPARE: Final = "its reader has no text to spare"
NOT_SERVED: Final = "no backend serves the stream now"


class Pausing:
    """The pauses of one stream. `begin` and `reason` are called while a backend serves it.

    `life` is the stream's; `wake` ends the wait of the task that reads the backend.
    """

    def __init__(
        self,
        recorded: Recorded,
        reply: Reply,
        connector: Connector,
        client: Client,
        pauses: Pauses,
        life: Lifecycle,
        wake: Callable[[], None],
    ) -> None:
        self._recorded = recorded
        self._reply = reply
        self._connector = connector
        self._client = client
        self._pauses = pauses
        self._life = life
        self._wake = wake
        self._pause: Pause | None = None
        self._asking: asyncio.Task[None] | None = None
        """The check whether the stream could resume after a pause."""
        self._begun_s: float | None = None
        """The last pause (s of the loop's clock)."""
        self._resuming: tuple[Run, str] | None = None
        """The resuming backend and the reason, until the client has its text."""

    @property
    def paused(self) -> bool:
        """Tell whether the stream is paused."""
        return self._pause is not None

    def reason(self, run: Run) -> str | None:
        """Return why a stream that `run` serves cannot be paused now; None if it can."""
        settings = self._connector.preempt
        if self._asking is not None:
            return ASKED
        if self._resuming is not None:
            return "the stream goes on behind a pause just now"
        if self._begun_s is not None and _now_s() - self._begun_s < settings.again_s:
            return f"the stream was paused within {settings.again_s:g} s"
        if not self._has_spare:
            return NO_SPARE
        return self._connector.pause_reason(run.backend, self._reply)

    @property
    def _has_spare(self) -> bool:
        """Tell whether the reader has enough text for a pause."""
        settings, runway_s = self._connector.preempt, self._recorded.runway_s
        return runway_s is not None and runway_s > settings.resume_runway_s + settings.spare_s

    def begin(self, run: Run, rule: str, complete: Complete, may_begin: Callable[[], bool]) -> None:
        """Pause a stream that has no `reason` against it; `complete` gets the outcome, once.

        If the reader's ids do not follow, the backend is asked first, and the reply stays as it is meanwhile, see
        `asked`. Then `may_begin` tells whether the stream is still to be paused.
        """
        if self._reply.carried is not None:
            self._begin(run, rule, complete)
            return

        def over(task: asyncio.Task[None]) -> None:
            self._asking = None
            if task.cancelled():
                complete("failed", "the stream is over", {})

        self._asking = asyncio.get_running_loop().create_task(self._ask(run, rule, complete, may_begin))
        self._asking.add_done_callback(over)

    async def asked(self) -> None:
        """Wait for the backend's answer, if it is asked: until then the reply does not change."""
        if self._asking is not None:
            await asyncio.wait({self._asking})

    async def _ask(self, run: Run, rule: str, complete: Complete, may_begin: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(self._connector.preempt.ask_s):
                carried = await self._connector.carried(run.backend, self._reply)
        except TimeoutError:
            complete("failed", "silent", {})
            return
        except UpstreamError as problem:
            complete("failed", problem.reason, {})
            return
        if not may_begin():
            complete("failed", NOT_SERVED, {})
        elif not self._has_spare:
            complete("failed", NO_SPARE, {})
        elif (reason := self._connector.pause_reason(run.backend, self._reply, carried)) is not None:
            complete("failed", reason, {})
        elif self._pauses.full:
            complete("budget", self._pauses.refusal, {})
        else:
            self._begin(run, rule, complete)

    def _begin(self, run: Run, rule: str, complete: Complete) -> None:
        self._pause = self._pauses.begin(run.backend.name, lambda: self._recorded.runway_s)
        self._begun_s = _now_s()
        self._recorded.paused(run.backend.name, rule)
        self._life.on(Event.PAUSE)
        self._wake()
        complete("done", f"paused {self._recorded.key[0].hex()}/{self._recorded.key[1].hex()}", {})

    async def rest(self, run: Run) -> Run | None:
        """Keep the client's stream open until it is due; return the backend that resumes it, None if none can.

        `run` served it. If the stream is cut meanwhile, this is cancelled.
        """
        pause = self._pause
        assert pause is not None  # noqa: S101
        self._recorded.disconnected()
        try:
            while not await self._is_due(pause):
                await self._client.write(self._reply.comment(PAUSED))
            self._life.on(Event.DUE)
            found = await self._go_on(run)
        finally:
            self._pauses.end(pause)
            self._pause = None
        self._life.on(Event.NONE if found is None else Event.FOUND)
        if found is not None:
            self._resuming = (found, pause.reason)
        return found

    def resumed(self, gap_s: float) -> None:
        """Note that the client has text again, `gap_s` after the last, if it is the first after a pause."""
        if self._resuming is not None:
            found, reason = self._resuming
            self._resuming = None
            self._recorded.resumed(found.backend.name, found.upstream_response.carried or 0, gap_s, reason)

    def close(self) -> None:
        """Note that the stream has ended, possibly before its pause was waited for."""
        if self._asking is not None:
            self._asking.cancel()
        if self._pause is not None:
            self._pauses.end(self._pause)
            self._pause = None

    async def _is_due(self, pause: Pause) -> bool:
        """Wait until a pause is over, at most until the next comment; return whether it is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._connector.preempt.comment_s):
                await pause.due.wait()
        return pause.due.is_set()

    async def _go_on(self, run: Run) -> Run | None:
        """Return a backend that resumes the stream; if there is none, wait for one as for a silent backend."""
        until_s = _now_s() + self._connector.silent_s
        comment_s = _now_s() + self._connector.preempt.comment_s
        while True:
            found = await self._connector.resumed(self._reply, run.backend, back=True)
            if found is not None or _now_s() >= until_s or is_of_stream(self._connector.last_reason):
                return found
            if _now_s() >= comment_s:
                comment_s = _now_s() + self._connector.preempt.comment_s
                await self._client.write(self._reply.comment(PAUSED))
            await asyncio.sleep(self._connector.preempt.try_again_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
