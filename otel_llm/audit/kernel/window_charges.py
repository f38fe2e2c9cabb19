"""The charges of a batch's streams to windows: the ledger of `slo.ledger`, run over all of them at once.

One array for each column, one entry for each charge. The numbers equal those of a `Ledger` that is advanced to the end
of every window of a stream and then closed; a block whose sums could leave 64 bits is charged by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from otel_llm.audit.input.stream_batch import BATCH_TOKENS, expanded, first_events, slices, token_numbers, token_times
from otel_llm.audit.kernel.judge_batch import recorded
from otel_llm.slo.batch.ragged import block_of, by_class
from otel_llm.slo.ledger import MOST_WINDOWS, Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from otel_llm.slo.batch.ragged import Ragged
    from otel_llm.slo.classes import SloClass, SloClasses

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]

_ROOM: Final = 2**62
SLICE_TOKENS: Final = 2 * BATCH_TOKENS
"""About the most tokens that are charged at once: more than those of a batch, unless its events claim many."""


class Charged(NamedTuple):
    """Charges of one class (C,): the stream's index, the begin of the window, and the amounts.

    `idle_before`, `idle_after`: the stream's idle time before and after the charge, ns; `tokens`: read in between.
    """

    slo: SloClass
    stream: Ints
    start_ns: Ints
    tokens: Ints
    idle_before: Ints
    idle_after: Ints


class Spread(NamedTuple):
    """The positions of a batch's streams in time: each (R,), in ns of the windows' axis if it says `shifted`.

    `in_windows`: it has times; `begun`: its commit is known; `first`, `last`: the windows of its commit and its end,
    shifted; `end_ns`: its end or its last known token, whichever is later; `cut`: it lasts more than MOST_WINDOWS.
    """

    in_windows: Bools
    begun: Bools
    commit_ns: Ints
    end_ns: Ints
    known_until_ns: Ints
    shift_ns: Ints
    first: Ints
    last: Ints
    cut: Bools


def spread(streams: pa.RecordBatch, window_ns: int, lateness_ns: int) -> Spread:
    """Return the positions in time of a batch of STREAMS."""
    commit, begun = _filled(streams, "commit_ns")
    stated_end, ended = _filled(streams, "end_ns")
    known_until, has_until = _filled(streams, "known_until_ns")
    offset, _ = _filled(streams, "offset_ns")
    complete = streams.column("complete").to_numpy(zero_copy_only=False)
    times, offsets = token_times(streams)
    foreign = streams.column("foreign").to_numpy(zero_copy_only=False)
    shift = np.where(np.abs(offset) > lateness_ns, offset, 0)
    last_token = _greatest(times, offsets, first_events(streams, _counted(streams)), commit)
    end = np.where(begun, np.maximum(np.where(ended, stated_end, commit), last_token), stated_end)
    known = np.where(complete, end, np.where(has_until & (known_until != 0), known_until, commit))
    first, last = _window(commit - shift, window_ns), _window(end - shift, window_ns)
    cut = begun & (last - first > MOST_WINDOWS * window_ns)
    return Spread(
        in_windows=(~foreign | (np.diff(offsets) > 0)) & (begun | ended),
        begun=begun,
        commit_ns=commit,
        end_ns=end,
        known_until_ns=known,
        shift_ns=shift,
        first=np.where(begun, first, last),
        last=last,
        cut=cut,
    )


def charges(
    streams: pa.RecordBatch, judged: pa.RecordBatch, classes: SloClasses, window_ns: int, where: Spread
) -> Iterator[Charged]:
    """Yield all charges of a batch of STREAMS and its JUDGED, without empty ones."""
    which = where.in_windows & where.begun
    rows = np.flatnonzero(which)
    if not len(rows):
        return
    # Of a stream with a hole only the tokens before it: no others were charged.
    tokens = _counted(streams)[which]
    places = {name: place for place, name in enumerate(classes.names)}
    index = np.array([places[name] for name in judged.column("slo_class").to_pylist()], np.int64)[rows]
    final_tokens, final_idle = _finals(streams, judged)
    first = 0
    for part in slices(streams if which.all() else streams.filter(pa.array(which)), tokens, SLICE_TOKENS):
        own = slice(first, first + len(part))
        first += len(part)
        requests = recorded(expanded(part, tokens[own]), np.ones(len(part), np.bool_))
        for slo, chosen in by_class(requests, classes.classes, index[own]):
            at = rows[own][chosen]
            read, reading = block_of(requests, chosen).read(slo.reads)
            block = _Block(slo, at, read, reading, where, window_ns, final_tokens[at], final_idle[at])
            yield from block.by_ledger() if block.too_large() else block.at_once()


def _finals(streams: pa.RecordBatch, judged: pa.RecordBatch) -> tuple[Ints, Ints]:
    """Return the tokens read and the idle time of the verdicts (R,), 0 if there is none or nothing was judged."""
    idle, decided = _filled(judged, "idle_ns")
    decided &= streams.column("complete").to_numpy(zero_copy_only=False)
    tokens, _ = _filled(judged, "tokens_read")
    return np.where(decided, tokens, 0), np.where(decided, idle, 0)


class _Block:
    """The streams of one class: `at` their rows, `read` the tokens read of those at `reading` among them."""

    def __init__(
        self,
        slo: SloClass,
        at: Ints,
        read: Ragged | None,
        reading: Ints,
        where: Spread,
        window_ns: int,
        final_tokens: Ints,
        final_idle: Ints,
    ) -> None:
        self.slo, self.at, self.window_ns = slo, at, window_ns
        self.times = np.zeros(0, np.int64) if read is None else read.times
        self.begin, self.stop = np.zeros(len(at), np.int64), np.zeros(len(at), np.int64)
        if read is not None:
            self.begin[reading], self.stop[reading] = read.starts, read.starts + read.lengths
        self.commit, self.known, self.shift = where.commit_ns[at], where.known_until_ns[at], where.shift_ns[at]
        self.last = where.last[at]
        self.first = np.where(where.cut[at], self.last - MOST_WINDOWS * window_ns, where.first[at])
        self.final_tokens, self.final_idle = final_tokens, final_idle

    def too_large(self) -> bool:
        """Tell whether a sum could leave 64 bits."""
        longest = int((self.stop - self.begin).max(initial=0)) + 1
        reach = max(_furthest(one) for one in (self.commit, self.known, self.last, self.times)) + _furthest(self.shift)
        return reach + longest * self.slo.pace_ns + self.slo.start_ns + 2 * self.window_ns >= _ROOM

    def at_once(self) -> Iterator[Charged]:
        """Yield the charges window by window: each time of all streams that last beyond the window's end."""
        pace = self.slo.pace_ns
        late = np.zeros(len(self.times) + 1, np.int64)  # one more, so that the end of the last stream is an index in it
        lengths = self.stop - self.begin
        index = np.arange(len(self.times), dtype=np.int64)
        order = np.flatnonzero(lengths)
        index -= np.repeat(self.begin[order], lengths[order])
        np.subtract(self.times, index * pace, out=late[:-1])
        # A reader of one token each P runs dry after the highest t_i - i P.
        height = self.commit - 1
        upto = self.begin.copy()
        tokens, idle = np.zeros(len(self.at), np.int64), np.zeros(len(self.at), np.int64)
        live = np.flatnonzero(self.first < self.last)
        step = 0
        while len(live):
            x = self.first[live] + (step + 1) * self.window_ns + self.shift[live]
            until = _lower_bound(self.times, upto[live], self.stop[live], x)
            more = np.flatnonzero(until > upto[live])
            if len(more):
                cuts = np.stack((upto[live[more]], until[more]), axis=1).ravel()
                height[live[more]] = np.maximum(height[live[more]], np.maximum.reduceat(late, cuts)[::2])
            upto[live] = until
            count = until - self.begin[live]
            dry = height[live] + count * pace
            allowance = self.commit[live] + self.slo.start_ns + (count + 1) * pace
            waited = np.maximum(0, np.maximum(dry, np.minimum(x, self.known[live])) - allowance)
            start = self.first[live] + step * self.window_ns
            yield self._charged(live, start, count - tokens[live], idle[live], waited)
            tokens[live], idle[live] = count, waited
            step += 1
            live = live[self.first[live] + step * self.window_ns < self.last[live]]
        everyone = np.arange(len(self.at))
        yield self._charged(everyone, self.last, self.final_tokens - tokens, idle, self.final_idle)

    def by_ledger(self) -> Iterator[Charged]:
        """Yield the charges stream by stream, in integers of any size."""
        for place in range(len(self.at)):
            ledger = Ledger(self.slo, int(self.commit[place]))
            read = self.times[self.begin[place] : self.stop[place]].tolist()
            entries: list[tuple[int, int, int, int]] = []
            for start in range(int(self.first[place]), int(self.last[place]), self.window_ns):
                before = ledger.idle_ns
                x = start + self.window_ns + int(self.shift[place])
                charge = ledger.advance(read, x, int(self.known[place]))
                entries.append((start, charge.tokens_read, before, ledger.idle_ns))
            left = int(self.final_tokens[place]) - ledger.tokens_read
            entries.append((int(self.last[place]), left, ledger.idle_ns, int(self.final_idle[place])))
            columns = [np.array(column, np.int64) for column in zip(*entries, strict=True)]
            yield self._charged(np.full(len(entries), place), columns[0], columns[1], columns[2], columns[3])

    def _charged(self, which: Ints, start: Ints, tokens: Ints, before: Ints, after: Ints) -> Charged:
        some = (tokens != 0) | (before != after)
        return Charged(self.slo, self.at[which[some]], start[some], tokens[some], before[some], after[some])


