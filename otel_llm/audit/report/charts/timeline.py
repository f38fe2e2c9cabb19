"""The geometry of one delivery: arrivals of tokens, the reader's position, and the waits.

Coordinates are (integer ns since the commit, tokens). The delivery is the step that counts the tokens that have
arrived. The reader's curve counts the tokens that have been read: it starts at the first deadline A = start + P,
climbs one token every P and lies flat while it waits, so it never rises above the delivery and touches it exactly
where the text has run out. The straight line through its last touching point, at reading speed, is the tangent of
Wang et al., figure 2; its distance from the line of a reader who never waits is the user idle latency (their
equations 5 and 9).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from otel_llm.slo.request import waits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.slo.classes import SloClass

Point = tuple[int, float]
"""(ns since the commit, tokens)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait of the reader for one token, in ns since the commit; `stall` is the number of its stall, from 0."""

    start_ns: int
    end_ns: int
    stall: int

    @property
    def length_ns(self) -> int:
        """The time without text to read, ns."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall: begin and end (ns since the commit), and how much of it the reader waited.

    If several tokens in a row were late the reader read each of them in between, so the wait is shorter than the
    stall.
    """

    start_ns: int
    end_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a delivery: begin, end (ns since the commit) and the user's state: `first`, `waiting` or `reading`."""

    start_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """One delivery ready to be drawn: times in ns since the commit, of the tokens that the class's user reads."""

    tokens_ns: tuple[int, ...]
    end_ns: int
    first_deadline_ns: int
    pace_ns: int
    waits: tuple[Wait, ...]

    @property
    def idle_ns(self) -> int:
        """User idle latency: the sum of the waits (Wang et al., eq. 9), ns."""
        return sum(wait.length_ns for wait in self.waits)

    @property
    def stalls(self) -> list[Stall]:
        """The waits grouped into stalls: consecutive late tokens are one."""
        found: list[Stall] = []
        for wait in self.waits:
            if wait.stall == len(found):
                found.append(Stall(wait.start_ns, wait.end_ns, wait.length_ns))
            else:
                before = found[-1]
                found[-1] = Stall(before.start_ns, wait.end_ns, before.waited_ns + wait.length_ns)
        return found

    @property
    def horizon_ns(self) -> int:
        """The last instant of an event on the sender's side, ns."""
        last_token_ns = self.tokens_ns[-1] if self.tokens_ns else 0
        return max(self.end_ns, last_token_ns, self.waits[-1].end_ns if self.waits else 0)

    @property
    def read_to_the_end_ns(self) -> int:
        """The instant at which the reader has finished the last token, ns."""
        return self.first_deadline_ns + len(self.tokens_ns) * self.pace_ns + self.idle_ns

    def reader(self, until_ns: int) -> list[Point]:
        """Return the corners of the reader's curve, cut at `until_ns`."""
        corners: list[Point] = [(self.first_deadline_ns, 0.0)]
        waited_ns = 0
        for wait in self.waits:
            tokens = (wait.start_ns - self.first_deadline_ns - waited_ns) / self.pace_ns
            corners += [(wait.start_ns, tokens), (wait.end_ns, tokens)]
            waited_ns += wait.length_ns
        corners.append((self.read_to_the_end_ns, float(len(self.tokens_ns))))
        return cut(corners, until_ns)

    def straight(self, from_ns: int, until_ns: int) -> list[Point]:
        """Return the line of a reader who never waits, from zero tokens at `from_ns`, cut at the last token."""
        full_ns = from_ns + len(self.tokens_ns) * self.pace_ns
        return cut([(from_ns, 0.0), (full_ns, float(len(self.tokens_ns)))], until_ns)

    def phases(self, until_ns: int, smallest_ns: int = 0) -> list[Phase]:
        """Split the delivery into the three parts of Wang et al., figure 2: first token, waiting, reading.

        Before the first token everything is waiting for it; after it, all that is not a wait is reading. A piece of
        reading shorter than `smallest_ns` between two waits is drawn as waiting.
        """
        first_ns = min(self.tokens_ns[0] if self.tokens_ns else self.horizon_ns, until_ns)
        parts = [Phase(0, first_ns, "first")]
        for wait in self.waits:
            start_ns, end_ns = max(wait.start_ns, first_ns), min(wait.end_ns, until_ns)
            if start_ns >= end_ns:
                continue
            before = parts[-1]
            if before.name == "waiting" and start_ns - before.end_ns <= smallest_ns:
                parts[-1] = Phase(before.start_ns, end_ns, "waiting")
                continue
            if start_ns > before.end_ns:
                parts.append(Phase(before.end_ns, start_ns, "reading"))
            parts.append(Phase(start_ns, end_ns, "waiting"))
        finished_ns = min(until_ns, self.read_to_the_end_ns)
        if self.tokens_ns and finished_ns > parts[-1].end_ns:
            parts.append(Phase(parts[-1].end_ns, finished_ns, "reading"))
        return [part for part in parts if part.end_ns > part.start_ns]


def build(read_ns: Sequence[int], end_ns: int, outcome: str, slo: SloClass) -> Timeline:
    """Build the timeline of one request from the sorted times of the tokens read and its end, ns since the commit."""
    waited_to_ns = None if outcome == "completed" else end_ns
    first_deadline_ns = slo.start_ns + slo.pace_ns
    waited = waits(read_ns, first_deadline_ns, slo.pace_ns, waited_to_ns)
    found: list[Wait] = []
    late_before = False
    stall = -1
    for at_ns, (before_ns, after_ns) in zip(
        read_ns if waited_to_ns is None else [*read_ns, waited_to_ns], pairwise(waited), strict=True
    ):
        late = after_ns > before_ns
        if late:
            stall += not late_before
            found.append(Wait(at_ns - (after_ns - before_ns), at_ns, stall))
        late_before = late
    return Timeline(tuple(read_ns), end_ns, first_deadline_ns, slo.pace_ns, tuple(found))


def cut(corners: Sequence[Point], until_ns: int) -> list[Point]:
    """Cut a line of corners at `until_ns`, with the point on the border interpolated."""
    kept: list[Point] = []
    for at_ns, tokens in corners:
        if at_ns <= until_ns:
            kept.append((at_ns, tokens))
            continue
        if kept:
            before_ns, before = kept[-1]
            kept.append((until_ns, before + (tokens - before) * (until_ns - before_ns) / (at_ns - before_ns)))
        break
    return kept


def thin(indices: Iterable[int], times_ns: Sequence[int], columns: int) -> list[int]:
    """Keep the first and the last of the given indices in each of `columns` equal slices of time.

    With one slice a pixel nothing visible is lost, and a chart never holds more than 2 * columns points.
    """
    chosen = list(indices)
    if len(chosen) <= 2 * columns:
        return chosen
    start_ns = times_ns[chosen[0]]
    width_ns = max(1, times_ns[chosen[-1]] - start_ns + 1)
    kept: list[int] = []
    slice_before = -1
    for position, index in enumerate(chosen):
        this = (times_ns[index] - start_ns) * columns // width_ns
        if this != slice_before and position:
            if kept[-1] != chosen[position - 1]:
                kept.append(chosen[position - 1])
            kept.append(index)
        elif not position:
            kept.append(index)
        slice_before = this
    if kept[-1] != chosen[-1]:
        kept.append(chosen[-1])
    return kept
