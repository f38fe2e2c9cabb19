"""The recorded tokens of a reply resampled to the total that the reply stated of itself.

A recorder that counts chunks, or estimates their tokens, knows when text arrived but not how much of it; the provider's
usage knows how much but not when. The verdict takes the times from the one and the number from the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_llm.semconv import MAX_STREAM_TOKENS, STATED_TIMES_FEWER, STATED_TIMES_MORE
from otel_llm.slo.classes import KINDS
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Kinds = NDArray[np.uint8]

REASONING: Final = KINDS.index("reasoning")
RESAMPLED: Final = "estimated"
"""The basis of resampled tokens."""


class Stated(NamedTuple):
    """How a stream ended, how its tokens were counted, and what the reply stated of them.

    `output_tokens`: all of the reply, reasoning included, and `reasoning_tokens`: that part of them; None if it did not
    state them, or has other choices.
    """

    outcome: str
    coverage: float | None
    basis: str | None
    output_tokens: int | None
    reasoning_tokens: int | None = None

    @property
    def may_apply(self) -> bool:
        """Return whether the recorded tokens may have to be resampled."""
        return (
            self.output_tokens is not None
            and self.basis in STATED_TIMES_MORE
            and self.outcome == "completed"
            and self.coverage == 1.0
        )


class StatedReply(NamedTuple):
    """A reply that states its length: its model and provider, "" if unknown, its recorded tokens, and all of them.

    `learned`: the recorded ones were estimated with what earlier replies of the model had stated. `tenant`: its
    sender's.
    """

    model: str
    provider: str
    recorded: int
    tokens: int
    learned: bool
    tenant: str = "default"


def restated(
    times_ns: Sequence[int] | Ints, kinds: bytes | None, commit_ns: int, stated: Stated
) -> tuple[Ints, bytes | None] | None:
    """Return the tokens of a reply resampled to its stated total; None if the recorded ones stand.

    `times_ns`: (w,) arrivals of all recorded tokens, in any order; `kinds`: (w,) kind codes, None if all are content.
    Returns (n,) int64 sorted arrivals, none before the commit, and their kinds.
    """
    if not stated.may_apply or not len(times_ns):
        return None
    output_tokens, reasoning_tokens = stated.output_tokens or 0, stated.reasoning_tokens
    most_times_more = STATED_TIMES_MORE[stated.basis or ""]
    times = np.maximum(np.asarray(times_ns, np.int64), commit_ns)
    if kinds is None:
        times.sort()
        codes = np.zeros(len(times), np.uint8)
    else:
        codes = np.frombuffer(kinds, np.uint8)
        order = np.lexsort((codes, times))
        times, codes = times[order], codes[order]
    thought = codes == REASONING
    if reasoning_tokens is None and thought.any():
        return None
    wanted = {False: output_tokens - (reasoning_tokens or 0), True: reasoning_tokens or 0}
    parts: list[tuple[Ints, Kinds]] = []
    changed = False
    for reasoning, count in wanted.items():
        own = np.flatnonzero(thought == reasoning)
        if not len(own):
            continue  # of hidden reasoning no time is known
        most = min(most_times_more * len(own), MAX_STREAM_TOKENS)
        if not (0 < count <= most and len(own) <= STATED_TIMES_FEWER * count):
            return None
        changed |= count != len(own)
        chosen = own[_kept_kinds(codes[own], _resampled(len(own), count))]
        parts.append((times[chosen], codes[chosen]))
    if not changed:
        return None
    times = np.concatenate([part for part, _ in parts])
    codes = np.concatenate([part for _, part in parts])
    order = np.lexsort((codes, times))
    return times[order], None if kinds is None else codes[order].tobytes()


def restated_events(events: TokenEvents, commit_ns: int, stated: Stated) -> TokenEvents | None:
    """Return the events of `restated` tokens, None if the recorded ones stand: those of one stream at a time."""
    if not stated.may_apply:
        return None
    times, kinds = np.asarray(events.times_ns, np.int64), events.kinds
    if events.counts is not None:
        counts = np.asarray(events.counts, np.int64)
        times = np.repeat(times, counts)
        kinds = None if kinds is None else np.repeat(np.frombuffer(kinds, np.uint8), counts).tobytes()
    found = restated(times, kinds, commit_ns, stated)
    if found is None:
        return None
    codes = None if found[1] is None else np.frombuffer(found[1], np.uint8)
    begins = np.ones(len(found[0]), np.bool_)
    begins[1:] = found[0][1:] != found[0][:-1]
    if codes is not None:
        begins[1:] |= codes[1:] != codes[:-1]
    at = np.flatnonzero(begins)
    lengths = np.diff(at, append=len(begins))
    return TokenEvents(
        found[0][at].tolist(),
        None if codes is None else codes[at].tobytes(),
        None if len(at) == len(begins) else lengths.tolist(),
    )


def _resampled(recorded: int, count: int) -> Ints:
    """Return for each of `count` tokens the recorded one that it arrives with, (count,) positions from 0, ascending.

    More tokens than recorded: each recorded one stands for `count / recorded`, so that every arrival stays. Fewer: the
    first and the last arrival stay.
    """
    index = np.arange(count, dtype=np.int64)
    if count >= recorded or count == 1:
        return index * recorded // count
    return index * (recorded - 1) // (count - 1)


def _kept_kinds(codes: Kinds, chosen: Ints) -> Ints:
    """Return the chosen positions with one of each recorded kind: a kind that lost all its tokens gets one back.

    It takes the nearest position inside whose own kind has others left; the first and the last arrival stay.
    """
    if len(chosen) >= len(codes):
        return chosen
    counts = np.bincount(codes[chosen], minlength=len(KINDS))
    for kind in np.unique(codes).tolist():
        if counts[kind]:
            continue
        inner = np.arange(1, len(chosen) - 1)
        inner = inner[counts[codes[chosen[inner]]] > 1]
        if not len(inner):
            continue
        first = int(np.flatnonzero(codes == kind)[0])
        index = int(inner[np.argmin(np.abs(chosen[inner] - first))])
        counts[codes[chosen[index]]] -= 1
        counts[kind] += 1
        chosen[index] = first
        chosen.sort()
    return chosen
