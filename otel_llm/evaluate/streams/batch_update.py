"""The batch update: plain segments are applied to all their streams at once, the others one by one elsewhere."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.slo.classes import CONTENT

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.formats.batch import SegmentColumns

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

_VALUE_BYTES: Final = 8


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
    indexes, in_order = np.arange(number), False
    done, on_time = np.zeros(number, bool), np.empty(number, bool)
    moved, full, appended = np.empty(number, np.int64), np.empty(number, np.int64), np.empty(number, np.int64)
    counted = np.zeros(core.COUNTS, np.int64)
    while not core.apply(
        table.rows,
        table.buffer,
        indexes,
        slots,
        plain.seq,
        plain.first_token,
        plain.end_ns,
        plain.last_byte_ns,
        plain.kind,
        plain.offsets,
        plain.times_ns,
        plain.counts,
        plain.tokens,
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
        indexes = indexes[~done[indexes]]
        indexes = indexes[np.argsort(plain.seq[indexes], kind="stable")]
        in_order = True
    streams, filled, appending, segments, tokens, late = counted.tolist()
    if appending:
        table.flush_fresh_many(full[:filled])
        _append(table, plain, slots, appended[:appending])
    left = [] if segments == number else np.flatnonzero(~done).tolist()
    return Applied(moved[:streams], on_time[:streams], late, tokens, segments, left)


def _append(table: StreamTable, plain: SegmentColumns, slots: Ints, indexes: Ints) -> None:
    """Append the token events of these segments to the arrays of their streams."""
    data, numbers = plain.times_ns.data.cast("B"), plain.counts.data.cast("B")
    arrays, streams = table.arrays, table.streams
    begin, stop = plain.offsets[indexes], plain.offsets[indexes + 1]
    counted = plain.tokens[indexes] > stop - begin
    columns = (slots[indexes], begin * _VALUE_BYTES, stop * _VALUE_BYTES, plain.kind[indexes], counted)
    for slot, start, end, kind, several in zip(*(column.tolist() for column in columns), strict=True):
        own = arrays[slot]
        if own is not None and kind == CONTENT and not (several and own.counts is None):
            own.times_ns.frombytes(data[start:end])
            if own.counts is not None:
                own.counts.frombytes(numbers[start:end])
            continue
        stream = streams[slot]
        assert stream is not None  # noqa: S101  a slot that is found is in use
        counts = array("q", bytes(numbers[start:end])) if several else None
        stream.stream.append(array("q", bytes(data[start:end])), kind, counts)
        table.attach(slot, stream.stream.open_arrays)
