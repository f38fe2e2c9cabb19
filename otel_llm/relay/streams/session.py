"""The life of one owned request: its client reads one reply, from one or several backends.

One coroutine reads the serving backend and writes to the client. The destination of a migration is read by a task
beside it until it has text that the client does not have; then it takes over between two reads, never within one. All
of it runs in one event loop, so code between two `await` is not interrupted.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.answers import cut_unserved, unserved
from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.relay.seam.leg import CUT as TORN
from otel_llm.relay.seam.leg import DIFFERS
from otel_llm.relay.streams.client import Client
from otel_llm.relay.streams.moving import MOVING, Moving
from otel_llm.relay.streams.opening import break_of
from otel_llm.relay.streams.pausing import NOT_SERVED, PAUSED, Pausing

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from aiohttp import web

    from otel_llm.relay.deciding.own_actions import Settle
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.seam.piece import Piece
    from otel_llm.relay.seam.reply import Reply
    from otel_llm.relay.streams.opening import Opening
    from otel_llm.relay.streams.pauses import Pauses
    from otel_llm.relay.streams.queue_turn import QueueTurn
    from otel_llm.relay.streams.run import Run


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a backend's stream is followed no further: `whole`, `taken`, `cut` by us, or a break with its reason."""

    kind: str
    reason: str = ""


WHOLE: Final = Ending("whole")
TAKEN: Final = Ending("taken")
CUT: Final = Ending("cut")


