"""The charges of a request to windows: its tokens and its reader's waiting, while they happen."""

from __future__ import annotations

from bisect import bisect_left
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.verdict import Verdict


class Charge(NamedTuple):
    """The charge of one request to one window; signed, since a window may give back an earlier window's charge.

    `tokens_read` and `costs` add up exactly (ExactSum) to the window's part of the benefit, in tokens.
    """

    tokens_read: int
    idle_ns: int
    costs: tuple[float, ...]


MOST_WINDOWS: Final = 20_000
"""The most windows that one stream is spread over: a clock that is far off must not cost a loop of years."""

_FEW: Final = 8
"""The number of tokens read in a loop first: nearly always the reader has text from one of them on."""
_MANY: Final = 64
"""The number of tokens from which numpy is faster."""
NOTHING = Charge(0, 0, ())


class Ledger:
    """The charges of one stream to windows, in the order in which they close.

    All instants in ns on the stream's axis. The same calls give the same charges whether the tokens are fed live or
    taken from a record.
    """

    __slots__ = (
        "_dry_ns", "_events", "_known_ns", "_seen_to_ns", "_slo", "_tokens", "closed", "commit_ns", "idle_ns",
        "tokens_read",
    )  # fmt: skip

    def __init__(self, slo: SloClass, commit_ns: int) -> None:
        self._slo = slo
        self.commit_ns = commit_ns
        self.tokens_read = 0
        """Tokens charged so far."""
        self.idle_ns = 0
        """Idle time charged so far: l as it stood at the last charge."""
        self.closed = False
        self._seen_to_ns = self._known_ns = commit_ns
        self._events = self._tokens = 0  # before _seen_to_ns
        self._dry_ns = commit_ns - 1  # as in Running

    def learn(self, read_ns: Sequence[int], known_until_ns: int) -> bool:
        """Note until when the stream is known; return whether this adds to windows that were charged before.

        `read_ns`, `known_until_ns`: as for `advance`.
        """
        before, self._known_ns = self._known_ns, max(self._known_ns, known_until_ns)
        if self.closed:
            return False
        was_unknown = before < min(self._seen_to_ns, known_until_ns)
        return was_unknown or not _divides(read_ns, self._events, self._seen_to_ns)

    def advance(
        self,
        read_ns: Sequence[int],
        x_ns: int,
        known_until_ns: int,
        counts: Sequence[int] | None = None,
        *,
        unbroken: bool = False,
    ) -> Charge:
        """Return the charge of all that happened before x and was not charged yet.

        `read_ns`: the sorted arrivals of all token events read so far, later ones included, and `counts` the tokens of
        each, None for one each; `known_until_ns`: the end of reported stream without a gap. Waiting is charged up to
        there at most; a token for a time already charged is charged now, and waiting that it disproves is given back.
        `unbroken`: the reader is known never to have waited between the first and the last token (`Running.unbroken`),
        so none is read.
        """
        if self.closed:
            return NOTHING
        x = max(x_ns, self._seen_to_ns)
        seen, tokens = self._events, self._tokens
        if unbroken:
            upto = bisect_left(read_ns, x)
            tokens = _tokens_of(counts, 0, upto)
            if upto:
                self._dry_ns = read_ns[0] + tokens * self._slo.pace_ns
        else:
            if not _divides(read_ns, seen, self._seen_to_ns):  # a token arrived for an earlier time
                seen, tokens, self._dry_ns = 0, 0, self.commit_ns - 1
            upto = bisect_left(read_ns, x, seen)
            if upto > seen:
                tokens += _tokens_of(counts, seen, upto)
                self._read_on(read_ns[seen:upto], None if counts is None else counts[seen:upto])
        self._events, self._tokens, self._seen_to_ns = upto, tokens, x
        allowance = self.commit_ns + self._slo.start_ns + (tokens + 1) * self._slo.pace_ns
        idle = max(0, max(self._dry_ns, min(x, known_until_ns)) - allowance)
        return self._charge(tokens, idle)

    def close(self, verdict: Verdict | None) -> Charge:
        """Return the rest, so that all charges add up to the verdict; without one, all charges are given back.

        None if the request cannot be judged (tokens are missing); a verdict that judges nothing does the same.
        """
        if self.closed:
            return NOTHING
        self.closed = True
        if verdict is None or verdict.idle_ns is None:
            return self._charge(0, 0)
        return self._charge(verdict.tokens_read, verdict.idle_ns, verdict.abort_penalty)

    def _read_on(self, times: Sequence[int], counts: Sequence[int] | None) -> None:
        pace, dry, last = self._slo.pace_ns, self._dry_ns, times[-1]
        for number, (time, count) in enumerate(zip(times, repeat(1) if counts is None else counts, strict=False)):
            if last <= dry:  # nearly always soon: text arrives faster than it is read
                dry += _tokens_of(counts, number, len(times)) * pace
                break
            if number == _FEW and len(times) > _MANY:
                dry = _dry_after(times[number:], None if counts is None else counts[number:], dry, pace)
                break
            dry = max(time, dry) + count * pace
        self._dry_ns = dry

    def _charge(self, tokens_read: int, idle_ns: int, abort_penalty: float = 0.0) -> Charge:
        tokens = tokens_read - self.tokens_read
        self.tokens_read = tokens_read
        if idle_ns == self.idle_ns and not abort_penalty:  # nearly always
            return Charge(tokens, 0, ()) if tokens else NOTHING
        waited = idle_ns - self.idle_ns
        before = self._slo.benefit.penalty_tokens(self.idle_ns)
        after = self._slo.benefit.penalty_tokens(idle_ns)
        self.idle_ns = idle_ns
        return Charge(tokens, waited, tuple(filter(None, (before, -after, -abort_penalty))))


