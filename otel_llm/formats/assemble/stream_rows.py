"""Segments of many streams as rows of arrays: the columns of the audit's assembly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]
    Bytes = npt.NDArray[np.uint8]

OWN_KINDS = 255
"""The `kind` of a segment with a kind for each token; those are kept elsewhere."""
NO_RECEIPT = -1


@dataclass(slots=True)
class Rows:
    """Segments (S,), each of the stream `slot`, and their N token events one after the other.

    `order` numbers the export requests in order of receipt, `receipt_ns` is NO_RECEIPT if it is not known, `kind`
    the code of all tokens of a segment; `events`, `tokens` (S,) say how many of `times_ns` (N,) belong to each, and for
    how many tokens they stand, `counts` (N,) for how many each.
    """

    slot: Ints
    seq: Ints
    first_token: Ints
    end_ns: Ints
    kind: Bytes
    order: Ints
    receipt_ns: Ints
    events: Ints
    tokens: Ints
    times_ns: Ints
    counts: Ints

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def bytes_held(self) -> int:
        """Return their approximate memory."""
        return 65 * len(self.slot) + self.times_ns.nbytes + self.counts.nbytes

    def only(self, chosen: Bools) -> Rows:
        """Return the chosen rows, (S,) bool, as copies."""
        events = np.repeat(chosen, self.events)
        return Rows(
            slot=self.slot[chosen],
            seq=self.seq[chosen],
            first_token=self.first_token[chosen],
            end_ns=self.end_ns[chosen],
            kind=self.kind[chosen],
            order=self.order[chosen],
            receipt_ns=self.receipt_ns[chosen],
            events=self.events[chosen],
            tokens=self.tokens[chosen],
            times_ns=self.times_ns[events],
            counts=self.counts[events],
        )


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several parts as one; `parts` must not be empty."""
    if len(parts) == 1:
        return parts[0]
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in Rows.__slots__))


class Merged(NamedTuple):
    """The merged rows of C streams, each row once and in order, and their sums.

    `rows` (S',): indexes of the rows without repetitions, by stream and number, those of stream c at
    `bounds[c]:bounds[c + 1]`; (C,): `regular` if numbers run from 0 without a hole and every segment begins with the
    token after the one before; `repeated` how many rows were repetitions; `tokens` how many there are in all;
    `end_ns` the latest end of a segment, `inner_end_ns` that of one but the last; `offset_ns` how far the sender's
    clock is ahead, `has_offset` if that is known.
    """

    rows: Ints
    bounds: Ints
    regular: Bools
    repeated: Ints
    tokens: Ints
    end_ns: Ints
    inner_end_ns: Ints
    offset_ns: Ints
    has_offset: Bools


def merge(rows: Rows, stream: Ints, streams: int) -> Merged:
    """Merge the rows of `streams` streams, each row that of `stream` (S,); every stream must have one."""
    order = np.lexsort((rows.order, rows.seq, stream))
    of, seq = stream[order], rows.seq[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (of[1:] != of[:-1]) | (seq[1:] != seq[:-1])
    repeated = np.bincount(of[~fresh], minlength=streams)
    order, of, seq = order[fresh], of[fresh], seq[fresh]
    bounds = np.searchsorted(of, np.arange(streams + 1))
    starts = bounds[:-1]
    tokens = rows.tokens[order]
    before = np.cumsum(tokens) - tokens
    before_stream = before - before[starts][of]
    fits = (seq == np.arange(len(order)) - starts[of]) & (rows.first_token[order] == before_stream)
    regular = np.logical_and.reduceat(fits, starts)
    ends = rows.end_ns[order]
    last = bounds[1:] - 1
    inner = ends.copy()
    inner[last] = np.iinfo(np.int64).min
    offset, has_offset = _offsets(rows.receipt_ns[order], rows.order[order], ends, of, streams)
    return Merged(
        rows=order,
        bounds=bounds,
        regular=regular,
        repeated=repeated,
        tokens=np.add.reduceat(tokens, starts),
        end_ns=np.maximum.reduceat(ends, starts),
        inner_end_ns=np.maximum.reduceat(inner, starts),
        offset_ns=offset,
        has_offset=has_offset,
    )


def _offsets(receipt: Ints, came: Ints, ends: Ints, of: Ints, streams: int) -> tuple[Ints, Bools]:
    """Return end - receipt of each stream's segment received first; of several at that instant the first row.

    The rows are sorted by stream and number.
    """
    offset, known = np.zeros(streams, np.int64), np.zeros(streams, np.bool_)
    stated = np.flatnonzero(receipt != NO_RECEIPT)
    if not len(stated):
        return offset, known
    by_arrival = stated[np.lexsort((stated, came[stated], of[stated]))]
    begins = np.ones(len(by_arrival), np.bool_)
    begins[1:] = of[by_arrival[1:]] != of[by_arrival[:-1]]
    instant = np.zeros(streams, np.int64)
    instant[of[by_arrival[begins]]] = receipt[by_arrival[begins]]
    at_once = stated[receipt[stated] == instant[of[stated]]]
    lowest = np.ones(len(at_once), np.bool_)
    lowest[1:] = of[at_once[1:]] != of[at_once[:-1]]
    chosen = at_once[lowest]
    offset[of[chosen]] = ends[chosen] - receipt[chosen]
    known[of[chosen]] = True
    return offset, known


def gather(values: Ints, starts: Ints, lengths: Ints) -> Ints:
    """Return runs of values one after the other: `lengths` of them from `starts` on, (S,) each."""
    if not len(starts):
        return values[:0]
    ends = starts + lengths
    if (starts[1:] == ends[:-1]).all():
        return values[starts[0] : ends[-1]]
    inside = np.arange(int(lengths.sum())) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
    return values[inside]
