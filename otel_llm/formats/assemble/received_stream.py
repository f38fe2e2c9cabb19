"""The received segments of one stream, in any order, with repetitions and holes; applied ones are compacted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm import semconv
from otel_llm.core.limits import MAX_TOKENS
from otel_llm.slo.token_events import TokenEvents, joined

if TYPE_CHECKING:
    from otel_llm.formats.records import Attributes, RequestSpan, Segment

DUPLICATE: Final = "duplicate_segments"
TOO_MANY_TOKENS: Final = "refused.too_many_tokens"
TOO_MANY_BYTES: Final = "refused.too_many_bytes_waiting"
"""The counts of segments that are not kept."""
MAX_HELD_BYTES: Final = 16 * 2**20
"""The most bytes of one stream's segments that wait for an earlier one: twenty times those of 120 s at 100 tokens/s."""
# The approximate bytes of each.
_RECORD_BYTES: Final = 800
_ATTRIBUTE_BYTES: Final = 150
EVENT_BYTES: Final = 40
_COUNTED_EVENT_BYTES: Final = 80


def record_bytes(record: Segment | RequestSpan) -> int:
    """Return the approximate memory of a record."""
    return _RECORD_BYTES + _ATTRIBUTE_BYTES * len(record.attributes) + events_bytes(record.events)


def events_bytes(events: TokenEvents) -> int:
    """Return the approximate memory of token events in lists."""
    return len(events.times_ns) * (EVENT_BYTES if events.counts is None else _COUNTED_EVENT_BYTES)


@dataclass(slots=True)
class ReceivedSegment:
    """A received segment, and its number of tokens.

    `tokens` stays when `segment.times_ns` was emptied because the live evaluator has applied it.
    """

    segment: Segment
    tokens: int

    @property
    def next_token(self) -> int:
        """Return the index of the first token after this segment."""
        return self.segment.first_token + self.tokens


@dataclass(slots=True)
class Prefix:
    """The summary of segments 0 to `segments` - 1, which the live evaluator has applied and dropped.

    None of them stated the end of the stream; `attributes` are theirs together, the earliest segment's first.
    """

    segments: int = 0
    tokens: int = 0
    start_ns: int = 0
    end_ns: int = 0
    attributes: Attributes = field(default_factory=dict)


class Extent(NamedTuple):
    """The reach of a stream's segments, in indexes of tokens.

    `covered` tokens are received, each counted once, of `expected` by the last of them. The unbroken run from token 0
    has `contiguous` tokens and is known to be all up to `known_ns`, None if at all: a missing empty segment is no hole,
    and without tokens between, that is the end of the last segment that continues the run.
    """

    covered: int
    expected: int
    contiguous: int
    known_ns: int | None


