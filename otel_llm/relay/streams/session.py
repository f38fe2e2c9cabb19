"""The life of one owned request: whoever serves it, its client reads one reply.

One coroutine reads the backend that serves and writes to the client. A destination of a migration is read by a task
beside it until it has text that the client does not have; then it takes over between two reads, never within one. All
of it runs in one event loop, so what stands between two `await` is not interrupted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web

from otel_llm.relay.answers import CLIENT_LEFT, pass_response, reader_headers, unserved
from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.relay.seam.leg import CUT as TORN
from otel_llm.relay.seam.leg import DIFFERS
from otel_llm.relay.streams.move import Move
from otel_llm.relay.streams.opening import break_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp.http import StreamWriter

    from otel_llm.relay.deciding.own_actions import Settle
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.seam.piece import Piece
    from otel_llm.relay.seam.reply import Reply
    from otel_llm.relay.streams.opening import Opening
    from otel_llm.relay.streams.run import Run


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a backend's stream is followed no further: `whole`, `taken`, `cut` by us, or a break with its reason."""

    kind: str
    reason: str = ""


WHOLE: Final = Ending("whole")
TAKEN: Final = Ending("taken")
CUT: Final = Ending("cut")
UNREAD_S: Final = 0.005
"""How often a destination that has won looks whether the source's bytes have been read meanwhile."""


