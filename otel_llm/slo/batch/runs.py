"""The array form of `Running`: the state after the read tokens, for the requests of one block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.batch.running_maxima import line_maxima, maxima_candidates

if TYPE_CHECKING:
    from otel_llm.slo.batch.judged import Bools, Ints
    from otel_llm.slo.batch.ragged import Ragged
    from otel_llm.slo.classes import Fluidity, SloClass


@dataclass(frozen=True, slots=True)
class Runs:
    """The fields of Running for P requests of one class, each array (P,); instants in ns."""

    count: Ints
    commit: Ints
    first: Ints
    last: Ints
    allowance: Ints
    dry: Ints
    stalls: Ints
    stalled: Bools
    first_due: Ints
    due: Ints
    late: Ints
    missed: Ints
    passed: Bools

    def dry_at(self, end: Ints, waits: Bools) -> Ints:
        """Return when the reader ran out of text (P,), for readers that wait (`waits`) at `end` not before that."""
        return np.where(waits, np.maximum(self.dry, end), self.dry)

    def misses(self, end: Ints, waits: Bools, fluidity: Fluidity) -> Ints:
        """Return the missed deadlines (P,), with those overdue at the end for readers that wait."""
        overdue = np.where(waits & (end > self.due), 1 + (end - self.due) // fluidity.tbt_ns, 0)
        return self.late + (overdue > 0) if fluidity.count == "tokens" else self.missed + overdue

    def line_misses(self, end: Ints, waits: Bools, tbt_ns: int) -> Ints:
        """Return ceil(M_n / tbt) (P,) of the line without resets."""
        due = np.where(waits, np.maximum(self.due, end), self.due)
        waited = np.maximum(0, due - self.first_due - self.count * tbt_ns)
        misses: Ints = -(-waited // tbt_ns)
        return misses

    def deadline_passed(self, end: Ints, waits: Bools, idle: Ints, slo: SloClass) -> Bools:
        """Tell where (P,) the class's policy was broken, by a token or by the wait to the end."""
        policy, following = slo.deadline.policy, slo.deadline.next_ns or 0
        first_due = self.commit + slo.deadline.first_ns
        if policy == "reading":
            return idle > slo.deadline.first_ns
        if policy == "e2e":
            return np.where(waits, end, self.last) > first_due
        if policy == "ttft_tpot":
            broken = (self.first > first_due) | (self.last > self.first + (self.count - 1) * following)
            return np.where(self.count > 0, broken, waits & (end > first_due))
        next_due = first_due + self.count * following if policy == "dslo" else self.last + following
        return self.passed | (waits & (end > np.where(self.count > 0, next_due, first_due)))


def runs(read: Ragged | None, which: Ints, commit: Ints, first_due: Ints, slo: SloClass) -> Runs:
    """Return the state after all read tokens; `read` holds the requests `which` of P, the others have none.

    `commit`, `first_due` (P,): instants in ns, the latter with slack.
    """
    size, pace, tbt = len(commit), slo.pace_ns, slo.fluidity.tbt_ns
    state = Runs(
        count=np.zeros(size, np.int64),
        commit=commit,
        first=commit.copy(),
        last=commit.copy(),
        allowance=commit + (slo.start_ns + pace),
        dry=commit - 1,
        stalls=np.zeros(size, np.int64),
        stalled=np.zeros(size, np.bool_),
        first_due=first_due,
        due=first_due.copy(),
        late=np.zeros(size, np.int64),
        missed=np.zeros(size, np.int64),
        passed=np.zeros(size, np.bool_),
    )
    if read is None:
        return state
    count = read.lengths
    state.count[which] = count
    state.first[which] = first = read.first
    state.last[which] = read.last
    token = maxima_candidates(read, min(pace, tbt))
    waited = line_maxima(read, token, pace, state.allowance[which])
    state.dry[which] = waited.peak + count * pace
    state.allowance[which] += count * pace
    # Consecutive tokens that each end a wait end one stall.
    some = np.diff(waited.bounds) > 0
    begins = np.diff(waited.entry, prepend=-1) != 1
    begins[waited.bounds[:-1][some]] = True
    state.stalls[which] = waited.sums(begins)
    state.stalled[which[some]] = waited.entry[waited.bounds[1:][some] - 1] == (read.starts + count - 1)[some]

    drops = slo.fluidity.ttft_credit == "drop"
    due = first_due[which]
    anchor = first if drops else due
    missing = line_maxima(read, token, tbt, anchor)
    late = np.diff(missing.bounds)
    missed = missing.sums(1 + missing.height // tbt)
    if drops:
        late += first > due
        missed += np.where(first > due, 1 + (first - due) // tbt, 0)
    state.late[which], state.missed[which] = late, missed
    state.due[which] = np.maximum(anchor, missing.peak) + count * tbt
    state.passed[which] = _broken(read, commit[which] + slo.deadline.first_ns, slo)
    return state


def _broken(read: Ragged, first_due: Ints, slo: SloClass) -> Bools:
    """Tell where (P,) a token missed its deadline under `dslo` or `ttft_tbt`."""
    following = slo.deadline.next_ns or 0
    if slo.deadline.policy == "dslo":
        return line_maxima(read, maxima_candidates(read, following), following, first_due).peak > first_due
    if slo.deadline.policy == "ttft_tbt":
        return (read.first > first_due) | (read.longest > following)
    return np.zeros(len(first_due), np.bool_)
