"""One recorded request judged by its class, written to be read beside the papers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from otel_llm.slo.classes import ABORTED, CONTENT, OUTCOMES, SloClass
from otel_llm.slo.quantiles import P50, P99, nearest_rank
from otel_llm.slo.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import Fluidity


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Sorted arrival times in ns since the commit: `every` token, those `read`, and how many were `skewed`."""

    every: list[int]
    read: list[int]
    skewed: int


def judge(
    tokens_ns: Sequence[int],
    commit_ns: int,
    end_ns: int,
    outcome: str,
    slo: SloClass,
    kinds: Sequence[int] | None = None,
    input_tokens: int | None = None,
) -> Verdict:
    """Judge one recorded request that was seen completely.

    `tokens_ns`: arrival times on any one clock, in any order, a chunk of k tokens as k equal times; `commit_ns` and
    `end_ns` on the same clock; `kinds`: a kind code a token, None if all is content; `input_tokens` is needed only
    if the class has a first-token curve.

    Raises:
        ValueError: an unknown outcome, or kinds of another length.
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
    seen = arrivals(tokens_ns, commit_ns, kinds, slo.reads)
    every, read = seen.every, seen.read
    end = max(end_ns - commit_ns, every[-1] if every else 0)
    e2e = None if outcome == "lost" else end
    gaps = sorted(after - before for before, after in pairwise(every))
    judged = outcome != "completed" or bool(read)
    # Only an end other than completion leaves the reader waiting for the next token.
    waited_to = None if outcome == "completed" else end
    idle = waits(read, slo.start_ns + slo.pace_ns, slo.pace_ns, waited_to)[-1]
    decode = None
    if read:
        since_first = [time - read[0] for time in read]
        decode = waits(since_first, 0, slo.pace_ns, None if waited_to is None else end - read[0])[-1]
    aborted = slo.benefit.abort_penalty if outcome in ABORTED else 0.0
    misses, late, line_misses = None, 0, None
    first_due = slo.fluidity.first_deadline_ns(input_tokens)
    if first_due is not None and judged:
        misses, late = fluidity_misses(read, waited_to, first_due, slo.fluidity)
        line = waits(read, first_due, slo.fluidity.tbt_ns, waited_to)[-1]
        line_misses = -(-line // slo.fluidity.tbt_ns)
    return Verdict(
        outcome=outcome,
        tokens=len(every),
        tokens_read=len(read),
        skewed=seen.skewed,
        end_ns=end,
        e2e_ns=e2e,
        ttft_ns=every[0] if every else None,
        ttfo_ns=read[0] if read else None,
        span_ns=every[-1] - every[0] if every else None,
        tbt_p50_ns=nearest_rank(gaps, P50),
        tbt_p99_ns=nearest_rank(gaps, P99),
        tbt_max_ns=gaps[-1] if gaps else None,
        judged=judged,
        idle_ns=idle if judged else None,
        idle_decode_ns=decode,
        stalls=len(_stall_spans(read, waited_to, slo)) if judged else None,
        deadlines=None if misses is None else len(read) - late + misses,
        deadline_misses=misses,
        line_misses=line_misses,
        met=met_given(outcome, passed=_deadline_passed(read, waited_to, slo)) if judged else None,
        abort_penalty=aborted,
        benefit=benefit(len(read), idle, aborted, slo) if judged else None,
    )


def arrivals(tokens_ns: Sequence[int], commit_ns: int, kinds: Sequence[int] | None, reads: tuple[int, ...]) -> Arrivals:
    """Sort the tokens and select those that are read; a token before the commit counts as at the commit."""
    if kinds is None:
        kinds = (CONTENT,) * len(tokens_ns)
    pairs = sorted(zip(tokens_ns, kinds, strict=True))
    every = [max(0, time - commit_ns) for time, _ in pairs]
    read = [max(0, time - commit_ns) for time, kind in pairs if kind in reads]
    return Arrivals(every, read, sum(time < commit_ns for time, _ in pairs))


def waits(read: Sequence[int], first_due_ns: int, pace_ns: int, waited_to_ns: int | None) -> list[int]:
    """Return M_0 = 0, M_1 .. M_n: how long the reader of the line d_i = A + (i-1) P has waited in all, in ns.

    A is `first_due_ns`, P `pace_ns`. With `waited_to_ns` one more follows, as if token n+1 had arrived then. Waiting is
    never made good: the values do not fall. (Wang et al., equations 5 and 9, with their maximum clipped at 0.)
    """
    waited = [0]
    due = first_due_ns
    for time in read if waited_to_ns is None else [*read, waited_to_ns]:
        waited.append(max(waited[-1], time - due))
        due += pace_ns
    return waited


def fluidity_misses(
    read: Sequence[int], waited_to_ns: int | None, first_due_ns: int, fluidity: Fluidity
) -> tuple[int, int]:
    """Return missed deadlines and late tokens (Etalon, section 4.1); the tokens that are not late are the met ones.

    Early time is banked as slack. A late token misses every deadline that passed while it was awaited, and the
    deadlines restart from it. An end other than completion adds the deadlines passed before it, never a met one.
    """
    slack = missed = late = previous = 0
    tbt = fluidity.tbt_ns
    for index, time in enumerate(read):
        target = first_due_ns if index == 0 else tbt
        gap, previous = time - previous, time
        if gap <= target + slack:
            slack += target - gap
        else:
            late += 1
            missed += 1 if fluidity.count == "tokens" else 1 + (gap - slack - target) // tbt
            slack = 0
        if index == 0 and fluidity.ttft_credit == "drop":
            slack = 0
    if waited_to_ns is not None:
        target = tbt if read else first_due_ns
        gap = waited_to_ns - previous
        if gap > target + slack:
            missed += 1 if fluidity.count == "tokens" else 1 + (gap - slack - target) // tbt
    return missed, late


def met_given(outcome: str, *, passed: bool) -> bool | None:
    """Return whether a request is met, by whether a deadline passed; None: not all deadlines were due yet."""
    if outcome in ABORTED or passed:
        return False
    return True if outcome == "completed" else None


def _deadline_passed(read: Sequence[int], waited_to_ns: int | None, slo: SloClass) -> bool:
    policy, first, following = slo.deadline.policy, slo.deadline.first_ns, slo.deadline.next_ns or 0
    # An end other than completion counts against the next deadline, as if the next token had arrived then.
    times = list(read) if waited_to_ns is None else [*read, waited_to_ns]
    if policy == "reading":  # d_i = start + max_idle + i P, that is l <= max_idle
        return waits(read, slo.start_ns + slo.pace_ns, slo.pace_ns, waited_to_ns)[-1] > first
    if policy == "dslo":  # PolyServe, section 4.6
        return waits(read, first, following, waited_to_ns)[-1] > 0
    if policy == "e2e":
        return any(time > first for time in times)
    if any(time > first for time in times[:1]):
        return True
    if policy == "ttft_tbt":
        return any(after - before > following for before, after in pairwise(times))
    return bool(read) and read[-1] > read[0] + (len(read) - 1) * following


def benefit(tokens_read: int, idle_ns: int, abort_penalty: float, slo: SloClass) -> float:
    """Return n - alpha f(l) - abort penalty, in tokens (Wang et al., equation 10), rounded once."""
    return math.fsum((tokens_read, -slo.benefit.penalty_tokens(idle_ns), -abort_penalty))


def stalls(
    tokens_ns: Sequence[int],
    commit_ns: int,
    end_ns: int,
    outcome: str,
    slo: SloClass,
    kinds: Sequence[int] | None = None,
) -> list[tuple[int, int]]:
    """Return the reader's stalls: (start, end) in ns since the commit, in order; the lengths add up to l.

    A wait ends with its token; waits before consecutive tokens are one stall, which begins as long before the last of
    them as they add up to. Empty if nothing is judged.
    """
    seen = arrivals(tokens_ns, commit_ns, kinds, slo.reads)
    end = max(end_ns - commit_ns, seen.every[-1] if seen.every else 0)
    return _stall_spans(seen.read, None if outcome == "completed" else end, slo)


def _stall_spans(read: Sequence[int], waited_to_ns: int | None, slo: SloClass) -> list[tuple[int, int]]:
    waited = waits(read, slo.start_ns + slo.pace_ns, slo.pace_ns, waited_to_ns)
    times = read if waited_to_ns is None else [*read, waited_to_ns]
    spans: list[tuple[int, int]] = []
    running = False
    for time, (before, after) in zip(times, pairwise(waited), strict=True):
        wait = after - before
        if wait and running:
            start, stop = spans.pop()
            spans.append((time - (stop - start) - wait, time))
        elif wait:
            spans.append((time - wait, time))
        running = wait > 0
    return spans