@dataclass(slots=True)
class ReceivedStream:
    """The segments of one stream by number; a repetition is counted and changes nothing."""

    held: dict[int, ReceivedSegment] = field(default_factory=dict)
    offset_ns: int | None = None
    """End - receipt of the segment that was received first, of several at once of the one with the lowest number: the
    sender's clock is ahead by at least this."""
    first: tuple[int, int] | None = None
    """The instant of that receipt, and the segment's number."""
    ending: int | None = None
    """The highest number of a segment that states the end of the stream."""
    prefix: Prefix = field(default_factory=Prefix)
    tokens: int = 0
    """The tokens of all segments that were added, also of those that repeat indexes."""
    held_bytes: int = 0
    """The approximate memory of the held segments."""

    @classmethod
    def begun(cls, commit: Segment) -> ReceivedStream:
        """Return a stream as after `add` and `compact` of a segment 0 without tokens, received first."""
        prefix = Prefix(1, 0, commit.start_ns, commit.end_ns, commit.attributes)
        if commit.receipt_ns is None:
            return cls(prefix=prefix)
        came = (commit.receipt_ns, 0)
        return cls(offset_ns=commit.end_ns - commit.receipt_ns, first=came, prefix=prefix)

    def add(self, segment: Segment, most_bytes: int | None = None) -> str | None:
        """Keep a segment unless its number is there already, or the stream would have more than MAX_TOKENS.

        `most_bytes`: how many bytes of segments may be held; None: any.

        Returns:
            None, or the name of the count of segments that are not kept.
        """
        if self.has(segment.seq):
            return DUPLICATE
        tokens, held_bytes = self.tokens + segment.tokens, self.held_bytes + record_bytes(segment)
        if tokens > MAX_TOKENS:
            return TOO_MANY_TOKENS
        if most_bytes is not None and held_bytes > most_bytes:
            return TOO_MANY_BYTES
        self.tokens, self.held_bytes = tokens, held_bytes
        if segment.receipt_ns is not None and not self.prefix.segments:
            came = (segment.receipt_ns, segment.seq)
            if self.first is None or (came < self.first and came[0] == self.first[0]):
                self.first, self.offset_ns = came, segment.end_ns - segment.receipt_ns
        self.held[segment.seq] = ReceivedSegment(segment, segment.tokens)
        if semconv.OUTCOME in segment.attributes and (self.ending is None or segment.seq > self.ending):
            self.ending = segment.seq
        return None

    def take_events(self, seq: int) -> TokenEvents:
        """Return the token events of a held segment, which forgets them: the caller has applied them."""
        segment = self.held[seq].segment
        events = segment.events
        self.held_bytes -= events_bytes(events)
        segment.times_ns, segment.kinds, segment.counts = [], None, None
        return events

    def has(self, seq: int) -> bool:
        """Tell whether the segment of this number was received."""
        return seq < self.prefix.segments or seq in self.held

    def count(self) -> int:
        """Return the number of received segments."""
        return self.prefix.segments + len(self.held)

    def compact(self) -> None:
        """Move segments into the prefix, from the first on, whose tokens were applied and that do not end it."""
        prefix = self.prefix
        while (held := self.held.get(prefix.segments)) is not None:
            segment = held.segment
            if segment.times_ns or held.segment.first_token > prefix.tokens or semconv.OUTCOME in segment.attributes:
                return
            del self.held[prefix.segments]
            self.held_bytes -= record_bytes(segment)
            if not prefix.segments:
                prefix.start_ns, prefix.end_ns = segment.start_ns, segment.end_ns
            prefix.segments += 1
            prefix.tokens = max(prefix.tokens, held.next_token)
            prefix.end_ns = max(prefix.end_ns, segment.end_ns)
            if segment.attributes:
                prefix.attributes = {**segment.attributes, **prefix.attributes}

    def in_order(self) -> list[ReceivedSegment]:
        """Return the received segments that are still held, by number."""
        if len(self.held) < 2:
            return list(self.held.values())
        return [self.held[seq] for seq in sorted(self.held)]

    def last(self) -> ReceivedSegment | None:
        """Return the segment that states the end of the stream, if it was received."""
        return None if self.ending is None else self.held[self.ending]

    def commit_ns(self) -> int | None:
        """Return the commit by segment 0; None if that was not received."""
        if self.prefix.segments:
            return self.prefix.start_ns
        first = self.held.get(0)
        return None if first is None else first.segment.start_ns

    def seen_until_ns(self) -> int | None:
        """Return the latest end of a segment."""
        ends = [held.segment.end_ns for held in self.held.values()]
        if self.prefix.segments:
            ends.append(self.prefix.end_ns)
        return max(ends, default=None)

    def stating(self, name: str, otherwise: Attributes) -> Attributes:
        """Return the attributes of the earliest segment that states this one, else the other ones."""
        if name in self.prefix.attributes:
            return self.prefix.attributes
        every = (held.segment.attributes for held in self.in_order())
        return next((attributes for attributes in every if name in attributes), otherwise)

    def overlay(self, attributes: Attributes) -> None:
        """Write the segments' attributes over `attributes`; the earliest segment wins."""
        for held in reversed(self.in_order()):
            attributes.update(held.segment.attributes)
        attributes.update(self.prefix.attributes)

    def extent(self) -> Extent:
        """Return the reach of the segments' tokens."""
        prefix = self.prefix
        upto = covered = expected = prefix.tokens
        known_ns = prefix.end_ns if prefix.segments else None
        held = self.held
        if len(held) == 1:
            # The usual case: one segment after the compacted ones.
            (one,) = held.values()
            first, following = one.segment.first_token, one.next_token
            if first <= upto:
                if following > upto:
                    upto = covered = expected = following
                if known_ns is None or one.segment.end_ns > known_ns:
                    known_ns = one.segment.end_ns
                return Extent(covered, expected, upto, known_ns)
        for one in sorted(held.values(), key=_by_first_token):
            covered += max(0, one.next_token - max(upto, one.segment.first_token))
            upto = expected = max(upto, one.next_token)
        upto = prefix.tokens
        for one in self.in_order():
            if one.segment.first_token > upto:
                break
            upto = max(upto, one.next_token)
            known_ns = one.segment.end_ns if known_ns is None else max(known_ns, one.segment.end_ns)
        return Extent(covered, expected, upto, known_ns)

    def token_events(self) -> TokenEvents:
        """Return the held token events in order of segment (unsorted within)."""
        return joined([held.segment.events for held in self.in_order()])


def _by_first_token(held: ReceivedSegment) -> int:
    return held.segment.first_token


def missing_segments(stream: ReceivedStream) -> int:
    """Return how many numbers below the highest were not received."""
    held = len(stream.held)
    if not held:
        return 0
    return max(stream.held) + 1 - stream.prefix.segments - held