def _counted(streams: pa.RecordBatch) -> Ints:
    """Return the number of charged tokens of each stream (R,): all, or the run before the first hole."""
    lengths = token_numbers(streams)
    complete = streams.column("complete").to_numpy(zero_copy_only=False)
    known = streams.column("known_tokens").to_numpy()
    return np.where(complete, lengths, np.minimum(lengths, known))


def _greatest(times: Ints, offsets: Ints, counts: Ints, otherwise: Ints) -> Ints:
    """Return the latest of each stream's first `counts` token times (R,), or `otherwise` if there is none."""
    greatest = otherwise.copy()
    some = np.flatnonzero(counts)
    if len(some):
        cuts = np.stack((offsets[some], offsets[some] + counts[some]), axis=1).ravel()
        padded = np.concatenate((times, [0]))
        greatest[some] = np.maximum(greatest[some], np.maximum.reduceat(padded, cuts)[::2])
    return greatest


def _lower_bound(times: Ints, low: Ints, high: Ints, x: Ints) -> Ints:
    """Return for each the first index from `low` to `high` whose time is not before x: a vectorised binary search."""
    low, high = low.copy(), high.copy()
    while len(open_ := np.flatnonzero(low < high)):
        middle = (low[open_] + high[open_]) // 2
        before = times[middle] < x[open_]
        low[open_[before]] = middle[before] + 1
        high[open_[~before]] = middle[~before]
    return low


def _furthest(instants: Ints) -> int:
    return max(abs(int(instants.min(initial=0))), abs(int(instants.max(initial=0))))


def _window(instant_ns: Ints, window_ns: int) -> Ints:
    result: Ints = instant_ns - instant_ns % window_ns
    return result


def _filled(batch: pa.RecordBatch, name: str) -> tuple[Ints, Bools]:
    """Return a column of integers (R,), 0 if it is null, and where it is not null (R,) bool."""
    column = batch.column(name)
    return column.fill_null(0).to_numpy(zero_copy_only=False).copy(), column.is_valid().to_numpy(zero_copy_only=False)
