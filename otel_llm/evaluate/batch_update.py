"""Apply the plain segments of a batch to all streams at once; what does not fit is left to be applied alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.evaluate.stream_table import FRESH, Block
from otel_llm.slo.classes import CONTENT

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.evaluate.stream_table import StreamTable
    from otel_llm.readers.plain_segments import PlainSegments

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]
    Bytes = npt.NDArray[np.uint8]

_FEW: Final = 8
"""Fewer segments than this in a further round are applied quicker one by one."""
_TIME_BYTES: Final = 8


@dataclass(slots=True)
class Applied:
    """What was applied: `slots` (none twice) that moved, `heard`: which of them had a segment that was not late.

    `late`, `segments`, `tokens` are counts; `left` the places of the segments that were not applied.
    """

    slots: Ints
    heard: Bools
    late: int
    tokens: int
    segments: int
    left: list[int]


def apply_plain(table: StreamTable, plain: PlainSegments, slots: Ints, now_ns: int, lateness_ns: int) -> Applied:
    """Apply every segment that is the next of a stream without a gap, received at `now_ns`.

    `slots`: each segment's, -1 for none. Where a batch holds several of one stream they are applied in rounds, in
    order of number.
    """
    done = np.zeros(len(plain), dtype=bool)
    late = 0
    moved: list[Ints] = []
    heard: list[Bools] = []
    chosen = np.flatnonzero(slots >= 0)
    if chosen.size:
        sorted_within = _sorted_within(plain)
        for one in _rounds(slots[chosen], plain.seq[chosen]):
            places = chosen[one]
            block = table.gather(slots[places])
            fits = _fit(block, plain, places) & sorted_within[places]
            if not fits.all():
                places = places[fits]
                block = Block(block.rows[fits])
            if places.size:
                _apply(table, block, plain, slots[places], places, now_ns)
                on_time = now_ns + block.offset_ns - plain.end_ns[places] <= lateness_ns
                late += len(places) - int(on_time.sum())
                done[places] = True
                moved.append(slots[places])
                heard.append(on_time)
    all_done = bool(done.all())
    return Applied(
        *_once(moved, heard),
        late=late,
        tokens=len(plain.times_ns) if all_done else int(np.diff(plain.offsets)[done].sum()),
        segments=len(plain) if all_done else int(done.sum()),
        left=[] if all_done else np.flatnonzero(~done).tolist(),
    )


def applied_first(
    table: StreamTable, plain: PlainSegments, slots: Ints, places: Ints, receipt_ns: Ints, lateness_ns: int
) -> tuple[Ints, Block]:
    """Apply those of the segments at `places`, one a stream, that come next and in time.

    `slots`, `receipt_ns`: (S,) each segment's. Return their places, and the rows of their streams as they are now.
    """
    block = table.gather(slots[places])
    if places.size:
        fits = _fit(block, plain, places) & _sorted_within(plain)[places]
        fits &= receipt_ns[places] + block.offset_ns - plain.end_ns[places] <= lateness_ns
        if not fits.all():
            places, block = places[fits], Block(block.rows[fits])
    if places.size:
        _apply(table, block, plain, slots[places], places, receipt_ns[places])
    return places, block


def _once(moved: list[Ints], heard: list[Bools]) -> tuple[Ints, Bools]:
    """Return each slot once, and whether any of its segments was on time."""
    if len(moved) == 1:
        return moved[0], heard[0]
    if not moved:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    slots, member = np.unique(np.concatenate(moved), return_inverse=True)
    found = np.zeros(len(slots), dtype=bool)
    found[member[np.concatenate(heard)]] = True
    return slots, found


def _rounds(slots: Ints, seq: Ints) -> list[Ints]:
    """Group places so that no group holds a stream twice, in order of number; later groups of few are left out."""
    apart = np.sort(slots)
    if (apart[1:] != apart[:-1]).all():
        return [np.arange(len(slots))]
    order = np.lexsort((seq, slots))
    ordered = slots[order]
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    first = np.flatnonzero(starts)
    rank = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    rounds = []
    for number in range(int(rank.max()) + 1):
        one = order[rank == number]
        if number and len(one) < _FEW:
            break
        rounds.append(one)
    return rounds


def _fit(block: Block, plain: PlainSegments, places: Ints) -> Bools:
    """Tell which segments come next in their streams, by number, index of token and time."""
    begin, stop = plain.offsets[places], plain.offsets[places + 1]
    filled = stop > begin
    first_ns = plain.times_ns[np.minimum(begin, max(0, len(plain.times_ns) - 1))] if len(plain.times_ns) else begin
    fits: Bools = (
        (block.ready != 0)
        & (plain.seq[places] == block.segments)
        & (plain.first_token[places] == block.tokens)
        & (plain.end_ns[places] >= block.watermark_ns)
        & (~filled | (first_ns >= block.last_ns))
    )
    return fits


def _sorted_within(plain: PlainSegments) -> Bools:
    """Tell which segments have their tokens in order of time."""
    fits = np.ones(len(plain), dtype=bool)
    back = np.flatnonzero(plain.times_ns[1:] < plain.times_ns[:-1])
    if back.size:
        segment = np.searchsorted(plain.offsets, back, side="right") - 1
        fits[segment[back + 1 < plain.offsets[segment + 1]]] = False
    return fits


def _apply(
    table: StreamTable, block: Block, plain: PlainSegments, slots: Ints, places: Ints, now_ns: int | Ints
) -> None:
    """Apply the segments at `places`, each to its slot, of which `block` holds the rows."""
    begin, stop, end_ns = plain.offsets[places], plain.offsets[places + 1], plain.end_ns[places]
    number = stop - begin
    kind = plain.kind[places]
    opens = (block.tokens == 0) & (number > 0)
    if opens.any():
        block.first_ns[opens] = plain.times_ns[begin[opens]]
    block.segments += 1
    block.tokens += number
    block.watermark_ns[:] = end_ns
    np.maximum(block.offset_ns, end_ns - now_ns, out=block.offset_ns)
    block.receipt_ns[:] = now_ns
    rows = np.flatnonzero(number)
    if rows.size:
        if rows.size < len(number):
            begin, stop, number, kind = begin[rows], stop[rows], number[rows], kind[rows]
        block.last_ns[rows] = plain.times_ns[stop - 1]
        times, offsets = _laid_out(plain.times_ns, begin, number)
        _keep(table, block, slots, rows, times, offsets, kind)
        read = (block.running.reads[rows] >> kind) & 1 == 1
        if not read.all():
            rows, number = rows[read], number[read]
            times, offsets = _laid_out(times, offsets[:-1][read], number)
    if rows.size:
        block.running.apply(rows, times, offsets)
        block.ahead[rows] = 1
    table.put(slots, block)


def _laid_out(times_ns: Ints, begin: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Return the times of these segments, one behind the other, and where each begins and the last ends."""
    offsets = np.concatenate(([0], np.cumsum(number)))
    if offsets[-1] == len(times_ns) and (begin == offsets[:-1]).all():
        return times_ns, offsets
    return times_ns[np.repeat(begin - offsets[:-1], number) + np.arange(offsets[-1])], offsets


