"""Look back over a stream: since when has a condition held, by what is known now?

The stretches between tokens are walked: their facts are those of a stream of the tokens up to then, built anew. A few
tokens are built first, and more only if needed; nearly always the answer lies behind the last token.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.snapshot import Snapshot
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.rules.language.condition import Condition

_CHUNKS: Final = (16, 128, 1024)


def snapshot_at(now: Snapshot, x_ns: int, last_byte_ns: int | None = None) -> Snapshot:
    """Return the facts after the tokens that had arrived by an instant; none before the commit.

    `last_byte_ns`: the newest byte by then, None if that is not known.
    """
    count = bisect_right(now.stream.times_ns, x_ns)
    if count == len(now.stream.times_ns) and last_byte_ns is None:
        return now
    return Snapshot(now.view, _first_events(now.stream, count), last_byte_ns)


def run_start(condition: Condition, now: Snapshot, x_ns: int, *, value: bool, floor_ns: int) -> int:
    """Return the first instant, not before the floor, from which the condition has been `value` up to x.

    It is known to be `value` at x, an instant not before the last token. Instants at which a fact is missing neither
    begin nor break a run.
    """
    floor_ns = min(floor_ns, x_ns)
    begin_ns = max(floor_ns, now.stream.last_ns)
    start, broken = _run(condition, now, begin_ns, x_ns, value)
    start = x_ns if start is None else start
    if broken or begin_ns == floor_ns:
        return start
    times = now.stream.times_ns
    known = bisect_right(times, floor_ns)
    for chunk in _CHUNKS:
        count = max(known, bisect_left(times, times[max(0, len(times) - chunk)]))
        earlier, broken = _walk(condition, now, count, floor_ns, value)
        start = start if earlier is None else earlier
        if broken or count == known:
            return start
    earlier, _ = _walk(condition, now, known, floor_ns, value)
    return start if earlier is None else earlier


def _walk(condition: Condition, now: Snapshot, count: int, floor_ns: int, value: bool) -> tuple[int | None, bool]:
    """Walk from the first `count` events to the last; return where the run at the end begins, and if one was broken."""
    start: int | None = None
    ever_broken = False
    for snapshot, begin_ns, end_ns in _stretches(now, count, floor_ns):
        own, broken = _run(condition, snapshot, begin_ns, end_ns - 1, value)
        ever_broken = ever_broken or broken
        start = own if broken or start is None else start
    return start, ever_broken


def _run(condition: Condition, snapshot: Snapshot, begin_ns: int, end_ns: int, value: bool) -> tuple[int | None, bool]:
    """Return where, in [begin, end] between two tokens, the run at the end begins, and whether something broke it."""
    start: int | None = None
    for x in reversed([begin_ns, *condition.check_instants(snapshot, begin_ns, end_ns)]):
        truth = condition.truth(snapshot, x)
        if truth is value:
            start = x
        elif truth is not None:
            return start, True
    return start, False


def _stretches(now: Snapshot, count: int, floor_ns: int) -> Iterator[tuple[Snapshot, int, int]]:
    """Yield the stretches [begin, end) from the first `count` token events on, but the last, with their facts."""
    times = now.stream.times_ns
    part = _first_events(now.stream, count)
    begin_ns = max(floor_ns, part.last_ns)
    while count < len(times):
        end_ns = times[count]
        if begin_ns < end_ns:
            yield Snapshot(now.view, part), begin_ns, end_ns
        following = bisect_right(times, end_ns)
        part.extend(*now.stream.events.part(count, following))
        count, begin_ns = following, max(floor_ns, end_ns)


def _first_events(stream: Stream, count: int) -> Stream:
    part = Stream(stream.slo, stream.commit_ns, stream.input_tokens)
    part.extend(*stream.events.part(0, count))
    return part
