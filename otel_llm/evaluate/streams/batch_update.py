"""The batch update: plain segments are applied to all their streams at once, the others one by one elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.slo.classes import CONTENT

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.readers.segment_columns import SegmentColumns

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

_TIME_BYTES: Final = 8


@dataclass(slots=True)
class Applied:
    """The result of a batch update.

    `slots`: (S,) int64, of the updated streams, unique. `on_time`: (S,), whether one of the stream's segments was not
    late. `late`, `tokens`, `segments`: counts. `left`: the indexes of segments that were not applied.
    """

    slots: Ints
    on_time: Bools
    late: int
    tokens: int
    segments: int
    left: list[int]


def apply_plain(table: StreamTable, plain: SegmentColumns, slots: Ints, now_ns: int, lateness_ns: int) -> Applied:
    """Apply every segment that is the next of a stream without a gap; several of one stream in order of number.

    `slots`: (N,) int64, of the segments' streams, -1 for none. `now_ns`: the receipt time, unix ns.
    """
    from otel_llm.core import streams as core  # a process without exports loads no kernels

    number = len(plain)
    places, in_order = np.arange(number), False
    done, on_time = np.zeros(number, bool), np.empty(number, bool)
    moved, full, appended = np.empty(number, np.int64), np.empty(number, np.int64), np.empty(number, np.int64)
    counted = np.zeros(core.COUNTS, np.int64)
    while not core.apply(
        table.rows,
        table.fresh_ns,
        places,
        slots,
        plain.seq,
        plain.first_token,
        plain.end_ns,
        plain.last_byte_ns,
        plain.kind,
        plain.offsets,
        plain.times_ns,
        now_ns,
        lateness_ns,
        in_order,
        done,
        moved,
        on_time,
        full,
        appended,
        counted,
    ):
        places = places[~done[places]]
        places = places[np.argsort(plain.seq[places], kind="stable")]
        in_order = True
    streams, filled, appending, segments, tokens, late = counted.tolist()
    if appending:
        table.flush_fresh_many(full[:filled])
        _append(table, plain, slots, appended[:appending])
    left = [] if segments == number else np.flatnonzero(~done).tolist()
    return Applied(moved[:streams], on_time[:streams], late, tokens, segments, left)


def _append(table: StreamTable, plain: SegmentColumns, slots: Ints, places: Ints) -> None:
    """Append the tokens of these segments to the token arrays of their streams."""
    data = plain.times_ns.data.cast("B")
    times, streams = table.times, table.streams
    begin, stop = plain.offsets[places] * _TIME_BYTES, plain.offsets[places + 1] * _TIME_BYTES
    kinds = plain.kind[places].tolist()
    for slot, start, end, kind in zip(slots[places].tolist(), begin.tolist(), stop.tolist(), kinds, strict=True):
        own = times[slot]
        if own is not None and kind == CONTENT:
            own.frombytes(data[start:end])
            continue
        stream = streams[slot]
        assert stream is not None  # noqa: S101  a slot that is found is in use
        stream.tokens_so_far.append(bytes(data[start:end]), kind)
        table.attach_times(slot, stream.tokens_so_far.plain_times)
