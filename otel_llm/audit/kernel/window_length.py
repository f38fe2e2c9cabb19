"""The length of windows that suits a recording: 10 s, shorter for a short one, so that it has windows to compare."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from otel_llm.audit.input.stream_batch import token_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

LENGTHS_NS: Final = (250_000_000, 500_000_000, 1_000_000_000, 5_000_000_000, 10_000_000_000)
"""The lengths, ascending; each is a multiple of those before it, so that windows add up to longer ones."""
FEWEST: Final = 40
"""The number of windows that a recording should have."""


def adapted(span_ns: int) -> int:
    """Return the greatest length with enough windows in a recording of `span_ns`, else the shortest."""
    return max((one for one in LENGTHS_NS if one * FEWEST <= span_ns), default=LENGTHS_NS[0])


def span_of(batches: Sequence[pa.RecordBatch]) -> int:
    """Return the time from the first commit to the last end of batches of STREAMS, ns; 0 if neither is known."""
    firsts = [first for one in batches if (first := pc.min(one.column("commit_ns")).as_py()) is not None]
    lasts = [last for one in batches if (last := pc.max(one.column("end_ns")).as_py()) is not None]
    return max(0, max(lasts) - min(firsts)) if firsts and lasts else 0


def begun(batches: Iterable[pa.RecordBatch], most_tokens: int) -> tuple[int, Iterator[pa.RecordBatch]]:
    """Return a first length for batches of STREAMS and all of them; up to about `most_tokens` are held to tell it.

    A longer recording may need longer windows: each length divides the next, so windows can be joined.
    """
    rest = iter(batches)
    held: list[pa.RecordBatch] = []
    tokens = 0
    for batch in rest:
        held.append(batch)
        tokens += int(token_numbers(batch).sum())
        if tokens > most_tokens:
            break
    return adapted(span_of(held)), chain(held, rest)
