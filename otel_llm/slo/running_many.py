"""The running judgement of many streams at once: a row a stream, moved by one batch of segments in one pass.

The same arithmetic as `Running`, in the same integers. A segment whose last token comes before the reader is dry and
before the deadline moves its row by two additions, however many its tokens; the others are laid out as rectangles in
which a reader's waits and Etalon's resets are running maxima: with x_k = t_k - k P, someone who reads at a token each P
runs dry at a new maximum of x; with y_k = t_k - k tbt a deadline is missed at a new maximum of y, and the deadlines
restart from it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from otel_llm.slo.column_views import ColumnViews

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.running import Running

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

NEVER: Final = np.iinfo(np.int64).max
UNKNOWN: Final = -1
"""In `due_ns`: Etalon's deadlines are not known, since the first one's length of prompt is not."""
_RECTANGLE: Final = 1 << 20
"""Tokens looked at in one rectangle, empty corners included."""
_MOVING: Final = (
    "count", "first_ns", "last_ns", "allowance_ns", "dry_ns", "stalls", "stalled", "late", "missed", "passed",
)  # fmt: skip
_FIXED: Final = (
    "commit_ns", "pace_ns", "tbt_ns", "drops", "one_a_token", "following_ns", "by_gap", "judged_ns", "reads",
)  # fmt: skip
_COLUMNS: Final = ("due_ns", *_MOVING, *_FIXED)
WIDTH: Final = len(_COLUMNS)


class RunningMany(ColumnViews):
    """Hold what the tokens read so far decide, of many streams; (R,) columns, instants in ns on each stream's axis.

    The columns are those of `Running`; `due_ns` is UNKNOWN where its is None. Of the stream's class: `pace_ns` and
    `tbt_ns`; `following_ns`, its deadline's step where tokens are to be compared with one as they come, else NEVER
    (`by_gap`: from the token before); `judged_ns`, its first deadline; `reads`, a bit for each kind that is read;
    `drops` and `one_a_token`, whether fluidity drops the first token's credit and counts a miss a late token. All are
    views of one matrix, (R, WIDTH) int64, a row a stream: so the streams of a batch are gathered, moved and put back
    in one copy each.
    """

    __slots__ = (*_COLUMNS, "_classes")
    PLACES: ClassVar = {name: at for at, name in enumerate(_COLUMNS)}
    due_ns: Ints
    count: Ints
    first_ns: Ints
    last_ns: Ints
    allowance_ns: Ints
    dry_ns: Ints
    stalls: Ints
    stalled: Ints
    late: Ints
    missed: Ints
    passed: Ints
    commit_ns: Ints
    pace_ns: Ints
    tbt_ns: Ints
    drops: Ints
    one_a_token: Ints
    following_ns: Ints
    by_gap: Ints
    judged_ns: Ints
    reads: Ints

    def __init__(self, rows: Ints) -> None:
        super().__init__(rows)
        self._classes: dict[int, tuple[SloClass, tuple[int, ...]]] = {}

    def store(self, row: int, running: Running, slo: SloClass) -> None:
        """Take over the state of a stream of a class."""
        self.rows[row] = self._row(running, slo)

    def store_many(self, rows: Ints, streams: Iterable[tuple[Running, SloClass]]) -> None:
        """Take over the states of many streams, each of its class."""
        found = [self._row(running, slo) for running, slo in streams]
        if found:
            self.rows[rows] = found

    def _row(self, running: Running, slo: SloClass) -> tuple[int, ...]:
        due_ns = UNKNOWN if running.due_ns is None else running.due_ns
        first_ns, *fixed = self._of(slo)
        fixed[_JUDGED_AT] = running.commit_ns + first_ns
        return (due_ns, *_moving(running), running.commit_ns, *fixed)

    def _of(self, slo: SloClass) -> tuple[int, ...]:
        known = self._classes.get(id(slo))  # by identity: a class is looked up for every stream, and hashing it is slow
        if known is None:
            known = self._classes[id(slo)] = slo, _of_class(slo)
        return known[1]

    def load(self, row: int, running: Running) -> None:
        """Hand a stream's state back."""
        (
            due_ns, running.count, running.first_ns, running.last_ns, running.allowance_ns, running.dry_ns,
            running.stalls, stalled, running.late, running.missed, passed,
        ) = self.rows[row, : 1 + len(_MOVING)].tolist()  # fmt: skip
        running.due_ns = None if due_ns == UNKNOWN else due_ns
        running.stalled, running.passed = bool(stalled), bool(passed)

    def apply(self, rows: Ints, times_ns: Ints, offsets: Ints) -> None:
        """Move each of `rows` (none twice) over its tokens, at least one, sorted, none before the last applied.

        Those of rows[i] are `times_ns[offsets[i]:offsets[i + 1]]`.
        """
        first, last = times_ns[offsets[:-1]], times_ns[offsets[1:] - 1]
        number = np.diff(offsets)
        count, pace = self.count[rows], self.pace_ns[rows]
        dry, allowance = self.dry_ns[rows], self.allowance_ns[rows]
        due, tbt = self.due_ns[rows], self.tbt_ns[rows]
        opens = count == 0

        waits = last > dry
        misses = (due != UNKNOWN) & ((last > due) | (opens & (self.drops[rows] != 0)))
        closely = np.flatnonzero(waits | misses)
        dry += number * pace
        stalled = np.zeros(len(rows), dtype=bool)
        due[due != UNKNOWN] += (number * tbt)[due != UNKNOWN]
        following = self.following_ns[rows]
        watched = (following != NEVER) & (self.passed[rows] == 0)
        if watched.any():
            self._watch_deadlines(rows, times_ns, offsets, np.flatnonzero(watched))
        if closely.size:
            widths = number[closely]
            for part in _rectangles(widths):
                chosen = closely[part]
                found = self._look_closely(rows[chosen], times_ns, offsets[chosen], number[chosen])
                dry[chosen], stalled[chosen] = found[0], found[1]
                due[chosen] = np.where(due[chosen] == UNKNOWN, UNKNOWN, found[2])
        self.dry_ns[rows] = dry
        self.stalled[rows] = stalled
        self.due_ns[rows] = due
        self.first_ns[rows[opens]] = first[opens]
        self.count[rows] = count + number
        self.last_ns[rows] = last
        self.allowance_ns[rows] = allowance + number * pace

    def idle_ns(self, rows: Ints, x_ns: Ints) -> Ints:
        """Return l at instants not before each last token."""
        return np.maximum(0, np.maximum(self.dry_ns[rows], x_ns) - self.allowance_ns[rows])

    def unbroken(self, rows: Ints) -> Bools:
        """Tell of which streams the reader has never waited since the first token read."""
        found: Bools = self.dry_ns[rows] == self.first_ns[rows] + self.count[rows] * self.pace_ns[rows]
        return found & (self.count[rows] > 0)

    def runway_ns(self, rows: Ints, x_ns: Ints) -> Ints:
        """Return the text left to read at these instants, as a length of time; negative while the reader waits."""
        until: Ints = np.where(self.count[rows] > 0, self.dry_ns[rows], self.allowance_ns[rows])
        return until - x_ns

    def _look_closely(self, rows: Ints, times_ns: Ints, starts: Ints, number: Ints) -> tuple[Ints, Bools, Ints]:
        """Return (dry, stalled, due) after the tokens, and count stalls and misses on the way."""
        width = int(number.max())
        place = np.arange(width)
        there = place < number[:, None]
        times = times_ns[np.minimum(starts[:, None] + place, len(times_ns) - 1)]
        floor = np.iinfo(np.int64).min
        whole = np.arange(len(rows))
        newest = number - 1

        pace = self.pace_ns[rows]
        x = np.where(there, times - place * pace[:, None], floor)
        before = _running_max(self.dry_ns[rows], x)
        waited = x > before[:, :-1]
        stalls = waited & (x > self.allowance_ns[rows][:, None])
        ongoing = np.empty_like(stalls)
        ongoing[:, 0], ongoing[:, 1:] = self.stalled[rows], stalls[:, :-1]
        self.stalls[rows] += (stalls & ~ongoing).sum(axis=1)
        dry = before[:, -1] + number * pace
        stalled: Bools = stalls[whole, newest]

        tbt = self.tbt_ns[rows]
        y = np.where(there, times - place * tbt[:, None], floor)
        due = self.due_ns[rows]
        known = due != UNKNOWN
        drop = known & (self.drops[rows] != 0) & (self.count[rows] == 0)
        anchor = due.copy()
        anchor[drop] = np.maximum(due, y[:, 0])[drop]
        before = _running_max(anchor, y)
        if drop.any():
            # The deadlines start from the first token however early it was; whether it was late is judged apart.
            rest = np.where(np.arange(width) > 0, y, floor)[drop]
            before[drop] = _running_max(y[drop, 0], rest)
            before[drop, 0] = due[drop]
        over = (y > before[:, :-1]) & known[:, None]
        self.late[rows] += over.sum(axis=1)
        excess = np.where(over, 1 + (y - before[:, :-1]) // tbt[:, None], 0)
        self.missed[rows] += excess.sum(axis=1)
        return dry, stalled, before[:, -1] + number * tbt

    def _watch_deadlines(self, rows: Ints, times_ns: Ints, offsets: Ints, chosen: Ints) -> None:
        """Note which rows break a deadline that follows from the token before (ttft_tbt) or from the first (dslo)."""
        by_gap = self.by_gap[rows[chosen]]
        for i, gap in zip(chosen.tolist(), by_gap.tolist(), strict=True):
            row = rows[i]
            times = times_ns[offsets[i] : offsets[i + 1]]
            following, count = int(self.following_ns[row]), int(self.count[row])
            if gap:
                broken = count == 0 and times[0] > self.judged_ns[row]
                steps = np.diff(times, prepend=self.last_ns[row] if count else times[0])
                self.passed[row] = broken or bool((steps > following).any())
            else:
                due = self.judged_ns[row] + (count + np.arange(len(times))) * following
                self.passed[row] = bool((times > due).any())


_moving = attrgetter(*_MOVING)
_JUDGED_AT: Final = _FIXED.index("judged_ns") - 1


def _of_class(slo: SloClass) -> tuple[int, ...]:
    """Return the length of its first deadline, and what a class puts into the columns behind `commit_ns`."""
    deadline = slo.deadline
    watched = deadline.policy in ("dslo", "ttft_tbt") and deadline.next_ns is not None
    return (
        deadline.first_ns,
        slo.pace_ns,
        slo.fluidity.tbt_ns,
        slo.fluidity.ttft_credit == "drop",
        slo.fluidity.count == "tokens",
        deadline.next_ns if watched and deadline.next_ns is not None else NEVER,
        deadline.policy == "ttft_tbt",
        0,
        sum(1 << kind for kind in slo.reads),
    )


def _running_max(start: Ints, values: Ints) -> Ints:
    """Return (R, K + 1): the maximum of `start` and of the first 0 .. K values of each row."""
    found = np.empty((values.shape[0], values.shape[1] + 1), dtype=np.int64)
    found[:, 0], found[:, 1:] = start, values
    return np.maximum.accumulate(found, axis=1, out=found)


def _rectangles(widths: Ints) -> list[Ints]:
    """Split rows into groups of like widths, so that the rectangles around them hold little that is empty."""
    if len(widths) * int(widths.max()) <= 4 * int(widths.sum()) + 4096 <= _RECTANGLE:
        return [np.arange(len(widths))]
    order = np.argsort(widths, kind="stable")
    groups, start = [], 0
    ordered = widths[order].tolist()
    while start < len(order):
        stop = start + 1
        while (
            stop < len(order)
            and ordered[stop] <= 2 * ordered[start] + 8
            and (stop + 1 - start) * ordered[stop] <= _RECTANGLE
        ):
            stop += 1
        groups.append(order[start:stop])
        start = stop
    return groups
