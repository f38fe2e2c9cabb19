"""The choices of one request: readings are assigned to them and cut. No lock, no clock, no I/O."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, Protocol

from otel_llm import semconv
from otel_llm.export.records import CONTENT, REASONING
from otel_llm.instrumentation.segments.outcomes import COMPLETED
from otel_llm.instrumentation.segments.timeline import FLUSH_INTERVAL_NS, Timeline
from otel_llm.semconv import MAX_CHOICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from otel_llm.export.records import AttributeValue, Origin, Segment
    from otel_llm.instrumentation.segments.chunks import Mark, Reading
    from otel_llm.instrumentation.segments.statements import Statements
    from otel_llm.instrumentation.segments.token_estimate import Estimates, TokenEstimate

Counted = int | tuple[int, "tuple[Mark, ...]"]
"""The buffered item of a chunk: its time and its reading; the time alone if it was one token of content of choice 0."""
Item = int | tuple[int, "int | tuple[Mark, ...]"]
"""The same, or behind the time the size of a text of content of choice 0 that the server did not count."""
_COUNTED, _SIZED, _READ = range(3)
"""The forms of an item."""
GOES_ON_NS: Final = 5_000_000_000
"""How long the only choice of a reply stays open after a finish reason if the reply has not ended."""


class Reader(Protocol):
    """A reader of the chunks of one kind of stream.

    While `plain`, a chunk with a `plain_size` is a text of content of choice 0, and need not be read.
    """

    plain: bool

    @property
    def reported(self) -> Statements:
        """Return the reply's statements so far."""

    def plain_size(self, chunk: object, /) -> int:
        """Return the size of the common chunk's text, 0 for any other chunk."""

    def __call__(self, chunk: object, /) -> Reading:
        """Return the reading of a chunk."""

    def basis(self, choice: int) -> str:
        """Return the basis of a choice's token counts: exact, chunk or estimated."""


