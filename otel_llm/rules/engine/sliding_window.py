"""Sliding windows: totals of the recently ended requests, up to now; nothing is ever subtracted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from otel_llm.slo.quantiles import Sketch
from otel_llm.slo.windows import EndedTotals

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

    from otel_llm.slo.verdict import Verdict

PARTS: Final = 60
"""The number of parts of a window: old requests leave it a part at a time."""


@dataclass(slots=True)
class Totals(EndedTotals):
    """Totals of ended requests and of the benefit that readers got; exact in any order.

    `fluid`: those with deadlines; `fluid_kept`: those at or above the class's fluidity objective. `cut`: those that
    ended before the model was done; `queue`: their times in the queue of the engine or relay, s.
    """

    COUNTS: ClassVar = (*EndedTotals.COUNTS, "fluid", "fluid_kept", "cut")
    SKETCHES: ClassVar = (*EndedTotals.SKETCHES, "queue")
    cut: int = 0
    fluid: int = 0
    fluid_kept: int = 0
    queue: Sketch = field(default_factory=Sketch)

    def count(
        self,
        outcome: str,
        verdict: Verdict | None,
        fluidity: Fraction | None,
        *,
        cut: bool,
        queue_s: float | None = None,
    ) -> None:
        """Count an ended request; no verdict if tokens of it are missing. `fluidity`: the class's objective."""
        self.ended([(outcome, verdict)])
        self.cut += cut
        if queue_s is not None and queue_s >= 0:
            self.queue.add(queue_s)
        if verdict is None or fluidity is None or not verdict.deadlines or verdict.deadline_misses is None:
            return
        self.fluid += 1
        kept = (verdict.deadlines - verdict.deadline_misses) * fluidity.denominator
        self.fluid_kept += kept >= fluidity.numerator * verdict.deadlines


def merged(totals: Iterable[Totals]) -> Totals:
    """Return the sum of all of them."""
    found = Totals()
    for one in totals:
        found.merge(one)
    return found


class SlidingWindow:
    """The totals of the last `window_ns`, to a sixtieth of it; instants in ns, never going back.

    Part k holds what ended in (k s, (k + 1) s], s a sixtieth of the window: at an instant the window is the part that
    it lies in and the 59 before. Two stacks of parts: the older ones already added up from the newest of them on, so
    the oldest leaves by being dropped. Adding and reading cost a few merges, whatever the window holds.
    """

    __slots__ = ("_found", "_newer", "_newer_sum", "_older", "step_ns", "window_ns")

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self.step_ns = window_ns // PARTS
        self._older: list[tuple[int, Totals]] = []
        """The oldest part last; each includes all newer ones of this list."""
        self._newer: list[tuple[int, Totals]] = []
        self._newer_sum = Totals()
        self._found: Totals | None = None

    def add(self, totals: Totals, now_ns: int) -> None:
        """Add the requests that ended up to now, since the last call."""
        part = self._part(now_ns)
        self._found = None
        if not self._newer or self._newer[-1][0] != part:
            self._newer.append((part, Totals()))
        self._newer[-1][1].merge(totals)
        self._newer_sum.merge(totals)

    def total(self, now_ns: int) -> Totals:
        """Return the totals of the window that ends now; the caller must not change them."""
        last = self._part(now_ns) - PARTS
        older, newer = self._older, self._newer
        if (older and older[-1][0] <= last) or (newer and newer[0][0] <= last):
            self._found = None
            while older and older[-1][0] <= last:
                older.pop()
            if not older and newer and newer[0][0] <= last:
                self._turn(last)
        if self._found is None:
            self._found = merged((older[-1][1], self._newer_sum)) if older else merged((self._newer_sum,))
        return self._found

    def reach_ns(self, now_ns: int) -> int:
        """Return how far back the window that ends now reaches: from 59 sixtieths of it to all of it."""
        return now_ns - (self._part(now_ns) - PARTS + 1) * self.step_ns

    def next_change_ns(self) -> int | None:
        """Return the first instant at which the oldest part is out of the window; None if it is empty."""
        oldest = self._older[-1][0] if self._older else self._newer[0][0] if self._newer else None
        return None if oldest is None else (oldest + PARTS) * self.step_ns + 1

    def _part(self, now_ns: int) -> int:
        return (now_ns - 1) // self.step_ns

    def _turn(self, last: int) -> None:
        """Turn the newer parts into the older ones."""
        running = Totals()
        for part, totals in reversed(self._newer):
            if part <= last:
                break
            running = merged((running, totals))
            self._older.append((part, running))
        self._newer.clear()
        self._newer_sum = Totals()
