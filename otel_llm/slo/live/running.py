"""The running judgement of the tokens read so far: a row of integers for each stream, updated by every token.

`columns` describes a row. The functions are plain Python for one stream; `otel_llm.core` compiles the same ones into
its kernels, for many. Two instants and a few counts are the state: tokens that are not late, however many, cost O(1).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from otel_llm.slo.live.columns import (
    ALLOWANCE_NS,
    BY_GAP,
    COUNT,
    DROPS,
    DRY_NS,
    DUE_NS,
    FOLLOWING_NS,
    JUDGED_NS,
    LATE,
    MISSED,
    NEVER,
    ONE_A_TOKEN,
    PACE_NS,
    PASSED,
    READ_FIRST_NS,
    READ_LAST_NS,
    RUNNING_WIDTH,
    STALLED,
    STALLS,
    TBT_NS,
    UNKNOWN,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import SloClass

    Cells = Any
    """Rows whose cell is `rows[slot, column]`: an array in kernels, a memoryview in plain Python."""
    Ints = Any
    """Integers by index: an array in kernels, any sequence in plain Python."""
    Row = Any
    """A row by column: a row of an array in kernels, a `Running` in plain Python."""


class Rows(Protocol):
    """The rows of some streams."""

    @property
    def cells(self) -> memoryview:
        """Return the rows, (S, W) int64."""

    def running_of(self, slot: int) -> Running:
        """Return the running judgement in a row."""

    def set_running(self, slot: int, values: array[int]) -> None:
        """Write the running judgement to a row."""


class OneRow:
    """The row of a stream that is in no table."""

    __slots__ = ("_row", "cells")

    def __init__(self) -> None:
        self._row = memoryview(bytearray(8 * RUNNING_WIDTH)).cast("q")
        self.cells = self._row.cast("B").cast("q", (1, RUNNING_WIDTH))

    def running_of(self, slot: int) -> Running:  # noqa: ARG002  there is one
        """Return the running judgement."""
        return Running._make(self._row.tolist())

    def set_running(self, slot: int, values: array[int]) -> None:  # noqa: ARG002
        """Write the running judgement."""
        self._row[:] = memoryview(values)


def start(rows: Rows, slot: int, slo: SloClass, commit_ns: int, input_tokens: int | None) -> None:
    """Write the row of a stream without tokens."""
    first_due_ns = slo.fluidity.first_deadline_ns(input_tokens)
    values = (
        UNKNOWN if first_due_ns is None else commit_ns + first_due_ns,
        0,
        commit_ns,
        commit_ns,
        commit_ns + slo.start_ns + slo.pace_ns,
        commit_ns - 1,
        *(0, 0, 0, 0, 0),
        commit_ns,
        *columns_of(slo),
    )
    row = array("q", values)
    row[JUDGED_NS] += commit_ns
    rows.set_running(slot, row)


def columns_of(slo: SloClass) -> tuple[int, ...]:
    """Return the columns that are of a class; the first deadline counts from the commit."""
    known = _KNOWN.get(id(slo))  # by identity: hashing a class for every stream is slow
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        deadline = slo.deadline
        watched = deadline.policy in ("dslo", "ttft_tbt")
        known = _KNOWN[id(slo)] = (
            slo,  # a reference, so that the id stays unique
            (
                slo.pace_ns,
                slo.fluidity.tbt_ns,
                int(slo.fluidity.ttft_credit == "drop"),
                int(slo.fluidity.count == "tokens"),
                deadline.next_ns if watched and deadline.next_ns is not None else NEVER,
                int(deadline.policy == "ttft_tbt"),
                deadline.first_ns,
                sum(1 << kind for kind in slo.reads),
            ),
        )
    return known[1]


_MOST_KNOWN: Final = 1024
_KNOWN: Final[dict[int, tuple[SloClass, tuple[int, ...]]]] = {}


# What kernels call, too.


def advance(rows: Cells, slot: int, times_ns: Ints, counts: Ints, begin: int, stop: int, tokens: int) -> None:
    """Apply the events from `begin` to `stop`, which have `tokens` tokens.

    There is at least one event; all are read and sorted, and none is before the last applied one.
    `times_ns`, `counts`: the instant of each event, and its tokens. Only the first token of an event can be late: the
    next deadline and the reader are beyond it then.
    """
    read_on(rows, slot, times_ns, counts, begin, stop, tokens)
    count_misses(rows, slot, times_ns, counts, begin, stop, tokens)
    if rows[slot, FOLLOWING_NS] != NEVER and rows[slot, PASSED] == 0:
        rows[slot, PASSED] = breaks_deadline(rows, slot, times_ns, counts, begin, stop)
    if rows[slot, COUNT] == 0:
        rows[slot, READ_FIRST_NS] = times_ns[begin]
    rows[slot, COUNT] += tokens
    rows[slot, READ_LAST_NS] = times_ns[stop - 1]
    rows[slot, ALLOWANCE_NS] += tokens * rows[slot, PACE_NS]


def read_on(rows: Cells, slot: int, times_ns: Ints, counts: Ints, begin: int, stop: int, tokens: int) -> None:
    """Advance the reading line over events, and count stalls."""
    pace_ns, dry_ns, allowance_ns = rows[slot, PACE_NS], rows[slot, DRY_NS], rows[slot, ALLOWANCE_NS]
    if times_ns[stop - 1] <= dry_ns:  # the reader waits for no token
        rows[slot, DRY_NS] = dry_ns + tokens * pace_ns
        rows[slot, STALLED] = 0
        return
    stalls, stalled = rows[slot, STALLS], rows[slot, STALLED] != 0
    for index in range(begin, stop):
        time_ns = times_ns[index]
        if time_ns > dry_ns:
            stalls += time_ns > allowance_ns and not stalled
            stalled = time_ns > allowance_ns and counts[index] == 1
            dry_ns = time_ns
        else:
            stalled = False
        dry_ns += counts[index] * pace_ns
        allowance_ns += counts[index] * pace_ns
    rows[slot, DRY_NS], rows[slot, STALLS], rows[slot, STALLED] = dry_ns, stalls, stalled


def count_misses(rows: Cells, slot: int, times_ns: Ints, counts: Ints, begin: int, stop: int, tokens: int) -> None:
    """Advance Etalon's deadline over events; count late tokens and missed deadlines."""
    due_ns, tbt_ns = rows[slot, DUE_NS], rows[slot, TBT_NS]
    if due_ns == UNKNOWN:
        return
    # Without the first token's spare time the deadlines start from it, as after a miss.
    drops = rows[slot, DROPS] != 0 and rows[slot, COUNT] == 0
    if times_ns[stop - 1] <= due_ns and not drops:
        rows[slot, DUE_NS] = due_ns + tokens * tbt_ns
        return
    late, missed = rows[slot, LATE], rows[slot, MISSED]
    for index in range(begin, stop):
        time_ns = times_ns[index]
        if time_ns > due_ns:
            late += 1
            missed += 1 + (time_ns - due_ns) // tbt_ns
            due_ns = time_ns
        elif drops and index == begin:
            due_ns = time_ns
        due_ns += counts[index] * tbt_ns
    rows[slot, DUE_NS], rows[slot, LATE], rows[slot, MISSED] = due_ns, late, missed


