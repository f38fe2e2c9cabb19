"""Apply plain segments to the streams in flight: one loop over the segments, within it one over a segment's tokens.

A row moves as `otel_llm.slo.live.running.Running` specifies, in the same integers. A segment is applied whole or not at
all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.core.kernel import kernel
from otel_llm.core.stream_columns import (
    AHEAD,
    ALLOWANCE_NS,
    BY_GAP,
    COUNT,
    DROPS,
    DRY_NS,
    DUE_NS,
    FIRST_NS,
    FOLLOWING_NS,
    FRESH,
    JUDGED_NS,
    LAST_NS,
    LATE,
    MISSED,
    MOVED_AT,
    NEVER,
    OFFSET_NS,
    PACE_NS,
    PASSED,
    PLAIN,
    READ_FIRST_NS,
    READ_LAST_NS,
    READS,
    READY,
    RECEIPT_NS,
    SEGMENTS,
    STALLED,
    STALLS,
    TBT_NS,
    TOKENS,
    UNKNOWN,
    WATERMARK_NS,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    Bools = npt.NDArray[np.bool_]

# Counts that are moved on, in `counted`.
MOVED: Final = 0
"""Streams that were moved."""
FULL: Final = 1
"""Streams whose tokens are to be handed over."""
APPENDED: Final = 2
"""Segments whose tokens are to be appended."""
APPLIED: Final = 3
"""Segments applied."""
APPLIED_TOKENS: Final = 4
APPLIED_LATE: Final = 5
COUNTS: Final = 6

_CONTENT: Final = 0


@kernel()
def _read_on(rows: Ints, slot: int, times_ns: Ints, begin: int, stop: int) -> None:
    """Move the reading line over tokens; count the stalls that end."""
    pace_ns, dry_ns, allowance_ns = rows[slot, PACE_NS], rows[slot, DRY_NS], rows[slot, ALLOWANCE_NS]
    if times_ns[stop - 1] <= dry_ns:  # the reader waits for none of them
        rows[slot, DRY_NS] = dry_ns + (stop - begin) * pace_ns
        rows[slot, STALLED] = 0
        return
    stalls, stalled = rows[slot, STALLS], rows[slot, STALLED] != 0
    for place in range(begin, stop):
        time_ns = times_ns[place]
        if time_ns > dry_ns:
            stalls += time_ns > allowance_ns and not stalled
            stalled = time_ns > allowance_ns
            dry_ns = time_ns
        else:
            stalled = False
        dry_ns += pace_ns
        allowance_ns += pace_ns
    rows[slot, DRY_NS], rows[slot, STALLS], rows[slot, STALLED] = dry_ns, stalls, stalled


@kernel()
def _count_misses(rows: Ints, slot: int, times_ns: Ints, begin: int, stop: int) -> None:
    """Move Etalon's deadline over tokens; count those that are late, and the deadlines missed."""
    due_ns, tbt_ns = rows[slot, DUE_NS], rows[slot, TBT_NS]
    if due_ns == UNKNOWN:
        return
    drops = rows[slot, DROPS] != 0 and rows[slot, COUNT] == 0
    if times_ns[stop - 1] <= due_ns and not drops:
        rows[slot, DUE_NS] = due_ns + (stop - begin) * tbt_ns
        return
    late, missed = rows[slot, LATE], rows[slot, MISSED]
    for place in range(begin, stop):
        time_ns = times_ns[place]
        if time_ns > due_ns:
            late += 1
            missed += 1 + (time_ns - due_ns) // tbt_ns
            due_ns = time_ns
        elif drops and place == begin:
            due_ns = time_ns  # the deadlines start from the first token, as they do from one that is late
        due_ns += tbt_ns
    rows[slot, DUE_NS], rows[slot, LATE], rows[slot, MISSED] = due_ns, late, missed


@kernel()
def _breaks_deadline(rows: Ints, slot: int, times_ns: Ints, begin: int, stop: int) -> bool:
    """Tell whether a token comes after the deadline that follows from the token before, or from the first deadline."""
    following_ns, due_ns, count = rows[slot, FOLLOWING_NS], rows[slot, JUDGED_NS], rows[slot, COUNT]
    if rows[slot, BY_GAP] == 0:
        due_ns += count * following_ns
        if times_ns[stop - 1] <= due_ns:
            return False
        for place in range(begin, stop):
            if times_ns[place] > due_ns:
                return True
            due_ns += following_ns
        return False
    if count == 0 and times_ns[begin] > due_ns:
        return True
    before_ns = rows[slot, READ_LAST_NS] if count != 0 else times_ns[begin]
    if times_ns[stop - 1] - before_ns <= following_ns:
        return False
    for place in range(begin, stop):
        if times_ns[place] - before_ns > following_ns:
            return True
        before_ns = times_ns[place]
    return False


