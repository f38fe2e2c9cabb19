"""The kernel that applies plain segments to streams in flight: a loop over segments, and over the events of each.

`otel_llm.slo.live.running` has the update of a row. A segment is applied as a whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.core.kernel import called_by_kernels, kernel
from otel_llm.core.limits import MAX_TOKENS
from otel_llm.core.stream_columns import (
    BUFFERS,
    BUFFERS_COUNTS,
    BUFFERS_NOTHING,
    FIRST_NS,
    FRESH,
    LAST_BYTE_NS,
    LAST_NS,
    MOVED_AT,
    OFFSET_NS,
    READY,
    RECEIPT_NS,
    SEGMENTS,
    TOKENS,
    WATERMARK_NS,
)
from otel_llm.slo.live.columns import READS
from otel_llm.slo.live.running import UPDATES, advance

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    Bools = npt.NDArray[np.bool_]

# Indexes of `counted`.
MOVED: Final = 0
"""Updated streams."""
FULL: Final = 1
"""Streams whose buffered events must be flushed."""
APPENDED: Final = 2
"""Segments whose events must be appended."""
APPLIED: Final = 3
"""Segments applied."""
APPLIED_TOKENS: Final = 4
APPLIED_LATE: Final = 5
COUNTS: Final = 6

_CONTENT: Final = 0


called_by_kernels(*UPDATES)


@kernel()
def _is_sorted(times_ns: Ints, begin: int, stop: int) -> bool:
    for index in range(begin + 1, stop):
        if times_ns[index] < times_ns[index - 1]:
            return False
    return True


@kernel()
def _buffered(
    rows: Ints, slot: int, buffer: Ints, times_ns: Ints, counts: Ints, begin: int, stop: int, tokens: int
) -> bool:
    """Buffer events of content if the stream buffers such, and there is room; return whether they are buffered."""
    buffers, held, events = rows[slot, BUFFERS], rows[slot, FRESH], stop - begin
    if buffers == BUFFERS_NOTHING or held < 0:
        return False
    room = buffer.shape[1]
    if buffers == BUFFERS_COUNTS:
        room //= 2
        if held + events > room:
            return False
        for index in range(events):
            buffer[slot, room + held + index] = counts[begin + index]
    elif tokens != events or held + events > room:
        return False
    for index in range(events):
        buffer[slot, held + index] = times_ns[begin + index]
    rows[slot, FRESH] = held + events
    return True


@kernel(
    "boolean(int64[:, ::1], int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1],"
    " uint8[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, boolean, boolean[::1], int64[::1],"
    " boolean[::1], int64[::1], int64[::1], int64[::1])"
)
def apply(
    rows: Ints,
    buffer: Ints,
    indexes: Ints,
    slots: Ints,
    seq: Ints,
    first_token: Ints,
    end_ns: Ints,
    last_byte_ns: Ints,
    kind: Bytes,
    offsets: Ints,
    times_ns: Ints,
    counts: Ints,
    tokens: Ints,
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
    """Apply the segments at `indexes` that are the next of their streams without a gap, in this order.

    Args:
        rows: (R, WIDTH), the streams.
        buffer: (R, F), their buffers of token events; F is even.
        indexes: indexes of the segments to apply.
        slots: (N,), of the segments' streams, -1 for none.
        seq, first_token, end_ns, last_byte_ns, kind, tokens: (N,), of the segments; `kind` of all its tokens.
        offsets, times_ns, counts: `times_ns[offsets[i]:offsets[i + 1]]` are the token events of segment i, and `counts`
            there the tokens of each.
        receipt_ns: when all were received.
        lateness_ns: a segment is late if it is received later than this after its end.
        in_order: whether `indexes` are in order of number.
        done: (N,), written: whether a segment was applied.
        moved: (N,), written: the slots of updated streams, unique.
        heard: (N,), written: whether a segment of that stream was in time.
        full: (N,), written: slots whose buffer was too small, unique. The caller must append the buffered events to the
            streams' arrays, and set FRESH, which is ~n until then, to 0.
        appended: (N,), written: segments whose events are not buffered. The caller must append them after that.
        counted: (COUNTS,), the lengths of the written arrays, and counts; continued from their values.

    Returns:
        False if a segment's number is too high while `in_order` is not set: an earlier one may be later in `indexes`.
        Segments that are not `done` are unchanged: call again with these in order of number.
    """
    for at in range(len(indexes)):
        one = indexes[at]
        slot = slots[one]
        if slot < 0 or rows[slot, READY] == 0:
            continue
        if seq[one] != rows[slot, SEGMENTS]:
            if seq[one] > rows[slot, SEGMENTS] and not in_order:
                return False
            continue
        begin, stop, segment_end_ns = offsets[one], offsets[one + 1], end_ns[one]
        number = tokens[one]
        if first_token[one] != rows[slot, TOKENS] or segment_end_ns < rows[slot, WATERMARK_NS]:
            continue
        if rows[slot, TOKENS] + number > MAX_TOKENS:  # refused when it is received one by one
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
        rows[slot, LAST_BYTE_NS] = max(rows[slot, LAST_BYTE_NS], last_byte_ns[one])
        if number:
            rows[slot, LAST_NS] = times_ns[stop - 1]
            if not (kind[one] == _CONTENT and _buffered(rows, slot, buffer, times_ns, counts, begin, stop, number)):
                if rows[slot, FRESH] >= 0:
                    rows[slot, FRESH] = ~rows[slot, FRESH]  # later events of this batch are appended, too
                    full[counted[FULL]] = slot
                    counted[FULL] += 1
                appended[counted[APPENDED]] = one
                counted[APPENDED] += 1
            if rows[slot, READS] >> kind[one] & 1:
                advance(rows, slot, times_ns, counts, begin, stop, number)

        done[one] = True
        counted[APPLIED] += 1
        counted[APPLIED_TOKENS] += number
        counted[APPLIED_LATE] += late
        where = rows[slot, MOVED_AT]
        if where >= counted[MOVED] or moved[where] != slot:  # the index may be of an earlier batch
            where = counted[MOVED]
            rows[slot, MOVED_AT] = where
            moved[where] = slot
            heard[where] = False
            counted[MOVED] += 1
        heard[where] |= not late
    return True