def _keep(
    table: StreamTable, block: Block, slots: Ints, rows: Ints, times_ns: Ints, offsets: Ints, kinds: Bytes
) -> None:
    """Append the tokens of `rows`, which lie one behind the other, to those of their streams."""
    number = np.diff(offsets)
    fresh = block.fresh[rows]
    held = (block.plain[rows] != 0) & (kinds == CONTENT)
    full = fresh + number > FRESH
    table.hand_over_all(slots[rows[full & (fresh > 0)]])
    fresh[full] = 0
    held &= number < FRESH
    whole = held.all()
    begin = offsets[:-1] if whole else offsets[:-1][held]
    placed, filled = (number, fresh) if whole else (number[held], fresh[held])
    times = times_ns if whole else _laid_out(times_ns, begin, placed)[0]
    starts = np.cumsum(placed) - placed
    room = table.fresh_ns.ravel()
    into = slots[rows if whole else rows[held]] * FRESH + filled - starts
    room[np.repeat(into, placed) + np.arange(len(times))] = times
    if whole:
        block.fresh[rows] = fresh + number
        return
    block.fresh[rows] = np.where(held, fresh + number, 0)
    chosen = rows[~held]
    _append(table, slots[chosen], times_ns, offsets[:-1][~held], offsets[1:][~held], kinds[~held])
    block.plain[chosen] = table.plain[slots[chosen]]


def _append(table: StreamTable, slots: Ints, times_ns: Ints, begin: Ints, stop: Ints, kinds: Bytes) -> None:
    """Hand tokens to their streams."""
    data = times_ns.tobytes()
    times, streams = table.times, table.streams
    starts, ends = (begin * _TIME_BYTES).tolist(), (stop * _TIME_BYTES).tolist()
    for slot, start, end, kind in zip(slots.tolist(), starts, ends, kinds.tolist(), strict=True):
        own = times[slot]
        if own is not None and kind == CONTENT:
            own.frombytes(data[start:end])
            continue
        stream = streams[slot]
        assert stream is not None  # noqa: S101  a slot that is found is taken
        stream.tokens_so_far.append(data[start:end], kind)
        table.keep(slot, stream.tokens_so_far.plain_times)