def _divides(sorted_ns: Sequence[int], index: int, instant_ns: int) -> bool:
    """Tell whether the first `index` instants are before this one, and the others are not."""
    if index > len(sorted_ns) or (index and sorted_ns[index - 1] >= instant_ns):
        return False
    return index == len(sorted_ns) or sorted_ns[index] >= instant_ns


def _tokens_of(counts: Sequence[int] | None, start: int, stop: int) -> int:
    """Return the tokens of the events from `start` to `stop`."""
    return stop - start if counts is None else sum(counts[start:stop])


def _dry_after(times: Sequence[int], counts: Sequence[int] | None, dry_ns: int, pace_ns: int) -> int:
    """Return when a reader of one token each P runs dry: where t_i - i P is highest, and a P for each later token."""
    import numpy as np  # not needed for few tokens, and not loaded in every process

    tokens = np.ones(len(times), np.int64) if counts is None else np.asarray(counts, np.int64)
    upto = np.cumsum(tokens)
    late = np.asarray(times, dtype=np.int64) - (upto - tokens) * pace_ns
    return max(dry_ns, int(late.max())) + int(upto[-1]) * pace_ns


def window_start(instant_ns: int, window_ns: int) -> int:
    """Return the start of the window [k w, (k+1) w) that holds an instant."""
    return instant_ns - instant_ns % window_ns


def window_charges(
    slo: SloClass,
    commit_ns: int,
    read_ns: Sequence[int],
    end_ns: int,
    verdict: Verdict | None,
    window_ns: int,
    known_until_ns: int | None = None,
) -> list[tuple[int, Charge]]:
    """Return a recorded request's charges to windows, as (window start, charge), in order; empty ones left out.

    `read_ns`: sorted arrivals of the tokens read; `end_ns`: its end, not before its last token; `known_until_ns` as
    for Ledger.advance, the end if None.
    """
    ledger = Ledger(slo, commit_ns)
    known = end_ns if known_until_ns is None else known_until_ns
    last = window_start(end_ns, window_ns)
    starts = range(window_start(commit_ns, window_ns), last, window_ns)
    charges = [(start, ledger.advance(read_ns, start + window_ns, known)) for start in starts]
    charges.append((last, ledger.close(verdict)))
    return [(start, charge) for start, charge in charges if charge is not NOTHING]
