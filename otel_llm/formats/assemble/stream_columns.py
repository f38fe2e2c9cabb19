"""Streams as columns: the facts of each, and the token times of them all in one array."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.formats.assemble.resolved import Assembled, Resolved
    from otel_llm.formats.assemble.stream_rows import Ints


@dataclass(slots=True)
class Streams:
    """Assembled streams: the facts of each, and the token times of them all.

    Those of stream r are `times_ns[offsets[r]:offsets[r + 1]]`, an entry for each event, in the order that `Assembled`
    states; `counts` (N,) has how many tokens each stands for, None for one each; `kinds` a code for each event, None
    if all is content.
    """

    resolved: list[Resolved] = field(default_factory=list)
    times_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    offsets: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    kinds: list[bytes | None] = field(default_factory=list)
    counts: Ints | None = None

    def __len__(self) -> int:
        return len(self.resolved)

    @classmethod
    def of(cls, streams: Sequence[Assembled]) -> Streams:
        """Return these streams, in their order."""
        lengths = [len(one.times_ns) for one in streams]
        times = np.fromiter((time for one in streams for time in one.times_ns), np.int64, sum(lengths))
        offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        counts = None
        if any(one.counts is not None for one in streams):
            counts = np.ones(len(times), np.int64)
            for one, start in zip(streams, offsets.tolist(), strict=False):
                if one.counts is not None:
                    counts[start : start + len(one.counts)] = one.counts
        return cls([one.resolved for one in streams], times, offsets, [one.kinds for one in streams], counts)

    @property
    def tokens(self) -> int:
        """Return the number of tokens of them all."""
        return len(self.times_ns) if self.counts is None else int(self.counts.sum())


def sort_times(streams: Streams) -> None:
    """Sort the tokens of complete streams by time, each with its kind, in place."""
    times, offsets, counts = streams.times_ns, streams.offsets, streams.counts
    falls = np.flatnonzero(times[1:] < times[:-1]) + 1
    if not len(falls):
        return
    of = np.searchsorted(offsets, falls, "right") - 1
    for index in np.unique(of[offsets[of] != falls]).tolist():
        if streams.resolved[index].complete:
            span = slice(int(offsets[index]), int(offsets[index + 1]))
            order = np.argsort(times[span], kind="stable")
            times[span] = times[span][order]
            if counts is not None:
                counts[span] = counts[span][order]
            kinds = streams.kinds[index]
            if kinds is not None:
                streams.kinds[index] = np.frombuffer(kinds, np.uint8)[order].tobytes()


def concatenate(parts: Sequence[Streams]) -> Streams:
    """Return the streams of several parts as one, in their order."""
    some = [part for part in parts if len(part)]
    if len(some) < 2:
        return some[0] if some else Streams()
    starts = np.cumsum([0, *(int(part.offsets[-1]) for part in some)])
    return Streams(
        [one for part in some for one in part.resolved],
        np.concatenate([part.times_ns for part in some]),
        np.concatenate([[0], *(part.offsets[1:] + start for part, start in zip(some, starts, strict=False))]),
        [one for part in some for one in part.kinds],
        None if all(part.counts is None for part in some) else np.concatenate([counts_of(part) for part in some]),
    )


def counts_of(streams: Streams) -> Ints:
    """Return how many tokens each event of the streams stands for, (N,)."""
    return np.ones(len(streams.times_ns), np.int64) if streams.counts is None else streams.counts
