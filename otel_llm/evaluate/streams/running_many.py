"""The running judgement of many streams: a row for each stream, updated by the kernel of `otel_llm.core.streams`."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from otel_llm.core import stream_columns
from otel_llm.core.stream_columns import COMMIT_NS, DUE_NS, NEVER, RUNNING, RUNNING_END, UNKNOWN
from otel_llm.evaluate.streams.column_views import ColumnViews

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.live.running import Running

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

_MOVING: Final = (
    "count", "first_ns", "last_ns", "allowance_ns", "dry_ns", "stalls", "stalled", "late", "missed", "passed",
)  # fmt: skip
_FIXED: Final = (
    "commit_ns", "pace_ns", "tbt_ns", "drops", "one_a_token", "following_ns", "by_gap", "judged_ns", "reads",
)  # fmt: skip
_COLUMNS: Final = ("due_ns", *_MOVING, *_FIXED)
_READ: Final = {"first_ns": stream_columns.READ_FIRST_NS, "last_ns": stream_columns.READ_LAST_NS}
"""The plain names are those of the first and the last of all tokens, read or not."""


class RunningMany(ColumnViews):
    """The running judgements of many streams: columns, (R,) int64, with instants in ns of each stream's clock.

    The columns are those of `Running`; `due_ns` is UNKNOWN for its None. All are views of one matrix, (R, WIDTH) int64,
    whose columns `otel_llm.core.stream_columns` describes.
    """

    __slots__ = (*_COLUMNS, "_classes")
    PLACES: ClassVar = {name: getattr(stream_columns, name.upper()) for name in _COLUMNS} | _READ
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
        """Write the state of a stream to its row."""
        self.rows[row, RUNNING:RUNNING_END] = self._row(running, slo)

    def store_many(self, rows: Ints, streams: Iterable[tuple[Running, SloClass]]) -> None:
        """Write the states of many streams to their rows, (N,) int64."""
        found = [self._row(running, slo) for running, slo in streams]
        if found:
            self.rows[rows, RUNNING:RUNNING_END] = found

    def _row(self, running: Running, slo: SloClass) -> tuple[int, ...]:
        due_ns = UNKNOWN if running.due_ns is None else running.due_ns
        first_ns, *fixed = self._of(slo)
        fixed[_JUDGED_AT] = running.commit_ns + first_ns
        return (due_ns, *_moving(running), running.commit_ns, *fixed)

    def _of(self, slo: SloClass) -> tuple[int, ...]:
        known = self._classes.get(id(slo))  # by identity: hashing a class for every stream is slow
        if known is None:
            known = self._classes[id(slo)] = slo, _of_class(slo)
        return known[1]

    def load(self, row: int, running: Running) -> None:
        """Read the state of a stream from its row."""
        (
            due_ns, running.count, running.first_ns, running.last_ns, running.allowance_ns, running.dry_ns,
            running.stalls, stalled, running.late, running.missed, passed,
        ) = self.rows[row, DUE_NS:COMMIT_NS].tolist()  # fmt: skip
        running.due_ns = None if due_ns == UNKNOWN else due_ns
        running.stalled, running.passed = bool(stalled), bool(passed)

    def idle_ns(self, rows: Ints, x_ns: Ints) -> Ints:
        """Return the idle time (l of the paper), (N,) ns, at instants `x_ns` not before each last token."""
        return np.maximum(0, np.maximum(self.dry_ns[rows], x_ns) - self.allowance_ns[rows])

    def unbroken(self, rows: Ints) -> Bools:
        """Return whether the reader of each stream has not waited since the first token read, (N,)."""
        found: Bools = self.dry_ns[rows] == self.first_ns[rows] + self.count[rows] * self.pace_ns[rows]
        return found & (self.count[rows] > 0)

    def runway_ns(self, rows: Ints, x_ns: Ints) -> Ints:
        """Return the runway at instants `x_ns`, (N,) ns: the reading time of unread text; below 0 the reader waits."""
        until: Ints = np.where(self.count[rows] > 0, self.dry_ns[rows], self.allowance_ns[rows])
        return until - x_ns


_moving = attrgetter(*_MOVING)
_JUDGED_AT: Final = _FIXED.index("judged_ns") - 1


def _of_class(slo: SloClass) -> tuple[int, ...]:
    """Return the first deadline of a class (ns), then its values of the columns after `commit_ns`."""
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