@kernel()
def _judge(rows: Ints, slot: int, times_ns: Ints, begin: int, stop: int) -> None:
    """Move the running judgement over tokens that are read, at least one, sorted, none before the last applied."""
    _read_on(rows, slot, times_ns, begin, stop)
    _count_misses(rows, slot, times_ns, begin, stop)
    if rows[slot, FOLLOWING_NS] != NEVER and rows[slot, PASSED] == 0:
        rows[slot, PASSED] = _breaks_deadline(rows, slot, times_ns, begin, stop)
    if rows[slot, COUNT] == 0:
        rows[slot, READ_FIRST_NS] = times_ns[begin]
    rows[slot, COUNT] += stop - begin
    rows[slot, READ_LAST_NS] = times_ns[stop - 1]
    rows[slot, ALLOWANCE_NS] += (stop - begin) * rows[slot, PACE_NS]
    rows[slot, AHEAD] = 1


@kernel()
def _is_sorted(times_ns: Ints, begin: int, stop: int) -> bool:
    for place in range(begin + 1, stop):
        if times_ns[place] < times_ns[place - 1]:
            return False
    return True


@kernel(
    "boolean(int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], uint8[::1],"
    " int64[::1], int64[::1], int64, int64, boolean, boolean[::1], int64[::1], boolean[::1], int64[::1], int64[::1],"
    " int64[::1])"
)
def apply(
    rows: Ints,
    fresh_ns: Ints,
    places: Ints,
    slots: Ints,
    seq: Ints,
    first_token: Ints,
    end_ns: Ints,
    kind: Bytes,
    offsets: Ints,
    times_ns: Ints,
    receipt_ns: int,
    lateness_ns: int,
    in_order: bool,
    done: Bools,
    moved: Ints,
    heard: Bools,
    full: Ints,
    appended: Ints,
    counted: Ints,
) -> bool:
    """Apply the segments at `places` that are the next of their streams without a gap, in this order.

    `rows` (S, WIDTH), `fresh_ns` (S, F): the streams. (N,) columns of the segments: `slots`, -1 for none; `seq`,
    `first_token`, `end_ns`, `kind` of all its tokens; `times_ns[offsets[i]:offsets[i + 1]]` are those of segment i.
    They were received at `receipt_ns`; one that comes more than `lateness_ns` after its end is late.

    Filled as far as `counted` (COUNTS,) says, from where it says before: `moved` (N,) slots, each once, and `heard`:
    whether a segment of it was in time; `full` (N,): slots, each once, that have no room in `fresh_ns` for all that
    came; `appended` (N,): places of segments whose times are therefore not there. The times in `fresh_ns` are to be
    handed over first, then FRESH, ~n until then, set to 0, then these appended. `done` (N,): which were applied.

    Return False where the number of a segment is too high and `in_order` is not set: one before it may stand behind it.
    Nothing was done of what is not `done`: call again with the rest in order of number.
    """
    for at in range(len(places)):
        one = places[at]
        slot = slots[one]
        if slot < 0 or rows[slot, READY] == 0:
            continue
        if seq[one] != rows[slot, SEGMENTS]:
            if seq[one] > rows[slot, SEGMENTS] and not in_order:
                return False
            continue
        begin, stop, segment_end_ns = offsets[one], offsets[one + 1], end_ns[one]
        number = stop - begin
        if first_token[one] != rows[slot, TOKENS] or segment_end_ns < rows[slot, WATERMARK_NS]:
            continue
        if number and (times_ns[begin] < rows[slot, LAST_NS] or not _is_sorted(times_ns, begin, stop)):
            continue
        offset_ns = max(rows[slot, OFFSET_NS], segment_end_ns - receipt_ns)
        late = receipt_ns + offset_ns - segment_end_ns > lateness_ns

        if rows[slot, TOKENS] == 0 and number:
            rows[slot, FIRST_NS] = times_ns[begin]
        rows[slot, SEGMENTS] += 1
        rows[slot, TOKENS] += number
        rows[slot, WATERMARK_NS] = segment_end_ns
        rows[slot, OFFSET_NS] = offset_ns
        rows[slot, RECEIPT_NS] = receipt_ns
        if number:
            rows[slot, LAST_NS] = times_ns[stop - 1]
            fresh = rows[slot, FRESH]
            plain = kind[one] == _CONTENT and rows[slot, PLAIN] != 0
            if plain and fresh >= 0 and fresh + number <= fresh_ns.shape[1]:
                for place in range(number):
                    fresh_ns[slot, fresh + place] = times_ns[begin + place]
                rows[slot, FRESH] = fresh + number
            else:
                if fresh >= 0:
                    rows[slot, FRESH] = ~fresh  # what comes behind it is appended behind it
                    full[counted[FULL]] = slot
                    counted[FULL] += 1
                appended[counted[APPENDED]] = one
                counted[APPENDED] += 1
            if rows[slot, READS] >> kind[one] & 1:
                _judge(rows, slot, times_ns, begin, stop)

        done[one] = True
        counted[APPLIED] += 1
        counted[APPLIED_TOKENS] += number
        counted[APPLIED_LATE] += late
        where = rows[slot, MOVED_AT]
        if where >= counted[MOVED] or moved[where] != slot:  # what stands there may be of another message
            where = counted[MOVED]
            rows[slot, MOVED_AT] = where
            moved[where] = slot
            heard[where] = False
            counted[MOVED] += 1
        heard[where] |= not late
    return True
