"""The moves of one stream between backends: a destination starts while the source stays open.

Usually both may go on, and the first with new text does; the other's text is dropped. A decisive move does not read the
source any more, so that a source that drips cannot win against a destination that is faster. Its bytes wait in the
kernel: if no destination can go on, the source does. It also does if the last destination is late with its first token:
the source may have text all the while. Each move that the source refutes gives the last destination of the next one
twice as long, so that one that is merely slow gets the stream.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.attempts.destinations import NO_PEER
from otel_llm.relay.attempts.race import Race
from otel_llm.relay.backends.upstream import UpstreamError
from otel_llm.relay.streams.lifecycle import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_llm.relay.attempts.connector import Connector
    from otel_llm.relay.attempts.run import Run
    from otel_llm.relay.deciding.own_actions import Complete
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.splice.reply import Reply
    from otel_llm.relay.streams.lifecycle import Lifecycle

UNREAD_S: Final = 0.005
"""How often a destination that has won checks whether the source's bytes were read meanwhile."""
DECISIVE_AFTER: Final = 2
"""Moves of a stream that its source may refute; the next one is decisive."""
MOST_DOUBLINGS: Final = 3
"""How often refuted moves double the start limit of the last destination: a reader waits 8 start limits at most."""
PACE_S: Final = 2.0
"""The time over which the pace of a source is measured."""
MOVING: Final = "the stream is being moved already"


