"""Judge many recorded requests at once: the verdicts of `judge`, from arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.slo.batch.judged import COMPLETED, Judged
from otel_llm.slo.batch.ragged import block_of, by_class
from otel_llm.slo.batch.running_maxima import gap_ranks, line_maxima, maxima_candidates
from otel_llm.slo.classes import ABORTED, EXPONENTIAL_CAP_S, OUTCOMES
from otel_llm.slo.request import judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_llm.slo.batch.gap_counts import GapCounting
    from otel_llm.slo.batch.judged import Bools, Floats, Ints
    from otel_llm.slo.batch.ragged import Ragged
    from otel_llm.slo.batch.recorded import Recorded
    from otel_llm.slo.classes import Fluidity, Penalty, SloClass
    from otel_llm.slo.fluid.fluid_search import FluidTargets
    from otel_llm.slo.verdict import Verdict

_ABORTED_CODES = [OUTCOMES.index(outcome) for outcome in sorted(ABORTED)]
_ROOM = 2**61  # a sum of a few such numbers fits 64 bits


def judge_many(
    requests: Recorded,
    classes: Sequence[SloClass],
    class_index: NDArray[np.integer] | None = None,
    fluid: FluidTargets | None = None,
    *,
    gaps: GapCounting | None = None,
    block_tokens: int | None = None,
) -> Judged:
    """Judge every request by its class, exactly as `judge` does; return the verdicts, (R,) each.

    `class_index` (R,) int64: positions in `classes`; None if all are judged by the first. `fluid` gets the read
    tokens of each request on the way, which is cheaper than reading them again for `fluid_tbt_many`; `gaps` gets all
    tokens of each. The work is done in blocks of one class that fit the cache, or of `block_tokens`; a block with a
    time or a threshold so large that sums could leave 64 bits is judged request by request.

    Raises:
        ValueError: an index that is no position.
        OverflowError: a length beyond 64 bits (292 years).
    """
    out = Judged.empty(len(requests))
    out.outcome[:] = requests.outcomes
    for slo, which in by_class(requests, classes, class_index, block_tokens):
        if not _judge_block(requests, which, slo, out, fluid, gaps):
            for index in which.tolist():
                out.put(index, _judge_one(requests, index, slo))
    return out


def _judge_one(requests: Recorded, index: int, slo: SloClass) -> Verdict:
    tokens = slice(int(requests.offsets[index]), int(requests.offsets[index + 1]))
    return judge(
        requests.tokens_ns[tokens].tolist(),
        int(requests.commit_ns[index]),
        int(requests.end_ns[index]),
        OUTCOMES[requests.outcomes[index]],
        slo,
        None if requests.kinds is None else requests.kinds[tokens].tolist(),
        _prompt(requests, index),
    )


def _prompt(requests: Recorded, index: int) -> int | None:
    prompts = requests.input_tokens
    return int(prompts.values[index]) if prompts is not None and prompts.known[index] else None


def _judge_block(
    requests: Recorded,
    which: Ints,
    slo: SloClass,
    out: Judged,
    fluid: FluidTargets | None,
    gaps: GapCounting | None,
) -> bool:
    """Write the verdicts on the requests `which` (P,) of one class; False, writing none, if sums may overflow."""
    commit = requests.commit_ns[which]
    end = np.maximum(requests.end_ns[which], commit)
    block = block_of(requests, which)
    every, some = block.every, block.some
    read, reading = block.read(slo.reads)
    if fluid is not None and read is not None:
        fluid.add(slo, which[reading], read)
    if gaps is not None and every is not None:
        gaps.add(which[some], every)
    if every is not None:
        end[some] = np.maximum(end[some], every.last)
    known, first_due = _first_due(requests, which, slo)
    if not _fits(every, commit, end, first_due, slo):
        return False
    if every is not None:
        at = which[some]
        out.tokens[at] = every.lengths
        out.skewed[at] = block.skewed
        out.ttft_ns[at] = every.first - commit[some]
        out.span_ns[at] = every.last - every.first
        out.tbt_p50_ns[at], out.tbt_p99_ns[at], out.tbt_max_ns[at] = gap_ranks(every)
    state = runs(read, reading, commit, commit + first_due, slo)
    _conclude(which, end, known, state, slo, out)
    return True


def _conclude(which: Ints, end: Ints, due_known: Bools, state: Runs, slo: SloClass, out: Judged) -> None:
    outcome = out.outcome[which]
    # Only an end other than completion leaves the reader waiting for the next token.
    waits = outcome != COMPLETED
    judged = waits | (state.count > 0)
    dry = state.dry_at(end, waits)
    idle = np.where(judged, np.maximum(0, dry - state.allowance), 0)
    waiting = waits & ~state.stalled & (end > np.maximum(state.dry, state.allowance))
    misses = state.misses(end, waits, slo.fluidity)
    passed = state.deadline_passed(end, waits, idle, slo)
    aborted = np.isin(outcome, _ABORTED_CODES)
    out.tokens_read[which] = state.count
    out.end_ns[which] = end - state.commit
    out.ttfo_ns[which] = state.first - state.commit
    out.judged[which] = judged
    out.idle_ns[which] = idle
    out.idle_decode_ns[which] = dry - state.first - state.count * slo.pace_ns
    out.stalls[which] = state.stalls + waiting
    out.fluid[which] = judged & due_known
    out.deadlines[which] = state.count - state.late + misses
    out.deadline_misses[which] = misses
    out.line_misses[which] = state.line_misses(end, waits, slo.fluidity.tbt_ns)
    out.met[which] = ~aborted & ~passed
    out.met_known[which] = judged & (aborted | passed | ~waits)
    out.abort_penalty[which] = abort_penalty = np.where(aborted, slo.benefit.abort_penalty, 0.0)
    out.benefit[which] = _benefit(state.count, idle, abort_penalty, slo)


def penalties(idle: Ints, slo: SloClass) -> Floats:
    """Return the cost (R,) of idle times (R,) ns, in tokens: `Benefit.penalty_tokens` of each."""
    costs: Floats = slo.benefit.alpha * penalty_shape(idle / 1e9, slo.benefit.penalty)
    return costs


def penalty_shape(idle_s: Floats, penalty: Penalty) -> Floats:
    """Return f(l) of idle times in seconds (R,), to the bit as `Benefit.penalty_tokens` has it."""
    if penalty == "linear":
        return idle_s
    if penalty == "quadratic":
        return idle_s * idle_s
    shape = np.zeros_like(idle_s)
    waited = np.flatnonzero(idle_s)
    # numpy's expm1 may differ from the C library's in the last bit.
    shape[waited] = [math.expm1(min(value, EXPONENTIAL_CAP_S)) for value in idle_s[waited].tolist()]
    return shape


def _benefit(count: Ints, idle: Ints, abort_penalty: Floats, slo: SloClass) -> Floats:
    penalty = penalties(idle, slo)
    result: Floats = count - penalty
    for index in np.flatnonzero(abort_penalty).tolist():
        result[index] = math.fsum((int(count[index]), -penalty[index], -abort_penalty[index]))
    return result


def _first_due(requests: Recorded, which: Ints, slo: SloClass) -> tuple[Bools, Ints]:
    """Return whether the first token's deadline is known (P,) bool, and its time since the commit (P,) ns."""
    if isinstance(slo.fluidity.ttft, int):
        return np.ones(len(which), np.bool_), np.full(len(which), slo.fluidity.ttft + slo.fluidity.slack_ns)
    due = [slo.fluidity.first_deadline_ns(_prompt(requests, index)) for index in which.tolist()]
    return np.array([value is not None for value in due], np.bool_), np.array([value or 0 for value in due], np.int64)


def _fits(every: Ragged | None, commit: Ints, end: Ints, first_due: Ints, slo: SloClass) -> bool:
    """Tell whether no sum over this block can leave 64 bits."""
    longest = 0 if every is None else int(every.lengths.max())
    low, high = int(commit.min()), int(end.max())
    steps = (longest + 1) * max(slo.pace_ns, slo.fluidity.tbt_ns, slo.deadline.next_ns or 0)
    offsets = slo.start_ns + int(first_due.max(initial=0)) + slo.deadline.first_ns
    reach = max(abs(low), abs(high)) + steps + offsets
    waits = float(np.sum(end.astype(np.float64) - commit))
    return reach < _ROOM and waits < _ROOM


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
