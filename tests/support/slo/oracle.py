"""A naive judge, written from the metrics page without a thought for speed: instants are enumerated.

It shares no code with the package but the class definitions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

from otel_llm.slo.classes import Curve, SloClass

Exact = Fraction | int | float | bool | None
S = 10**9


def judged(
    tokens_ns: list[int],
    commit_ns: int,
    end_ns: int,
    outcome: str,
    slo: SloClass,
    kinds: list[int] | None,
    input_tokens: int | None,
) -> dict[str, Exact]:
    """Return every column of a row that is computed from times, exactly (the exponential penalty but for rounding)."""
    kinds = [0] * len(tokens_ns) if kinds is None else kinds
    every = sorted(max(0, time - commit_ns) for time in tokens_ns)
    read = sorted(max(0, time - commit_ns) for time, kind in zip(tokens_ns, kinds, strict=True) if kind in slo.reads)
    end = max([end_ns - commit_ns, 0, *every])
    completed = outcome == "completed"
    gaps = [after - before for before, after in pairwise(every)]
    row: dict[str, Exact] = {
        "tokens": len(every),
        "tokens_read": len(read),
        "ttft_s": Fraction(every[0], S) if every else None,
        "ttfo_s": Fraction(read[0], S) if read else None,
        "e2e_s": None if outcome == "lost" else Fraction(end, S),
        "normalized_latency_s": None if outcome == "lost" or not every else Fraction(end, S * len(every)),
        "tpot_s": Fraction(every[-1] - every[0], S * (len(every) - 1)) if gaps else None,
        "tbt_p50_s": _least_of_share(gaps, Fraction(1, 2)),
        "tbt_p99_s": _least_of_share(gaps, Fraction(99, 100)),
        "tbt_max_s": Fraction(max(gaps), S) if gaps else None,
    }
    if completed and not read:
        return row | dict.fromkeys(
            ("idle_s", "idle_decode_s", "stalls", "deadlines", "deadline_misses", "fluidity_index", "fluidity_line",
             "met", "benefit")
        )  # fmt: skip
    arrivals = read if completed else [*read, end]
    idle = waited(arrivals, slo.start_ns + slo.pace_ns, slo.pace_ns)
    row["idle_s"] = Fraction(idle, S)
    row["idle_decode_s"] = None
    if read:
        row["idle_decode_s"] = Fraction(waited([time - read[0] for time in arrivals], 0, slo.pace_ns), S)
    row["stalls"] = _stalls(arrivals, slo)
    row |= _fluidity(read, None if completed else end, slo, input_tokens)
    row["met"] = _met(read, None if completed else end, outcome, slo, idle)
    aborted = Fraction(slo.benefit.abort_penalty) if outcome in ("error", "disconnected") else 0
    row["benefit"] = len(read) - _penalty(idle, slo) - aborted
    return row


def waited(arrivals: list[int], first_due: int, pace: int) -> int:
    """Return M_n: the greatest lateness on the line d_i = A + (i-1) P, 0 if none was late."""
    return max([0, *(time - (first_due + i * pace) for i, time in enumerate(arrivals))])


def in_flight(
    tokens_ns: list[int],
    commit_ns: int,
    x_ns: int,
    slo: SloClass,
    kinds: list[int] | None,
    input_tokens: int | None,
) -> dict[str, Exact]:
    """Return the facts of a stream at x, if no token is later than x."""
    kinds = [0] * len(tokens_ns) if kinds is None else kinds
    every = sorted(max(0, time - commit_ns) for time in tokens_ns)
    read = sorted(max(0, time - commit_ns) for time, kind in zip(tokens_ns, kinds, strict=True) if kind in slo.reads)
    x = x_ns - commit_ns
    pace = slo.pace_ns
    decode = waited([time - read[0] for time in [*read, x]], 0, pace) if read else 0
    decode_so_far = waited([time - read[0] for time in read], 0, pace) if read else 0
    fluidity = _fluidity(read, x, slo, input_tokens)
    return {
        "tokens": len(every),
        "tokens_read": len(read),
        "age_ns": x,
        "ttft_ns": every[0] if every else None,
        "gap_ns": x - (every[-1] if every else 0),
        "idle_ns": waited([*read, x], slo.start_ns + pace, pace),
        "idle_decode_ns": decode,
        "runway_ns": read[0] + len(read) * pace + decode_so_far - x if read else slo.start_ns + pace - x,
        "rate_tokens_per_second": (
            Fraction((len(read) - 1) * S, read[-1] - read[0]) if len(read) > 1 and read[-1] > read[0] else None
        ),
        "deadlines": fluidity["deadlines"],
        "deadline_misses": fluidity["deadline_misses"],
        "fluidity_index": fluidity["fluidity_index"],
    }


def smallest_fluid_tbt(read: list[int], fluidity: Fraction) -> int | None:
    """Return the smallest TBT target that keeps the fluidity-index, found by trying every one."""
    if len(read) < 2:
        return None
    tbt = 1
    while True:
        met, missed, _ = _deadlines(read, read[0], tbt, drops=True)
        if Fraction(met - 1, met - 1 + missed) >= fluidity:
            return tbt
        tbt += 1


def _least_of_share(values: list[int], share: Fraction) -> Fraction | None:
    for value in sorted(values):
        if Fraction(sum(other <= value for other in values), len(values)) >= share:
            return Fraction(value, S)
    return None


def _stalls(arrivals: list[int], slo: SloClass) -> int:
    stops = []
    for i in range(len(arrivals)):
        before = waited(arrivals[:i], slo.start_ns + slo.pace_ns, slo.pace_ns)
        after = waited(arrivals[: i + 1], slo.start_ns + slo.pace_ns, slo.pace_ns)
        stops.append(after > before)
    return sum(stop and not (i and stops[i - 1]) for i, stop in enumerate(stops))


def _deadlines(read: list[int], first_due: int, tbt: int, *, drops: bool) -> tuple[int, int, int]:
    """Return deadlines met, missed, and the next: every deadline up to a late token is looked at."""
    met = missed = 0
    due = first_due
    for i, time in enumerate(read):
        if time <= due:
            met += 1
            due = time if drops and i == 0 else due
        else:
            while due <= time:
                missed += 1
                due += tbt
            due = time
        due += tbt
    return met, missed, due


def _fluidity(read: list[int], end: int | None, slo: SloClass, input_tokens: int | None) -> dict[str, Exact]:
    names = ("deadlines", "deadline_misses", "fluidity_index", "fluidity_line")
    target = _first_target(slo, input_tokens)
    if target is None:
        return dict.fromkeys(names)
    first_due, tbt = target + slo.fluidity.slack_ns, slo.fluidity.tbt_ns
    met, missed, due = _deadlines(read, first_due, tbt, drops=slo.fluidity.ttft_credit == "drop")
    if slo.fluidity.count == "tokens":
        missed = len(read) - met
    if end is not None and end > due:
        overdue = 0
        while due <= end:
            overdue += 1
            due += tbt
        missed += 1 if slo.fluidity.count == "tokens" else overdue
    late = math.ceil(Fraction(waited(read if end is None else [*read, end], first_due, tbt), tbt))
    return {
        "deadlines": met + missed,
        "deadline_misses": missed,
        "fluidity_index": Fraction(met, met + missed) if met + missed else None,
        "fluidity_line": Fraction(len(read), len(read) + late) if read or late else None,
    }


def _first_target(slo: SloClass, input_tokens: int | None) -> int | None:
    ttft = slo.fluidity.ttft
    if not isinstance(ttft, Curve):
        return ttft
    if input_tokens is None:
        return None
    points = ttft.points
    if input_tokens <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= input_tokens <= x1:
            return round(y0 + Fraction((input_tokens - x0) * (y1 - y0), x1 - x0))
    return points[-1][1]


def _met(read: list[int], end: int | None, outcome: str, slo: SloClass, idle: int) -> bool | None:
    policy, first, following = slo.deadline.policy, slo.deadline.first_ns, slo.deadline.next_ns or 0
    n = len(read)
    due: list[int]  # of tokens 1..n and, for an end that is no completion, of the one that should have come next
    if policy == "dslo":
        due = [first + i * following for i in range(n + 1)]
    elif policy == "ttft_tbt":
        due = [first, *(time + following for time in read)]
    elif policy == "e2e":
        due = [first] * (n + 1)
    elif policy == "ttft_tpot":
        due = [first] + [math.inf] * n  # type: ignore[list-item]
        if n > 1:
            due[n - 1] = read[0] + (n - 1) * following
    else:
        due = [slo.start_ns + first + (i + 1) * slo.pace_ns for i in range(n + 1)]
        assert (idle > first) == any(t > d for t, d in zip([*read, *([] if end is None else [end])], due, strict=False))
    arrivals = read if end is None else [*read, end]
    if outcome in ("error", "disconnected") or any(t > d for t, d in zip(arrivals, due, strict=False)):
        return False
    return True if outcome == "completed" else None


def _penalty(idle: int, slo: SloClass) -> Fraction:
    alpha, seconds = Fraction(slo.benefit.alpha), Fraction(idle, S)
    if slo.benefit.penalty == "linear":
        return alpha * seconds
    if slo.benefit.penalty == "quadratic":
        return alpha * seconds**2
    return alpha * (Fraction(math.exp(min(float(seconds), 60.0))) - 1)