def breaks_deadline(rows: Cells, slot: int, times_ns: Ints, counts: Ints, begin: int, stop: int) -> bool:
    """Return whether a token is after its deadline, which follows from the token before or from the first deadline."""
    following_ns, due_ns, count = rows[slot, FOLLOWING_NS], rows[slot, JUDGED_NS], rows[slot, COUNT]
    if rows[slot, BY_GAP] == 0:
        due_ns += count * following_ns
        if times_ns[stop - 1] <= due_ns:
            return False
        for index in range(begin, stop):
            if times_ns[index] > due_ns:
                return True
            due_ns += counts[index] * following_ns
        return False
    if count == 0 and times_ns[begin] > due_ns:
        return True
    before_ns = rows[slot, READ_LAST_NS] if count != 0 else times_ns[begin]
    if times_ns[stop - 1] - before_ns <= following_ns:
        return False
    for index in range(begin, stop):
        if times_ns[index] - before_ns > following_ns:
            return True
        before_ns = times_ns[index]
    return False


def read_through_ns(row: Row) -> int:
    """Return when a reader who never waits has read all tokens."""
    end_ns: int = row[READ_FIRST_NS] + row[COUNT] * row[PACE_NS]
    return end_ns


def dry_ns(row: Row) -> int:
    """Return when the reader has no text left; before the first token, when the class expects it to be read."""
    instant_ns: int = row[DRY_NS] if row[COUNT] > 0 else row[ALLOWANCE_NS]
    return instant_ns


