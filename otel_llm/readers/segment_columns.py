"""Segments of one export request as columns, without a Python object each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.readers.records import Segment
from otel_llm.slo.classes import CONTENT

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    Bools = npt.NDArray[np.bool_]

TRACE_BYTES: Final = 16
_KEY: Final = np.dtype("V24")
"""A stream's key: trace id and request span id, concatenated."""


@dataclass(slots=True)
class SegmentColumns:
    """Segments as columns, in the order of the message.

    `ids`: (S, 3), the halves of the trace id and the id of the request span, each eight bytes as an integer; `seq`,
    `first_token`, `start_ns`, `end_ns`, `kind`, `last_byte_ns`: (S,); `times_ns`: (N,) all tokens, those of segment i
    at `offsets[i]:offsets[i + 1]`, as received; `kind` is the code of all tokens of a segment. The choice is 0, and
    there are no attributes.
    """

    ids: Ints
    seq: Ints
    first_token: Ints
    start_ns: Ints
    end_ns: Ints
    kind: Bytes
    offsets: Ints
    times_ns: Ints
    last_byte_ns: Ints

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def keys(self) -> list[bytes]:
        """Return the key of each, 24 bytes: trace id and request span id."""
        return keys_of(self.ids)

    def segment(self, place: int, receipt_ns: int | None = None) -> Segment:
        """Return one of them as a record."""
        (key,) = keys_of(self.ids[place : place + 1])
        kind, times_ns = self.kind.item(place), self.times_ns[self.offsets[place] : self.offsets[place + 1]].tolist()
        return Segment(
            key[:TRACE_BYTES],
            key[TRACE_BYTES:],
            0,
            self.seq.item(place),
            self.first_token.item(place),
            self.start_ns.item(place),
            self.end_ns.item(place),
            times_ns,
            None if kind == CONTENT or not times_ns else bytes((kind,)) * len(times_ns),
            {},
            receipt_ns,
            last_byte_ns=self.last_byte_ns.item(place),
        )

    def only(self, chosen: Bools) -> SegmentColumns:
        """Return the chosen ones, (S,) bool."""
        lengths = np.diff(self.offsets)
        return SegmentColumns(
            ids=self.ids[chosen],
            seq=self.seq[chosen],
            first_token=self.first_token[chosen],
            start_ns=self.start_ns[chosen],
            end_ns=self.end_ns[chosen],
            kind=self.kind[chosen],
            offsets=np.concatenate(([0], np.cumsum(lengths[chosen]))),
            times_ns=self.times_ns[np.repeat(chosen, lengths)],
            last_byte_ns=self.last_byte_ns[chosen],
        )


def keys_of(ids: Ints) -> list[bytes]:
    """Return rows of three integers as the 24 bytes that they were read from."""
    keys: list[bytes] = ids.view(_KEY).ravel().tolist()
    return keys
