"""The running judgement of many streams: a row for each stream, updated by the kernel of `otel_llm.core.streams`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from otel_llm.evaluate.streams.column_views import ColumnViews
from otel_llm.slo.live.running import Running

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

_COLUMNS: Final = Running._fields


class RunningMany(ColumnViews):
    """The running judgements of many streams: columns, (R,) int64, with instants in ns of each stream's clock.

    The columns are those of `Running`. All are views of one matrix, (R, WIDTH) int64, whose columns
    `otel_llm.core.stream_columns` describes.
    """

    __slots__ = _COLUMNS
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