class Session:
    """One owned request. `serve` is called once; everything else is called from the loop while it runs."""

    def __init__(
        self,
        request: web.BaseRequest,
        recorded: Recorded,
        reply: Reply,
        opening: Opening,
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
        self._opening = opening
        self._turn = turn
        self._moving = Moving(recorded, reply, opening)
        self._pausing = Pausing(recorded, reply, opening, self._client, pauses)
        self._run: Run | None = None
        self._cut: tuple[str, str, str] | None = None
        """Why the client's reply ends here: kind, message and code of its error event."""
        self._search: asyncio.Task[Run | None] | None = None
        """The search for a backend that continues."""
        self._written_ns = recorded.commit_ns
        """The instant of the last written text, or the commit."""
        self._reason: str | None = "not begun"
        self._noted = False

    # For the web port.

    @property
    def code(self) -> int:
        """Return the status that the client got; 499 where it left before it had one."""
        return self._client.code

    @property
    def instance(self) -> str:
        """Return the serving backend; "" where there is none."""
        return "" if self._run is None else self._run.backend.name

    @property
    def exact_reason(self) -> str | None:
        """Return why the stream cannot be resumed exactly on another backend; None where it can."""
        run = self._run
        if run is None:
            return "no backend serves it"
        return self._opening.exact_reason(run.backend, self.reply)

    @property
    def paused(self) -> bool:
        """Tell whether it is paused, and so has no backend."""
        return self._pausing.paused

    @property
    def queued(self) -> bool:
        """Tell whether it waits for a place on a backend."""
        return self._turn is not None and self._turn.waits

    @property
    def searching(self) -> bool:
        """Tell whether a backend is waited for that goes on: behind a break, or while the stream is paused."""
        return self._search is not None

    @property
    def pause_reason(self) -> str | None:
        """Return why the stream cannot be paused now; None where it can."""
        run = self._run
        if run is None or not self._is_served:
            return NOT_SERVED
        if self._moving.busy:
            return MOVING
        return self._pausing.reason(run)

    @property
    def _is_served(self) -> bool:
        """Tell whether a backend serves the reply, and has more to send."""
        return self._run is not None and not self._run.closed and self.reply.finish is None

    def refresh(self) -> None:
        """Update whether exact resume is possible: a backend, or the reply, has changed."""
        reason = self.exact_reason
        if reason != self._reason:
            self._reason = reason
            self.recorded.exact_resume(reason is None)
            if reason is not None:
                self._moving.resume_became_inexact(reason)

    # Actions.

    def migrate(self, to: str, why: Mapping[str, str], settle: Settle) -> None:
        """Begin to move the stream to another backend by a placement policy; `settle` gets the outcome, once."""
        run = self._run
        if run is None or not self._is_served:
            settle("failed", NOT_SERVED, {})
            return
        if self._moving.busy:
            settle("failed", MOVING, {})
            return
        self._moving.begin(run, to, why, settle)

    def pause(self, rule: str, settle: Settle) -> None:
        """Pause a stream without a `pause_reason`; `settle` gets the outcome, once."""
        run = self._run
        assert run is not None  # noqa: S101
        self._pausing.begin(run, rule, settle, lambda: self._is_served and not self._moving.busy and self._run is run)

    def cut(self, kind: str, message: str, code: str) -> bool:
        """End the request; return whether there was one to end.

        A backend's stream is closed, and the reply ends with an error event; one that is queued is answered at once.
        """
        if self._cut is not None or (self._run is None and not self.queued):
            return False
        self._cut = (kind, message, code)
        if self._run is None:
            if self._turn is not None:
                self._turn.leave(code)
            return True
        self._moving.stop("failed", message)
        if self._search is not None:
            self._search.cancel()
        self._run.close()
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
            self._close()
            self.recorded.ended(outcome, error=error)
        return self._client.answer

    async def _serve(self) -> tuple[str, str | None]:
        run = await self._send_again()
        reason = self._opening.last_reason
        while run is not None and self._cut is None:
            ending = await self._follow(run)
            if ending is WHOLE:
                self._opening.worked(run.backend)
                await self._client.end()
                self.whole = True
                return "completed", None
            run.close()
            reason = ending.reason
            if self._cut is None:
                if ending is TAKEN:
                    run = self._moving.take_over()
                elif self._pausing.paused:
                    reason, run = PAUSED, await self._found(self._pausing.rest(run))
                else:
                    run = await self._mend(run, reason)
        if self._cut is not None:
            if run is not None:  # it was found while the stream was cut
                run.close()
            if not self._client.begun:  # it waited for its first backend
                self._client.refuse(cut_unserved(*self._cut))
                return "error", self._cut[2]
            await self._send_error(*self._cut)
            return "error", self._cut[2]
        if self._client.begun:
            await self._send_error("upstream_error", f"the reply was cut: {reason}", reason)
            return "error", reason
        answer = self._opening.take_answer()
        if answer is None:
            self._client.refuse(unserved(reason))
        else:
            try:
                await self._client.pass_on(answer.response)
            finally:
                answer.close()
        return "error", str(self._client.code)

    async def _follow(self, run: Run) -> Ending:
        """Pass on a backend's stream until it ends, breaks, or another takes over."""
        if self._run is not run:
            self._run, self.served = run, run.backend.name
            self.recorded.serving(run.backend.name)
            self.recorded.connected()
        self.recorded.served_by(run.backend.name, exact_resume=self.exact_reason is None)
        await self._client.begin(run.response)
        self.refresh()
        found, run.held = run.held, []
        while True:
            out: list[bytes] = []
            ending, text = None, False
            for at_ns, piece in found:
                ending = self._look(piece)
                if ending is not None:
                    break
                self._take(run, piece, at_ns, out)
                text = text or bool(piece.text)
            if out:
                await self._write(run, b"".join(out), text=text)
            if ending is None and run.over:
                ending = WHOLE if self.reply.finish is not None else Ending("broken", "unfinished")
            if ending is not None:
                return ending
            try:
                pieces = await run.read(self._opening.silent_s)
            except UpstreamError as problem:
                if self._moving.won:
                    return TAKEN
                if self._cut is not None or self._pausing.paused:
                    return CUT
                if self.reply.finish is None:
                    return Ending("broken", problem.reason)
                if end := self.reply.separator():  # the finish is whole, and its event should be
                    await self._write(run, end, text=False)
                return WHOLE
            await self._pausing.asked()
            if self._moving.won:
                return TAKEN
            if self._cut is not None or self._pausing.paused:
                return CUT
            if not run.over:
                self.recorded.heard(run.read_ns)
            found = [(run.read_ns, piece) for piece in pieces]

    def _look(self, piece: Piece) -> Ending | None:
        """Return why a piece is not passed on: it is a break, whatever the status was."""
        if piece.trouble == DIFFERS:  # to resume it again would not make it right
            self.reply.cannot_resume(DIFFERS)
            return Ending("broken", DIFFERS)
        if self.reply.finish is not None:
            return None
        if piece.error or piece.aborted or piece.done_without_finish or piece.trouble == TORN:
            return Ending("broken", break_of(piece))
        return None

    def _take(self, run: Run, piece: Piece, at_ns: int, out: list[bytes]) -> None:
        """Make a piece part of the reply."""
        if piece.ids or piece.texts or piece.finish is not None:
            self._moving.source_went_on()
        before = self.reply.reason
        data = self.reply.take(run.leg, piece)
        if data:
            out.append(data)
        for index, count, kind, choice in piece.tokens:
            self.recorded.tokens(at_ns, index, count, kind, choice.text, choice.stated)
            run.grow(count)
        for choice in piece.texts:
            run.grow(self.recorded.text(at_ns, choice.index, choice.stated))
        chunk = piece.chunk
        if chunk is not None and (
            not self._noted or piece.finish is not None or chunk.usage is not None or chunk.prompt_ids is not None
        ):
            self._noted = True
            self.recorded.noted(chunk, at_ns, continues=run.leg.carried is not None)
        if self.reply.reason != before:
            self.refresh()

    async def _write(self, run: Run, data: bytes, *, text: bool) -> None:
        now_ns = await self._client.write(data)
        self._opening.added((now_ns - run.read_ns) / 1e9)
        if text or self.reply.finish is not None:
            gap_s = (now_ns - self._written_ns) / 1e9
            self._moving.moved(gap_s)
            self._pausing.resumed(gap_s)
            self._written_ns = now_ns

    async def _send_error(self, kind: str, message: str, code: str) -> None:
        """End an incomplete reply."""
        await self._client.cut(self.reply.error_event(message, kind, code))

    def _close(self) -> None:
        self._moving.close()
        self._pausing.close()
        if self._run is not None:
            self._run.close()
            self._run = None
        self._opening.drop_answer()

    # Other backends.

    async def _send_again(self) -> Run | None:
        """Send the unchanged request to the next backend, and the next; None where no stream can be had."""
        return await self._opening.first(self.reply, headers_sent=self._client.begun)

    async def _mend(self, run: Run, reason: str) -> Run | None:
        """Continue after a break; None where that cannot be done."""
        self.recorded.disconnected()
        self._opening.broke(run.backend, reason)
        await self._moving.settled()
        if self._moving.won and self._cut is None:
            return self._moving.take_over()
        found = None if self._cut is not None else await self._found(self._another(run))
        if found is not None:
            self._moving.failed_over(run.backend.name, found, reason)
        return found

    async def _found(self, search: Coroutine[Any, Any, Run | None]) -> Run | None:
        """Return the backend that a search finds; None if it finds none, or the stream is cut meanwhile."""
        task = self._search = asyncio.get_running_loop().create_task(search)
        try:
            return await task
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and not task.exception() and (found := task.result()):
                found.close()  # it was found in the instant in which the client left
            own = asyncio.current_task()
            if self._cut is None or (own is not None and own.cancelling()):
                raise
            return None
        finally:
            self._search = None

    async def _another(self, broken: Run) -> Run | None:
        """Return a backend that continues the reply; None where there is none."""
        if not self.reply.begun:
            return await self._send_again()
        if not self._opening.resumes or self._opening.exact_reason(broken.backend, self.reply) is not None:
            return None
        return await self._opening.resumed(self.reply, broken.backend)
