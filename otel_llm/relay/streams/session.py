"""One owned request: its client reads one reply, from one or several backends.

One coroutine reads the serving backend and writes to the client. The destination of a migration is read by a task
beside it until it has text that the client does not have; then it takes over between two reads, never within one. All
of it runs in one event loop, so code between two `await` is not interrupted. What an event means for the request is
in `lifecycle`: the coroutine does what the state says, and an event of another task wakes it from its wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from otel_llm.relay.answers import cut_unserved, unserved
from otel_llm.relay.attempts.breaks import break_of, is_break
from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.relay.splice.upstream_response import CUT as TORN
from otel_llm.relay.splice.upstream_response import DIFFERS
from otel_llm.relay.streams.client import Client
from otel_llm.relay.streams.leaving import Leaving
from otel_llm.relay.streams.lifecycle import Event, Lifecycle, State
from otel_llm.relay.streams.migration import MOVING, Migration
from otel_llm.relay.streams.passed_answer import PassedAnswer
from otel_llm.relay.streams.pausing import NOT_SERVED, PAUSED, Pausing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from aiohttp import web

    from otel_llm.relay.attempts.connector import Connector
    from otel_llm.relay.attempts.run import Run
    from otel_llm.relay.deciding.own_actions import Complete
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.splice.line import Line
    from otel_llm.relay.splice.reply import Reply
    from otel_llm.relay.streams.pauses import Pauses
    from otel_llm.relay.streams.queue_turn import QueueTurn

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


class Session:
    """One owned request. `serve` is called once; everything else is called from the loop while it runs."""

    def __init__(
        self,
        request: web.BaseRequest,
        recorded: Recorded,
        reply: Reply,
        connector: Connector,
        pauses: Pauses,
        turn: QueueTurn | None,
    ) -> None:
        self.recorded = recorded
        self.reply = reply
        self.served = ""
        """The backend that served last."""
        self.whole = False
        """Whether the client has the whole reply."""
        self._client = Client(request, recorded)
        self._connector = connector
        self._turn = turn
        self._life = Lifecycle(State.OPENING if turn is None else State.QUEUED)
        self._wait = Wait()
        """The wait of the coroutine that serves, which other tasks may end."""
        self._migration = Migration(recorded, reply, connector, self._life, self._wait.end)
        self._pausing = Pausing(recorded, reply, connector, self._client, pauses, self._life, self._wait.end)
        self._leaving = Leaving(self, connector)
        self._run: Run | None = None
        self._cut: tuple[str, str, str] | None = None
        """Why the client's reply ends here: kind, message and code of its error event."""
        self._written_ns = recorded.commit_ns
        """The instant of the last written text, or the commit."""
        self._reason: str | None = "not begun"
        self._noted = False
        self._stated: str | None = None
        """The message of the error by which the last backend broke off."""
        if turn is not None:
            turn.placed = lambda: self._life.on(Event.PLACED)

    # For the web port.

    @property
    def code(self) -> int:
        """Return the status that the client got; 499 if it left before it had one."""
        return self._client.code

    @property
    def instance(self) -> str:
        """Return the serving backend; "" if there is none."""
        return "" if self._run is None else self._run.backend.name

    @property
    def exact_reason(self) -> str | None:
        """Return why the stream cannot be resumed exactly on another backend; None if it can."""
        run = self._run
        if run is None:
            return "no backend serves it"
        return self._connector.exact_reason(run.backend, self.reply)

    @property
    def state(self) -> State:
        """Return what happens to it now."""
        return self._life.state

    @property
    def paused(self) -> bool:
        """Tell whether it is paused, and so has no backend."""
        return self._pausing.paused

    @property
    def run(self) -> Run | None:
        """Return the answer of the backend that serves it, or served it last."""
        return self._run

    @property
    def is_served(self) -> bool:
        """Tell whether a backend serves the reply, and has more to send."""
        return self._run is not None and not self._run.closed and not self.reply.over and self._life.takes(Event.BROKE)

    @property
    def pause_reason(self) -> str | None:
        """Return why the stream cannot be paused now; None if it can."""
        run = self._run
        if run is None or not self.is_served:
            return NOT_SERVED
        if not self._life.takes(Event.PAUSE):
            return MOVING
        return self._pausing.reason(run)

    def refresh(self) -> None:
        """Update whether exact resume is possible: a backend, or the reply, has changed."""
        reason = self.exact_reason
        if reason != self._reason:
            self._reason = reason
            self.recorded.exact_resume(reason is None)
            if reason is not None:
                self._migration.resume_became_inexact(reason)

    # Actions.

    def migrate(
        self,
        to: str,
        why: Mapping[str, str],
        complete: Complete,
        *,
        decisive: bool = False,
        hedge: bool = False,
    ) -> None:
        """Begin to move the stream to another backend by a placement policy; see `Migration.begin`."""
        run = self._run
        if run is None or not self.is_served:
            complete("failed", NOT_SERVED, {})
        elif not self._life.takes(Event.MOVE):
            complete("failed", MOVING, {})
        else:
            self._migration.begin(run, to, why, complete, decisive=decisive, hedge=hedge)

    def leave(self, reason: str, still: Callable[[], bool]) -> None:
        """Move the stream off its backend, without a rule: attempt it until it is done, or no longer to be done."""
        self._leaving.begin(reason, still)

    def pause(self, rule: str, complete: Complete) -> None:
        """Pause a stream without a `pause_reason`; `complete` gets the outcome, once."""
        run = self._run
        assert run is not None  # noqa: S101
        self._pausing.begin(
            run, rule, complete, lambda: self.is_served and self._life.takes(Event.PAUSE) and self._run is run
        )

    def cut(self, kind: str, message: str, code: str) -> bool:
        """End the request; return whether there was one to end.

        A backend's stream is closed, and the reply ends with an error event; one that is queued is answered at once.
        """
        queued = self._life.state is State.QUEUED
        if not self._life.takes(Event.STOP) or (self._run is None and not queued):
            return False
        self._cut = (kind, message, code)
        self._life.on(Event.STOP)
        if queued and self._turn is not None:
            self._turn.leave(code)
        self._migration.stop("failed", message)
        self._wait.end()
        return True

    # The reader's side.

    async def serve(self) -> web.StreamResponse:
        """Serve the request to its end; return the client's answer."""
        outcome, error = "cancelled", None
        try:
            outcome, error = await self._serve()
        except ConnectionError:  # the client's: a backend's are UpstreamError
            pass
        except Exception:
            outcome, error = "error", "internal_error"
            raise
        finally:
            if not self._life.over:
                self._life.on(Event.STOP)
            self._close()
            self.recorded.ended(outcome, error=error)
        return self._client.answer

    async def _serve(self) -> tuple[str, str | None]:
        run = await self._connector.first(self.reply, headers_sent=False)
        reason = self._connector.last_reason
        if not self._life.over:
            self._life.on(Event.NONE if run is None and not self._connector.has_answer else _begun(run))
        while run is not None and not self._life.over:
            reason = await self._follow(run)
            run, reason = await self._next(run, reason)
        if run is not None:  # it was found while the stream was cut
            run.close()
        return await self._end(reason)

    async def _next(self, run: Run, reason: str) -> tuple[Run | None, str]:
        """Return the backend that serves from now on, if there is one, and why an incomplete reply ended there."""
        state = self._life.state
        if state is State.WHOLE:
            return None, reason
        run.close()
        if self._migration.won:
            return self._migration.take_over(), reason
        if state is State.PAUSED:
            return await self._wait.on(self._pausing.rest(run)), PAUSED
        if state is State.RESUMING:
            return await self._mend(run, reason), reason
        return None, reason

    async def _end(self, reason: str) -> tuple[str, str | None]:
        """End the client's answer; return the outcome of the request and its error."""
        if self._cut is not None:
            if not self._client.begun:  # it waited for its first backend
                self._client.refuse(cut_unserved(*self._cut))
            else:
                await self._send_error(*self._cut)
            return "error", self._cut[2]
        if self._client.begun:
            if self._life.state is not State.WHOLE:
                await self._send_error("upstream_error", self._stated or f"the reply was cut: {reason}", reason)
                return "error", reason
            assert self._run is not None  # noqa: S101
            await self._client.end(self._run.response)
            if self.reply.refused is not None:
                return "error", self.reply.refused
            self.whole = True
            return "completed", None
        answer = self._connector.take_answer()
        if answer is None:
            self._client.refuse(unserved(reason))
            return "error", str(self._client.code)
        passed = PassedAnswer(answer, self.recorded)
        try:
            whole = await self._client.pass_on(answer.response, answer.begun, passed.seen)
        finally:
            answer.close()
        return await passed.outcome(whole=whole)

    async def _follow(self, run: Run) -> str:
        """Pass on a backend's stream until it ends or breaks, or is left; return the reason of a break."""
        if self._run is not run:
            self._run, self.served = run, run.backend.name
            self.recorded.serving(run.backend.name)
            self.recorded.connected()
        self.recorded.served_by(run.backend.name, exact_resume=self.exact_reason is None)
        await self._client.begin(run.response)
        self.refresh()
        self._leaving.watch(run)
        found, run.held = run.held, []
        while True:
            broken = await self._pass_on(run, found)
            if self._is_left:
                return ""
            if broken is None and run.over and not self.reply.over:
                broken = "unfinished"
            if broken is not None:
                self._life.on(Event.BROKE)
                return broken
            if run.over:
                return await self._is_whole(run, orderly=True)
            try:
                lines = await self._wait.on(self._read(run))
            except UpstreamError as problem:
                if not self.reply.over:
                    self._life.on(Event.BROKE)
                    return problem.reason
                return await self._is_whole(run, orderly=False)
            await self._pausing.asked()
            if self._is_left:  # what was read last is sent again by who goes on
                return ""
            if lines is not None and not run.over:
                self.recorded.heard(run.read_ns, run.read_ns - run.arrived_ns)
            found = [(run.read_ns, line) for line in lines or ()]

    @property
    def _is_left(self) -> bool:
        """Tell whether the backend that is read serves the reply no further, as an event of another task says."""
        return self._migration.won or not self._life.takes(Event.BROKE)

    async def _read(self, run: Run) -> list[Line]:
        """Return the next lines; none while a decisive move is under way, which does not read the source."""
        if self._migration.holds:
            await self._migration.over()
            return []
        return await run.read(self._connector.silent_s)

    async def _pass_on(self, run: Run, found: list[tuple[int, Line]]) -> str | None:
        """Write lines to the client; return why they show that the backend serves it no further."""
        out: list[bytes] = []
        broken, text = None, False
        for at_ns, line in found:
            broken = self._break_in(line)
            if broken is not None:
                break
            self._take(run, line, at_ns, out)
            text = text or bool(line.text)
        if out:
            await self._write(run, b"".join(out), text=text)
        return broken

    async def _is_whole(self, run: Run, *, orderly: bool) -> str:
        """Write what a reply that is over lacks, and end it."""
        if rest := self.reply.rest(orderly=orderly):
            await self._client.write(rest)
        if self._life.takes(Event.END):  # it was not cut meanwhile
            self._life.on(Event.END)
        self._connector.worked(run.backend)
        return ""

    def _break_in(self, line: Line) -> str | None:
        """Return why a line is not passed on: it is a break, whatever the status was."""
        if line.trouble == DIFFERS:  # to resume it again would not make it right
            self.reply.cannot_resume(DIFFERS)
            return DIFFERS
        if self.reply.over or (line.error is not None and line.error.clients):
            return None
        if is_break(line) or line.trouble == TORN:
            self._stated = None if line.error is None else line.error.message
            return break_of(line)
        return None

    def _take(self, run: Run, line: Line, at_ns: int, out: list[bytes]) -> None:
        """Make a line part of the reply."""
        if line.ids or line.texts or line.ends is not None or line.finish is not None or line.error is not None:
            self._migration.source_went_on()
        before = self.reply.reason, self.reply.channel_reason
        data = self.reply.take(run.upstream_response, line)
        if data:
            out.append(data)
        for index, count, kind, choice in line.tokens:
            self.recorded.tokens(at_ns, index, count, kind, choice.text, choice.stated)
            run.grow(count)
        for choice in line.texts:
            run.grow(self.recorded.text(at_ns, choice.index, choice.stated))
        chunk = line.chunk
        if (
            chunk is not None
            and self.reply.refused is None
            and (not self._noted or line.finish is not None or chunk.usage is not None or chunk.prompt_ids is not None)
        ):
            self._noted = True
            self.recorded.noted(chunk, at_ns, continues=run.upstream_response.carried is not None)
        if (self.reply.reason, self.reply.channel_reason) != before:
            self.refresh()

    async def _write(self, run: Run, data: bytes, *, text: bool) -> None:
        now_ns = await self._client.write(data)
        self._connector.added((now_ns - run.arrived_ns) / 1e9)
        if text or self.reply.over:
            gap_s = (now_ns - self._written_ns) / 1e9
            self._written_ns = now_ns
            if self._run is run and not self._migration.won and self._life.takes(Event.TEXT):
                self._life.on(Event.TEXT)
                self._migration.moved(gap_s)
                self._pausing.resumed(gap_s)

    async def _send_error(self, kind: str, message: str, code: str) -> None:
        """End an incomplete reply."""
        await self._client.cut(self.reply.error_event(message, kind, code))

    def _close(self) -> None:
        self._leaving.close()
        self._migration.close()
        self._pausing.close()
        if self._run is not None:
            self._run.close()
            self._run = None
        self._connector.drop_answer()

    # Other backends.

    async def _mend(self, run: Run, reason: str) -> Run | None:
        """Continue after a break; None if that cannot be done."""
        self.recorded.disconnected()
        self._connector.broke(run.backend, reason, spoke=run.has_token)
        await self._wait.on(self._migration.over())
        if self._migration.won and not self._life.over:
            return self._migration.take_over()
        found = None if self._life.over else await self._wait.on(self._another(run))
        if self._life.over:
            return found
        self._life.on(Event.NONE if found is None else Event.FOUND)
        if found is not None:
            self._stated = None
            self._migration.failed_over(run.backend.name, found, reason)
        return found

    async def _another(self, broken: Run) -> Run | None:
        """Return a backend that continues the reply; None if there is none."""
        if not self.reply.begun:
            return await self._connector.first(self.reply, headers_sent=self._client.begun)
        if not self._connector.resumes or self._connector.exact_reason(broken.backend, self.reply) is not None:
            return None
        return await self._connector.resumed(self.reply, broken.backend)


def _begun(run: Run | None) -> Event:
    return Event.ANSWERED if run is None else Event.OPENED