class Choices:
    """The streams of one request, all committed at the same instant.

    Times of items are monotonic ns; `offset_ns`, added to them, makes unix ns, in which everything else is: the one
    anchor that the request keeps.
    """

    __slots__ = (
        "_chunk_ns",
        "_commit_ns",
        "_estimates",
        "_getrandbits",
        "_identity",
        "_offset_ns",
        "_origin",
        "_timelines",
        "failed",
        "first_chunk_ns",
        "first_token_ns",
        "first_visible_ns",
        "gaps_ns",
        "newest_ns",
        "reader",
    )

    def __init__(
        self,
        count: int,
        commit_ns: int,
        offset_ns: int,
        origin: Origin,
        getrandbits: Callable[[int], int],
        identity: Mapping[str, AttributeValue],
        reader: Reader,
        estimates: Estimates,
    ) -> None:
        self._commit_ns = commit_ns
        self._offset_ns = offset_ns
        self._origin = origin
        self._getrandbits = getrandbits
        self._identity = identity
        self._estimates = estimates
        self.reader = reader
        self._timelines = {choice: self._timeline(choice) for choice in range(count)}
        self.newest_ns: int | None = None  # unix ns of the newest chunk, framing included
        self.first_chunk_ns: int | None = None  # unix ns of the first chunk, framing included
        self.first_token_ns: int | None = None  # of the first token of any kind
        self.first_visible_ns: int | None = None  # of the first token of content
        self.gaps_ns: list[int] | None = None  # between chunks, since they were last taken; None: not wanted
        self._chunk_ns: int | None = None
        self.failed = False  # whether a choice ended other than completed

    def _timeline(self, choice: int) -> Timeline:
        return Timeline(choice, self._commit_ns, self._origin, self._getrandbits)

    def commit(self) -> list[Segment]:
        """Return every choice's segment 0."""
        return [timeline.commit(self._identity) for timeline in self._timelines.values()]

    def take(self, items: Sequence[Item]) -> list[Segment]:
        """Apply buffered items, in order; return segment 0 of choices that were not announced."""
        if not items:
            return []
        newest = items[-1]
        self.newest_ns = _time_ns(newest) + self._offset_ns
        offset_ns = self._offset_ns
        if self.first_chunk_ns is None:
            self.first_chunk_ns = _time_ns(items[0]) + offset_ns
        if self.gaps_ns is not None:
            self._measure(self.gaps_ns, [_time_ns(item) for item in items])
        if (texts := _texts(items)) is not None:
            self._take_texts(*texts)
            return []
        commits = []
        for form, run in itertools.groupby(items, _form):
            if form == _COUNTED:
                self._take_plain([item + offset_ns for item in run])  # type: ignore[operator]
            elif form == _SIZED:
                self._take_texts(*zip(*run, strict=True))
            else:
                commits += self._take_marked(run)  # type: ignore[arg-type]
        return commits

    def _take_plain(self, times_ns: list[int]) -> None:
        if self.first_visible_ns is None:
            self._first(times_ns[0], CONTENT)
        if not self._timelines[0].closed:
            self._timelines[0].ended_ns = None
            self._timelines[0].take(times_ns)

    def _take_texts(self, times_ns: Sequence[int], sizes: Sequence[int]) -> None:
        timeline, offset_ns = self._timelines[0], self._offset_ns
        if timeline.closed:
            return
        estimate = self._estimate(0)
        counts = estimate.counts(CONTENT, sizes)
        if estimate.one_each:
            self._take_plain([time_ns + offset_ns for time_ns in times_ns])
            return
        for time_ns, count in zip(times_ns, counts, strict=True):
            self._take_counted(timeline, time_ns + offset_ns, CONTENT, count)

    def _take_counted(self, timeline: Timeline, at_ns: int, kind: int, count: int) -> None:
        if count:  # else its text is a part of a token that was counted before
            if self.first_visible_ns is None:
                self._first(at_ns, kind)
            timeline.ended_ns = None  # an earlier finish reason was not its last
            timeline.take_marked(at_ns, kind, count)

    def _estimate(self, choice: int) -> TokenEstimate:
        return self._estimates.of(choice, self.reader.reported.response_model)

    def _take_marked(self, items: Iterable[tuple[int, Reading]]) -> list[Segment]:
        commits = []
        for time_ns, marks in items:
            for choice, kind, count, finished in marks:
                timeline = self._timelines.get(choice)
                if timeline is None:
                    if not 0 <= choice < MAX_CHOICES:
                        continue
                    timeline = self._timelines[choice] = self._timeline(choice)
                    commits.append(timeline.commit(self._identity))
                if timeline.closed:
                    continue
                tokens = count if count >= 0 else self._estimate(choice).of(kind, count)
                self._take_counted(timeline, time_ns + self._offset_ns, kind, tokens)
                if finished:
                    timeline.ended_ns = time_ns + self._offset_ns
        return commits

    def _first(self, time_ns: int, kind: int) -> None:
        if self.first_token_ns is None:
            self.first_token_ns = time_ns
        if kind == CONTENT:
            self.first_visible_ns = time_ns

    def _measure(self, gaps_ns: list[int], times_ns: list[int]) -> None:
        if self._chunk_ns is not None:
            times_ns.insert(0, self._chunk_ns)
        gaps_ns += [after - before for before, after in itertools.pairwise(times_ns)]
        self._chunk_ns = times_ns[-1]

    def take_gaps(self) -> list[int]:
        """Return the times between chunks since the last call, ns."""
        gaps_ns = self.gaps_ns or []
        if gaps_ns:
            self.gaps_ns = []
        return gaps_ns

    def cut(
        self, now_ns: int, more: Callable[[], Mapping[str, AttributeValue]], last_byte_ns: int = 0
    ) -> list[Segment]:
        """Return the segments of all choices at `now_ns`.

        A choice that the server declared complete is closed one flush later if the reply has others. The only one waits
        for the end of the reply, `GOES_ON_NS` at most: usage may follow, and servers state reasons too early. `more`
        returns further attributes of a last segment; `last_byte_ns`: when the newest byte was received (monotonic), 0
        if only chunks are seen.
        """
        segments = []
        newest_ns = max(self.newest_ns or 0, last_byte_ns + self._offset_ns if last_byte_ns else 0)
        for timeline in self._timelines.values():
            if timeline.closed:
                continue
            timeline.state(self.basis_of(timeline.choice), self._estimates.learned(timeline.choice))
            if timeline.ended_ns is None:
                segments += timeline.cut(now_ns, newest_ns)
            elif now_ns - timeline.ended_ns >= (GOES_ON_NS if self.count == 1 else FLUSH_INTERVAL_NS):
                segments += self._close(timeline, timeline.ended_ns, COMPLETED, more())
            else:
                segments += timeline.cut(timeline.ended_ns)
        return segments

    def last(self, end_ns: int, outcome: str, more: Mapping[str, AttributeValue]) -> list[Segment]:
        """Return the remaining segments; choices that the server declared complete are, the others end as `outcome`."""
        segments = []
        for timeline in self._timelines.values():
            if timeline.closed:
                continue
            if timeline.ended_ns is None:
                segments += self._close(timeline, end_ns, outcome, more)
            else:
                segments += self._close(timeline, timeline.ended_ns, COMPLETED, more)
        return segments

    def _close(
        self, timeline: Timeline, end_ns: int, outcome: str, more: Mapping[str, AttributeValue]
    ) -> list[Segment]:
        self.failed |= outcome != COMPLETED
        basis = self.basis_of(timeline.choice)
        timeline.state(basis, self._estimates.learned(timeline.choice))
        if outcome == COMPLETED:
            self._learn(timeline, basis)
        if (reason := self.reader.reported.finish_reasons.get(timeline.choice)) is not None:
            more = {**more, semconv.GEN_AI_RESPONSE_FINISH_REASONS: (reason,)}
        return timeline.last(end_ns, outcome, basis, more)

    def basis_of(self, choice: int) -> str:
        """Return the basis of a choice's token counts: exact, chunk or estimated."""
        timeline = self._timelines.get(choice)
        if timeline is not None and timeline.full:
            return "estimated"  # tokens were left out
        return self._estimates.basis(choice, self.reader.basis(choice))

    def _learn(self, timeline: Timeline, basis: str) -> None:
        """Teach the model by the only choice of a whole reply, if the reply states its length."""
        estimate, (output, reasoning) = self._estimates.known(timeline.choice), self.reader.reported.total
        if estimate is None or output is None or self.count != 1 or self.reader.basis(timeline.choice) != "chunk":
            return
        thinks = REASONING in estimate.kinds
        if thinks and reasoning is None:
            return
        # A kind that was not shown was not recorded either.
        tokens = (reasoning or 0) * thinks + (output - (reasoning or 0)) * (len(estimate.kinds) > thinks)
        most = semconv.STATED_TIMES_MORE[basis] * timeline.tokens
        if 0 < tokens <= most and timeline.tokens <= semconv.STATED_TIMES_FEWER * tokens:
            estimate.learn(timeline.tokens, tokens)

    def end_ns(self, choice: int) -> int:
        """Return the end of a choice's newest segment, the earliest time of further tokens; the commit before it."""
        timeline = self._timelines.get(choice)
        return self._commit_ns if timeline is None else timeline.end_ns

    def is_quiet(self, item: Item) -> bool:
        """Return whether an item has a token for a choice whose newest segment is an empty one."""
        if isinstance(item, int) or isinstance(item[1], int):
            return self._timelines[0].quiet
        return any(
            count and choice in self._timelines and self._timelines[choice].quiet for choice, _, count, _ in item[1]
        )

    @property
    def quiet(self) -> bool:
        """Return whether a choice's newest segment is an empty one."""
        return any(timeline.quiet for timeline in self._timelines.values())

    @property
    def due_ns(self) -> int | None:
        """Return the instant at which the first choice must send an empty segment, None if none must."""
        # A copy: read without the lock, while another thread may announce one more choice.
        dues = [timeline.due_ns for timeline in tuple(self._timelines.values())]
        return min((due for due in dues if due is not None), default=None)

    @property
    def first_times_s(self) -> dict[str, AttributeValue]:
        """Return the times from the commit to the first token, of any kind and of content, s; those that are known."""
        firsts = {semconv.FIRST_TOKEN: self.first_token_ns, semconv.FIRST_VISIBLE: self.first_visible_ns}
        return {name: max(at - self._commit_ns, 0) / 1e9 for name, at in firsts.items() if at is not None}

    @property
    def count(self) -> int:
        """Return the number of choices."""
        return len(self._timelines)

    @property
    def tokens(self) -> int:
        """Return the tokens of all choices."""
        return sum(timeline.tokens for timeline in self._timelines.values())

    @property
    def segments(self) -> int:
        """Return the segments cut so far, of all choices."""
        return sum(timeline.seq for timeline in self._timelines.values())

    @property
    def basis(self) -> str:
        """Return the basis of the token counts, `estimated` if the choices differ."""
        bases = {self.basis_of(choice) for choice in self._timelines}
        return bases.pop() if len(bases) == 1 else "estimated"


def _texts(items: Sequence[Item]) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the times and sizes of items that are texts, as nearly all are; None if one is not. No loop in Python."""
    try:
        times_ns, sizes = zip(*items, strict=True)
        sum(sizes)
    except TypeError:
        return None
    return times_ns, sizes


def _form(item: Item) -> int:
    if isinstance(item, int):
        return _COUNTED
    return _SIZED if isinstance(item[1], int) else _READ


def _time_ns(item: Item) -> int:
    return item if isinstance(item, int) else item[0]