@dataclass(slots=True)
class Move:
    """A move of the stream from one backend to another, from its beginning to the first text after it.

    `why` names the rule or the reason, for the request span; `complete` is called once. `decisive`: the source is not
    read while a destination is asked, so it cannot go on first.
    """

    source: str
    why: Mapping[str, str]
    complete: Complete
    to: str = ""
    decisive: bool = False
    carried: int | None = None
    """Output tokens from which the destination continued; None until it has begun."""
    candidates: list[dict[str, Any]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    over: bool = False

    def end(self, outcome: str, detail: str, gap_s: float | None = None) -> None:
        """Complete the move, once."""
        if self.over:
            return
        self.over = True
        facts: dict[str, Any] = {"from": self.source}
        if self.to:
            facts |= {"to": self.to, "tokens_carried": self.carried, "gap_seconds": gap_s}
        if self.candidates:
            facts["candidates"] = self.candidates
        self.complete(outcome, detail, facts)


class Migration:
    """The moves of one stream. A move is under way until the destination has won, and then until its text is sent.

    `life` is the stream's; `wake` ends the wait of the task that reads the source.
    """

    def __init__(
        self, recorded: Recorded, reply: Reply, connector: Connector, life: Lifecycle, wake: Callable[[], None]
    ) -> None:
        self._recorded = recorded
        self._reply = reply
        self._connector = connector
        self._life = life
        self._wake = wake
        self._move: Move | None = None
        self._won: Run | None = None
        self._switched: Move | None = None
        """The move whose first text the client does not have yet."""
        self._refuted = 0
        """Moves that the source has refuted since the last that was done."""

    @property
    def won(self) -> bool:
        """Tell whether a destination has won, and `take_over` returns it."""
        return self._won is not None

    @property
    def holds(self) -> bool:
        """Tell whether a decisive move is under way: the source is not read."""
        return self._move is not None and self._move.decisive and self._won is None

    def begin(
        self,
        run: Run,
        to: str,
        why: Mapping[str, str],
        complete: Complete,
        *,
        decisive: bool = False,
        hedge: bool = False,
    ) -> None:
        """Begin to move the stream that `run` serves by a placement policy; `complete` gets the outcome, once.

        `decisive`: whatever the source does meanwhile; else that follows from the reader's text and the two paces.
        `hedge`: the source is late with its first token, so one other backend is to have the request at one time.
        """
        move = Move(run.backend.name, why, complete)
        if self._reply.begun and (reason := self._connector.exact_reason(run.backend, self._reply)) is not None:
            move.end("failed", reason)
            return
        ranked = self._connector.rank(to, run.backend, self._reply)
        if not ranked:
            move.end("failed", "no other backend is healthy")
            return
        move.to = ranked[0].name
        move.candidates = [candidate.record() for candidate in ranked]
        move.decisive = self._reply.begun and (decisive or self._should_be_decisive(run, move.to))
        self._move = move
        self._life.on(Event.MOVE)
        names = [candidate.name for candidate in ranked]
        if hedge:
            race = self._connector.hedge_race(names, self._reply)
        else:
            late, patience = partial(self._read_source, move), 2 ** min(self._refuted, MOST_DOUBLINGS)
            race = Race(self._connector, self._reply, names, self._is_dry, late=late, patience=patience)
        move.task = asyncio.get_running_loop().create_task(self._race(move, race, run))
        if move.decisive:
            self._wake()

    def _should_be_decisive(self, run: Run, to: str) -> bool:
        """Tell whether a move should not be given up when the source has another token.

        That is so if the source has refuted moves before, if the reader does not notice the hand-over, or if the
        source is too slow for the reader and the destination is not.
        """
        if self._refuted >= DECISIVE_AFTER:
            return True
        hand_over_s, runway_s = self._connector.hand_over_s(to, self._reply), self._recorded.runway_s
        if hand_over_s is not None and runway_s is not None and runway_s > hand_over_s:
            return True
        needed = self._recorded.pace_needed
        source, destination = self._recorded.pace(PACE_S), self._connector.pace(to, self._reply)
        return (
            needed is not None
            and source is not None
            and destination is not None
            and source < needed <= destination
            and run.backend.name != to
        )

    def _read_source(self, move: Move) -> None:
        """Read the source of a move again, which is decisive no longer."""
        if move.decisive and not move.over:
            move.decisive = False
            self._wake()

    def _is_dry(self) -> bool:
        """Tell whether the reader has no text left."""
        runway_s = self._recorded.runway_s
        return runway_s is None or runway_s <= 0.0

    async def _race(self, move: Move, race: Race, source: Run) -> None:
        try:
            won = await race.run()
        except UpstreamError:
            move.to = race.to
            self.stop("failed", "; ".join(f"{name}: {reason}" for name, reason in race.failures))
            return
        move.to = won.backend.name
        try:
            # The bytes that the source has sent are read first, even behind a slow client: the source wins a tie.
            await asyncio.sleep(0)
            while source.unread and not move.decisive:
                await asyncio.sleep(UNREAD_S)
        except asyncio.CancelledError:
            won.close()
            raise
        self._won = won
        move.carried = won.upstream_response.carried or 0
        self._life.on(Event.WON)
        self._wake()

    def source_went_on(self) -> None:
        """Give up the move under way, if there is one, since its source has more text."""
        if self._move is not None:
            self._refuted += 1
            self.stop("refuted", "the source went on first")

    def resume_became_inexact(self, reason: str) -> None:
        """Give up a move that has not won; one that has won needs no source any more.

        If only no other backend looks healthy now, the one that was asked may still answer.
        """
        if self._won is None and self._reply.begun and reason != NO_PEER:
            self.stop("failed", reason)

    def stop(self, outcome: str, detail: str) -> None:
        """Give up the move under way, if there is one."""
        move, self._move = self._move, None
        if move is None:
            return
        if move.task is not None and move.task is not asyncio.current_task():
            move.task.cancel()
        if self._life.takes(Event.GIVEN_UP):
            self._life.on(Event.GIVEN_UP)
        if move.decisive:
            self._wake()
        self._connector.moved(move.source, move.to, outcome, None)
        move.end(outcome, detail)

    async def over(self) -> None:
        """Wait until a move under way has won, or is given up; at once if there is none."""
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
        carried = found.upstream_response.carried or 0
        self._switched = Move(source, {"reason": reason}, ignore_completion, to=found.backend.name, carried=carried)

    def moved(self, gap_s: float) -> None:
        """Note that the client has text; `gap_s` after the last, if it is the first after a move."""
        move, self._switched = self._switched, None
        if move is not None:
            self._refuted = 0
            self._recorded.migrated(move.source, move.to, move.carried or 0, gap_s, **move.why)
            self._connector.moved(move.source, move.to, "done", gap_s)
            move.end("done", "", gap_s)

    def close(self) -> None:
        """Note that the stream has ended."""
        self.stop("failed", "the stream is over")
        if self._switched is not None:
            self._switched.end("failed", "the stream ended before it had new text")
        if self._won is not None:
            self._won.close()
            self._won = None


def ignore_completion(_outcome: str, _detail: str, _facts: Mapping[str, Any]) -> None:
    """Ignore the end of a move that no rule has decided."""
