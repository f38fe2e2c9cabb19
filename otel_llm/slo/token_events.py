"""The tokens of a stream by event: how many arrived at one instant is a number, never as many entries."""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class TokenEvents(NamedTuple):
    """The token events of a stream or of a part of it, n of them.

    `times_ns`: the instant of each; `kinds`: a code of `classes.KINDS` for each, None if all is content; `counts`:
    how many tokens arrived in each, None for one each.
    """

    times_ns: Sequence[int]
    kinds: bytes | None = None
    counts: Sequence[int] | None = None

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return tokens_of(self.times_ns, self.counts)

    def in_time_order(self) -> TokenEvents:
        """Return the events sorted by time (a stable sort: equal times keep their order)."""
        if self.kinds is None and self.counts is None:
            return TokenEvents(sorted(self.times_ns))
        order = sorted(range(len(self.times_ns)), key=self.times_ns.__getitem__)
        return TokenEvents(
            [self.times_ns[at] for at in order],
            None if self.kinds is None else bytes(self.kinds[at] for at in order),
            None if self.counts is None else [self.counts[at] for at in order],
        )

    def part(self, start: int, stop: int) -> TokenEvents:
        """Return the events from `start` to `stop`."""
        return TokenEvents(
            self.times_ns[start:stop],
            None if self.kinds is None else self.kinds[start:stop],
            None if self.counts is None else self.counts[start:stop],
        )

    def first(self, tokens: int) -> TokenEvents:
        """Return the events of the first so many tokens; the last one may be cut."""
        if self.counts is None:
            return TokenEvents(self.times_ns[:tokens], None if self.kinds is None else self.kinds[:tokens])
        counts: list[int] = []
        for count in self.counts:
            if tokens <= 0:
                break
            counts.append(min(count, tokens))
            tokens -= count
        upto = len(counts)
        return TokenEvents(self.times_ns[:upto], None if self.kinds is None else self.kinds[:upto], counts)

    def expanded(self) -> tuple[list[int], bytes | None]:
        """Return a time and a kind for each token: for one stream at a time, which has at most MAX_TOKENS."""
        if self.counts is None:
            return list(self.times_ns), self.kinds
        times = list(chain.from_iterable(map(repeat, self.times_ns, self.counts)))
        if self.kinds is None:
            return times, None
        return times, bytes(chain.from_iterable(map(repeat, self.kinds, self.counts)))


NO_EVENTS: Final = TokenEvents([])


def tokens_of(times_ns: Sequence[int], counts: Sequence[int] | None) -> int:
    """Return how many tokens arrived in events at these times."""
    return len(times_ns) if counts is None else sum(counts)


def joined(parts: Sequence[TokenEvents]) -> TokenEvents:
    """Return the events of several parts, one after the other."""
    times: list[int] = []
    kinds = None if all(part.kinds is None for part in parts) else bytearray()
    counts: list[int] | None = None if all(part.counts is None for part in parts) else []
    for part in parts:
        times += part.times_ns
        if kinds is not None:
            kinds += bytes(len(part.times_ns)) if part.kinds is None else part.kinds
        if counts is not None:
            counts += [1] * len(part.times_ns) if part.counts is None else part.counts
    return TokenEvents(times, None if kinds is None else bytes(kinds), counts)
