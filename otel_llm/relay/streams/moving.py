"""The moves of one stream between backends: the destination starts while the source stays open.

The first with new text goes on; the other's text is dropped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.relay.streams.move import Move

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.deciding.own_actions import Settle
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.seam.reply import Reply
    from otel_llm.relay.streams.opening import Opening
    from otel_llm.relay.streams.run import Run

UNREAD_S: Final = 0.005
"""How often a destination that has won checks whether the source's bytes were read meanwhile."""
MOVING: Final = "the stream is being moved already"


class Moving:
    """The moves of one stream. A move is under way until the destination has won, and then until its text is sent."""

    def __init__(self, recorded: Recorded, reply: Reply, opening: Opening) -> None:
        self._recorded = recorded
        self._reply = reply
        self._opening = opening
        self._move: Move | None = None
        self._won: Run | None = None
        self._switched: Move | None = None
        """The move whose first text the client does not have yet."""

    @property
    def busy(self) -> bool:
        """Tell whether a move is under way."""
        return self._move is not None or self._switched is not None

    @property
    def won(self) -> bool:
        """Tell whether a destination has won, and `take_over` returns it."""
        return self._won is not None

    def begin(self, run: Run, to: str, why: Mapping[str, str], settle: Settle) -> None:
        """Begin to move the stream that `run` serves by a placement policy; `settle` gets the outcome, once."""
        move = Move(run.backend.name, why, settle)
        if self._reply.begun and (reason := self._opening.exact_reason(run.backend, self._reply)) is not None:
            move.end("failed", reason)
            return
        ranked = self._opening.rank(to, run.backend, self._reply)
        if not ranked:
            move.end("failed", "no other backend is healthy")
            return
        move.to = ranked[0].name
        move.candidates = [candidate.record() for candidate in ranked]
        self._move = move
        move.task = asyncio.get_running_loop().create_task(self._race(move, run))

    async def _race(self, move: Move, source: Run) -> None:
        try:
            won = await self._opening.destination(move.to, self._reply)
        except UpstreamError as problem:
            self.stop("failed", f"{move.to}: {problem.reason}")
            return
        try:
            # The bytes that the source has sent are read first, even behind a slow client: the source wins a tie.
            await asyncio.sleep(0)
            while source.unread:
                await asyncio.sleep(UNREAD_S)
        except asyncio.CancelledError:
            won.close()
            raise
        self._won = won
        move.carried = won.leg.carried or 0
        source.close()  # wakes its reader

    def source_went_on(self) -> None:
        """Give up the move under way, if there is one, since its source has more text."""
        if self._move is not None:
            self.stop("refuted", "the source went on first")

    def resume_became_inexact(self, reason: str) -> None:
        """Give up a move that has not won; one that has won needs no source any more."""
        if self._won is None and self._reply.begun:
            self.stop("failed", reason)

    def stop(self, outcome: str, detail: str) -> None:
        """Give up the move under way, if there is one."""
        move, self._move = self._move, None
        if move is None:
            return
        if move.task is not None and move.task is not asyncio.current_task():
            move.task.cancel()
        self._opening.moved(move.source, move.to, outcome, None)
        move.end(outcome, detail)

    async def settled(self) -> None:
        """Wait until a move under way has won, or is given up; at once where there is none."""
        if self._move is not None and self._move.task is not None:
            await asyncio.wait({self._move.task})

    def take_over(self) -> Run:
        """Return the destination that has won: it serves from now on."""
        won, move = self._won, self._move
        assert won is not None  # noqa: S101
        assert move is not None  # noqa: S101
        self._won, self._move, self._switched = None, None, move
        return won

    def failed_over(self, source: str, found: Run, reason: str) -> None:
        """Note that `found` continues where `source` broke off."""
        carried = found.leg.carried or 0
        self._switched = Move(source, {"reason": reason}, unsettled, to=found.backend.name, carried=carried)

    def moved(self, gap_s: float) -> None:
        """Note that the client has text; `gap_s` after the last, if it is the first after a move."""
        move, self._switched = self._switched, None
        if move is not None:
            self._recorded.migrated(move.source, move.to, move.carried or 0, gap_s, **move.why)
            self._opening.moved(move.source, move.to, "done", gap_s)
            move.end("done", "", gap_s)

    def close(self) -> None:
        """Note that the stream has ended."""
        self.stop("failed", "the stream is over")
        if self._switched is not None:
            self._switched.end("failed", "the stream ended before it had new text")
        if self._won is not None:
            self._won.close()
            self._won = None


def unsettled(_outcome: str, _detail: str, _facts: Mapping[str, Any]) -> None:
    """Ignore the end of a move that no rule has decided."""