def idle_ns(row: Row, x_ns: int) -> int:
    """Return l at an instant not before the last token: max(M_n, x - d_{n+1})."""
    waited_ns: int = max(0, max(row[DRY_NS], x_ns) - row[ALLOWANCE_NS])
    return waited_ns


def misses(row: Row, x_ns: int) -> int:
    """Return the missed deadlines at an instant not before the last token, overdue ones included, if any is known."""
    late_ns = x_ns - row[DUE_NS]
    overdue = 0 if late_ns <= 0 else 1 + late_ns // row[TBT_NS]
    found: int = row[LATE] + min(overdue, 1) if row[ONE_A_TOKEN] != 0 else row[MISSED] + overdue
    return found


def deadlines(row: Row, x_ns: int) -> int:
    """Return the deadlines so far, overdue ones included, if any is known."""
    found: int = row[COUNT] - row[LATE] + misses(row, x_ns)
    return found


UPDATES: Final = (read_on, count_misses, breaks_deadline, advance)
"""The functions by which kernels update rows, in the order in which one needs another."""
FACTS: Final = (read_through_ns, dry_ns, idle_ns, misses, deadlines)
"""The functions by which kernels read rows, in that order."""


def ones(events: int) -> Sequence[int]:
    """Return the counts of `events` events of one token each."""
    return b"\1" * events


class Running(NamedTuple):
    """The running judgement of a stream at its last token: the columns of its row, by name."""

    due_ns: int
    count: int  # type: ignore[assignment]  # it hides a method of tuples
    first_ns: int
    last_ns: int
    allowance_ns: int
    dry_ns: int
    stalls: int
    stalled: int
    late: int
    missed: int
    passed: int
    commit_ns: int
    pace_ns: int
    tbt_ns: int
    drops: int
    one_a_token: int
    following_ns: int
    by_gap: int
    judged_ns: int
    reads: int

    @property
    def unbroken(self) -> bool:
        """Tell whether the reader has never waited since the first token read."""
        return self.count > 0 and self.dry_ns == read_through_ns(self)

    def idle_decode_ns(self, x_ns: int) -> int | None:
        """Return the wait since the first token read, at an instant not before the last; None before the first."""
        if not self.count:
            return None
        return max(self.dry_ns, x_ns) - read_through_ns(self)

    def waiting(self, x_ns: int) -> bool:
        """Tell whether the reader has waited since the last token."""
        return x_ns > max(self.dry_ns, self.allowance_ns)

    def starving(self, x_ns: int) -> bool:
        """Tell whether tokens were read and the runway is negative: the reader has read all and waits for more."""
        return self.count > 0 and self.dry_ns < x_ns

    def deadlines_and_misses(self, x_ns: int | None) -> tuple[int, int] | tuple[None, None]:
        """Return the deadlines and the missed ones, None if they are unknown; with x also those overdue then."""
        if self.due_ns == UNKNOWN:
            return None, None
        x_ns = self.due_ns if x_ns is None else x_ns
        return deadlines(self, x_ns), misses(self, x_ns)

    def line_misses(self, x_ns: int | None, first_due_ns: int | None) -> int | None:
        """Return ceil(M_n / tbt) of the line without resets from the first deadline; with x as if a token arrived then.

        `first_due_ns`: the first token's deadline since the commit.
        """
        if self.due_ns == UNKNOWN or first_due_ns is None:
            return None
        due = self.due_ns if x_ns is None else max(self.due_ns, x_ns)
        return -(-max(0, due - self.commit_ns - first_due_ns - self.count * self.tbt_ns) // self.tbt_ns)

    def deadline_passed(self, x_ns: int | None, slo: SloClass) -> bool:
        """Tell whether the class's policy was broken; with x also by a next token that is missing by then."""
        policy, following, first_due = slo.deadline.policy, slo.deadline.next_ns or 0, self.judged_ns
        if policy == "reading":
            return idle_ns(self, self.commit_ns if x_ns is None else x_ns) > slo.deadline.first_ns
        if policy == "e2e":
            return (self.last_ns if x_ns is None else x_ns) > first_due
        if not self.count:
            return x_ns is not None and x_ns > first_due
        if policy == "ttft_tpot":
            return self.first_ns > first_due or self.last_ns > self.first_ns + (self.count - 1) * following
        next_due = first_due + self.count * following if policy == "dslo" else self.last_ns + following
        return bool(self.passed) or (x_ns is not None and x_ns > next_due)
