"""Recorded requests to the rows of `--windows`: the live evaluator's ledger, run over each whole record.

Windows are event time, [k w, (k+1) w) since the unix epoch, one row for each SLO class, model, instance and
measured_at that something happened in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from otel_llm.slo.classes import CONTENT
from otel_llm.slo.ledger import MOST_WINDOWS, NOTHING, Ledger
from otel_llm.slo.request import arrivals
from otel_llm.slo.windows import WindowTotals, window_start

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from otel_llm.audit.result import Judged
    from otel_llm.readers.rows import Row


class Group(NamedTuple):
    """What the windows are told apart by."""

    slo_class: str
    model: str | None
    instance: str | None
    measured_at: str


def window_rows(judged: Iterable[Judged], window_ns: int, lateness_ns: int, counts: Counter[str]) -> list[Row]:
    """Return the rows in order of window, class, model, instance and measured_at (null last).

    Spans of others that do not say when tokens arrived are in no window. `counts` gets `shifted`, the streams whose
    clock was off by more than `lateness_ns`, and `not_spread`, those that lasted more than MOST_WINDOWS windows.
    """
    totals: dict[tuple[int, Group], WindowTotals] = {}
    for one in judged:
        if one.assembled.resolved.foreign is None or one.assembled.times_ns:
            _add(one, window_ns, lateness_ns, totals, counts)
    keys = sorted(totals, key=lambda key: (key[0], *(_null_last(name) for name in key[1])))
    return [totals[start, group].row(start, window_ns, group._asdict()) for start, group in keys]


def _add(
    one: Judged,
    window_ns: int,
    lateness_ns: int,
    totals: dict[tuple[int, Group], WindowTotals],
    counts: Counter[str],
) -> None:
    resolved, slo = one.assembled.resolved, one.slo
    group = Group(slo.name, resolved.model, resolved.instance, resolved.measured_at)
    shift_ns = resolved.shift_ns(lateness_ns)
    counts["shifted"] += shift_ns != 0

    def at(start_ns: int) -> WindowTotals:
        found = totals.get((start_ns, group))
        if found is None:
            found = totals[start_ns, group] = WindowTotals()
        return found

    commit_ns, end_ns = resolved.commit_ns, resolved.end_ns
    if commit_ns is None:
        if end_ns is not None:
            at(window_start(end_ns - shift_ns, window_ns)).ended(resolved.outcome, None)
        return
    read_ns, last_ns = _tokens(one, commit_ns)
    end_ns = max(last_ns, commit_ns if end_ns is None else end_ns)
    known_until_ns = end_ns if resolved.complete else resolved.known_until_ns or commit_ns
    first = window_start(commit_ns - shift_ns, window_ns)
    last = window_start(end_ns - shift_ns, window_ns)
    at(first).started()
    at(last).ended(resolved.outcome, one.verdict)
    ledger = Ledger(slo, commit_ns)
    if last - first > MOST_WINDOWS * window_ns:
        counts["not_spread"] += 1
        first = last - MOST_WINDOWS * window_ns
    for start_ns in range(first, last, window_ns):
        charge = ledger.advance(read_ns, start_ns + window_ns + shift_ns, known_until_ns)
        if charge is not NOTHING:
            at(start_ns).charge(charge)
    at(last).charge(ledger.close(one.verdict))


def _tokens(one: Judged, commit_ns: int) -> tuple[Sequence[int], int]:
    """Return the arrivals of the tokens read, and the last arrival of any (the commit where there is none), unix ns.

    Of a stream with a hole only the run before it: no more was ever charged, and it is given back at the end.
    """
    resolved, times_ns, kinds = one.assembled.resolved, one.assembled.times_ns, one.assembled.kinds
    if not resolved.complete:
        times_ns, kinds = times_ns[: resolved.known_tokens], None if kinds is None else kinds[: resolved.known_tokens]
    if kinds is None and CONTENT in one.slo.reads and times_ns and times_ns[0] >= commit_ns:
        return times_ns, times_ns[-1]  # sorted already: the usual case
    seen = arrivals(times_ns, commit_ns, kinds, one.slo.reads)
    return [commit_ns + time for time in seen.read], commit_ns + (seen.every[-1] if seen.every else 0)


def _null_last(name: str | None) -> tuple[bool, str]:
    return (name is None, name or "")