class Session:
    """Serve one owned request. `serve` is called once; everything else is called from the loop while it runs."""

    def __init__(self, request: web.BaseRequest, recorded: Recorded, reply: Reply, opening: Opening) -> None:
        self.recorded = recorded
        self.reply = reply
        self.served = ""
        """The backend that served last."""
        self._request = request
        self._opening = opening
        self._response: web.StreamResponse | None = None
        self._run: Run | None = None
        self._won: Run | None = None
        self._move: Move | None = None
        self._switched: Move | None = None
        """The move whose first text the client does not have yet."""
        self._cut: tuple[str, str, str] | None = None
        """Why the client's reply is ended from here: kind, message and code of its error event."""
        self._written_ns = recorded.commit_ns
        """When text was last written, or the commit."""
        self._reason: str | None = "not begun"
        self._noted = False
        self._mending = False

    # What is told of it.

    @property
    def code(self) -> int:
        """Return the status that the client got; 499 where it left before it had one."""
        return CLIENT_LEFT if self._response is None else self._response.status

    @property
    def instance(self) -> str:
        """Name the backend that serves now; "" where none does."""
        return "" if self._run is None else self._run.backend.name

    @property
    def exact_reason(self) -> str | None:
        """Say why the stream cannot be resumed exactly on another backend; None where it can."""
        run = self._run
        if run is None:
            return "no backend serves it"
        return self._opening.exact_reason(run.backend, self.reply)

    def refresh(self) -> None:
        """Tell the facts whether exact resume is possible now: a backend, or the reply, has changed."""
        reason = self.exact_reason
        if reason != self._reason:
            self._reason = reason
            self.recorded.exact_resume(reason is None)
            # A destination that has won has all that it needs: its source is closed already.
            if reason is not None and self._move is not None and self._won is None and self.reply.begun:
                self._stop_move("failed", reason)

    # What is done to it.

    def migrate(self, to: str, why: Mapping[str, str], settle: Settle) -> None:
        """Begin to move the stream to another backend by a placement policy; `settle` gets the outcome, once."""
        run = self._run
        if run is None or self._mending or self._cut is not None or self.reply.finish is not None:
            settle("failed", "no backend serves the stream now", {})
            return
        if self._move is not None or self._won is not None or self._switched is not None:
            settle("failed", "the stream is being moved already", {})
            return
        move = Move(run.backend.name, why, settle)
        if self.reply.begun and (reason := self.exact_reason) is not None:
            move.end("failed", reason)
            return
        ranked = self._opening.rank(to, run.backend, self.reply)
        if not ranked:
            move.end("failed", "no other backend is healthy")
            return
        move.to = ranked[0].name
        move.candidates = [candidate.record() for candidate in ranked]
        self._move = move
        move.task = asyncio.get_running_loop().create_task(self._race(move))

    def cut(self, kind: str, message: str, code: str) -> bool:
        """Close the backend's stream and end the reply with an error event; return whether there was a stream."""
        if self._run is None or self._cut is not None:
            return False
        self._cut = (kind, message, code)
        self._stop_move("failed", message)
        self._run.close()
        return True

    # The reader's side.

    async def serve(self) -> web.StreamResponse:
        """Serve the request to its end; what the client got is the value."""
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
        return self._response or web.Response()  # nobody reads the answer to a client that has left

    async def _serve(self) -> tuple[str, str | None]:
        run = await self._send_again()
        reason = self._opening.last_reason
        while run is not None and self._cut is None:
            ending = await self._follow(run)
            if ending is WHOLE:
                assert self._response is not None  # noqa: S101
                self._opening.worked(run.backend)
                await self._response.write_eof()
                return "completed", None
            run.close()
            reason = ending.reason
            if self._cut is None:
                run = self._take_over() if ending is TAKEN else await self._mend(run, reason)
        if self._cut is not None:
            if run is not None:  # it was found while the stream was cut
                run.close()
            await self._tell(*self._cut)
            return "error", self._cut[2]
        if self._response is not None:
            await self._tell("upstream_error", f"the reply was cut: {reason}", reason)
            return "error", reason
        answer = self._opening.take_answer()
        if answer is None:
            self._response = unserved(reason)
        else:
            try:
                self._response = await pass_response(self._request, answer.response)
            finally:
                answer.close()
        return "error", str(self._response.status)

    async def _follow(self, run: Run) -> Ending:
        """Pass on what a backend sends until it ends, breaks, or another takes over."""
        if self._run is not run:
            self._run, self.served = run, run.backend.name
            self.recorded.serving(run.backend.name)
            self.recorded.connected()
        await self._prepare(run)
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
                if self._won is not None:
                    return TAKEN
                if self._cut is not None:
                    return CUT
                if self.reply.finish is None:
                    return Ending("broken", problem.reason)
                if end := self.reply.separator():  # the finish is whole, and its event should be
                    await self._write(run, end, text=False)
                return WHOLE
            if self._won is not None:
                return TAKEN
            found = [(run.read_ns, piece) for piece in pieces]

    def _look(self, piece: Piece) -> Ending | None:
        """Say why a piece is not to be passed on: these are breaks, whatever the status said."""
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
        if self._move is not None and (piece.ids or piece.tokens or piece.finish is not None):
            self._stop_move("refuted", "the source went on first")
        before = self.reply.reason
        data = self.reply.take(run.leg, piece)
        if data:
            out.append(data)
        if piece.tokens:
            for choice, count, kind in piece.tokens:
                self.recorded.tokens(at_ns, choice, count, kind, exact=bool(piece.ids))
                run.grow(count)
        chunk = piece.chunk
        if chunk is not None and (
            not self._noted or piece.finish is not None or chunk.usage is not None or chunk.prompt_ids is not None
        ):
            self._noted = True
            self.recorded.noted(chunk, at_ns, continues=run.leg.carried is not None)
        if self.reply.reason != before:
            self.refresh()

    async def _write(self, run: Run, data: bytes, *, text: bool) -> None:
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        # The writer's own waiting, which comes now and then, would not be told as such.
        await cast("StreamWriter", self._request.writer).write(data, drain=False)
        if transport.get_write_buffer_size():  # the kernel did not take all of it: the client reads slowly
            self.recorded.blocked(True)
            await self._request.writer.drain()
            self.recorded.blocked(False)
        now_ns = time.monotonic_ns()
        self._opening.added((now_ns - run.read_ns) / 1e9)
        if text or self.reply.finish is not None:
            if self._switched is not None:
                self._moved(self._switched, (now_ns - self._written_ns) / 1e9)
            self._written_ns = now_ns

    async def _prepare(self, run: Run) -> None:
        """Begin the answer to the client, once, with the headers of the backend that served first."""
        self.recorded.served_by(run.backend.name, exact_resume=self.exact_reason is None)
        if self._response is not None:
            return
        response = web.StreamResponse(
            status=run.response.status, reason=run.response.reason, headers=reader_headers(run.response)
        )
        await response.prepare(self._request)
        self._response = response
        if self._request.transport is not None:
            # Whatever the kernel does not take at once counts as waiting for the client.
            self._request.transport.set_write_buffer_limits(high=0)

    async def _tell(self, kind: str, message: str, code: str) -> None:
        """End a reply that cannot be whole: one error event, and the connection."""
        assert self._response is not None  # noqa: S101
        await self._response.write(self.reply.error_event(message, kind, code))
        self._response.force_close()
        await self._response.write_eof()

    def _close(self) -> None:
        self._stop_move("failed", "the stream is over")
        if self._switched is not None:
            self._switched.end("failed", "the stream ended before it had new text")
        for run in (self._run, self._won):
            if run is not None:
                run.close()
        self._run = self._won = None
        self._opening.drop_answer()

    # Another backend.

    async def _send_again(self) -> Run | None:
        """Send the request as it came, to the next backend and the next; None where no stream is to be had."""
        return await self._opening.first(self.reply, headers_sent=self._response is not None)

    async def _mend(self, run: Run, reason: str) -> Run | None:
        """Go on behind a break; None where that cannot be done."""
        self._mending = True
        try:
            self.recorded.disconnected()
            self._opening.broke(run.backend, reason)
            if self._move is not None and self._move.task is not None:  # a migration under way goes on
                await asyncio.wait({self._move.task})
                if self._won is not None:
                    return self._take_over()
            found = None if self._cut is not None else await self._another(run)
        finally:
            self._mending = False
        if found is not None:
            self._switched = Move(
                run.backend.name, {"reason": reason}, unsettled, to=found.backend.name, carried=found.leg.carried or 0
            )
        return found

    async def _another(self, broken: Run) -> Run | None:
        """Return a backend that serves the reply from where it stands; None where there is none."""
        if not self.reply.begun:
            return await self._send_again()
        if not self._opening.resumes or self._opening.exact_reason(broken.backend, self.reply) is not None:
            return None
        return await self._opening.resumed(self.reply, broken.backend)

    async def _race(self, move: Move) -> None:
        """Start the destination of a migration while the source stays open; whoever has the next text first wins."""
        try:
            won = await self._opening.destination(move.to, self.reply)
        except UpstreamError as problem:
            self._stop_move("failed", f"{move.to}: {problem.reason}")
            return
        try:
            # What the source has sent by now is read first, also where a slow client holds that up: a tie is its own.
            await asyncio.sleep(0)
            while self._run is not None and self._run.unread:
                await asyncio.sleep(UNREAD_S)
        except asyncio.CancelledError:
            won.close()
            raise
        self._won = won
        move.carried = won.leg.carried or 0
        if self._run is not None:
            self._run.close()  # wakes the reading of it

    def _take_over(self) -> Run:
        won, move = self._won, self._move
        assert won is not None  # noqa: S101
        assert move is not None  # noqa: S101
        self._won, self._move, self._switched = None, None, move
        return won

    def _stop_move(self, outcome: str, detail: str) -> None:
        move, self._move = self._move, None
        if move is None:
            return
        if move.task is not None and move.task is not asyncio.current_task():
            move.task.cancel()
        self._opening.moved(move.source, move.to, outcome, None)
        move.end(outcome, detail)

    def _moved(self, move: Move, gap_s: float) -> None:
        """Note that the client has the first text behind a move."""
        self._switched = None
        self.recorded.migrated(move.source, move.to, move.carried or 0, gap_s, **move.why)
        self._opening.moved(move.source, move.to, "done", gap_s)
        move.end("done", "", gap_s)


def unsettled(_outcome: str, _detail: str, _facts: Mapping[str, Any]) -> None:
    """Take the end of a move that no rule has decided."""
