"""One stream in flight: its received segments, its applied tokens, and the facts for rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from otel_llm import semconv
from otel_llm.evaluate.streams.lifecycle import IN_FLIGHT, StreamEvent, StreamState, following
from otel_llm.evaluate.streams.stream_in_flight import UNGROUPED, Grouped
from otel_llm.evaluate.streams.stream_table import PARTS
from otel_llm.formats.batch import key_bytes
from otel_llm.formats.spans.attributes import text_of
from otel_llm.slo.ledger import Ledger
from otel_llm.slo.stream import Stream
from otel_llm.slo.token_events import TokenEvents, joined

if TYPE_CHECKING:
    from otel_llm.evaluate.streams.stream_in_flight import CommitIdentity, Group
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.formats.assemble.received_request import ReceivedRequest
    from otel_llm.formats.assemble.received_stream import ReceivedStream
    from otel_llm.formats.assemble.resolved import Resolved
    from otel_llm.formats.records import Segment, StreamKey
    from otel_llm.slo.classes import SloClass


@dataclass(slots=True, eq=False)
class LiveStream(Grouped):
    """A stream between its first segment and its verdict.

    Times are unix ns of the sender's clock, except receipt times. State that changes with every segment is in the
    table's columns, at `slot`.
    """

    table: StreamTable
    parts: ReceivedRequest
    choice: int
    slo: SloClass
    shift_ns: int
    """Subtracted from the stream's times to place them in windows."""
    key: StreamKey = field(init=False)
    group: Group = UNGROUPED
    """The group in windows and counters."""
    exact_resume: bool = False
    identity: CommitIdentity | None = None
    """Its identity by its commit alone, if it was opened by that."""
    token_basis: str | None = None
    """How the tokens are counted, as their segments state it."""
    token_ratio_learned: bool | None = None
    counted_since_ns: int | None = None
    """The first token that is counted otherwise than the one before it."""
    slot: int = -1
    state: StreamState = StreamState.FOUND
    """Changed by `move` alone."""
    windows: Ledger | None = None
    waiting: list[int] = field(default_factory=list)
    """The numbers of received segments that wait for an earlier one."""
    early: list[tuple[int, int, int]] = field(default_factory=list)
    """The sent times, kinds and counts of token events before the commit; the arithmetic places them at the commit."""
    ended_ns: int | None = None
    outcome: str | None = None
    known: Resolved | None = None
    """The stream's data at its creation, if it can begin with them."""
    _arithmetic: Stream | None = None

    def __post_init__(self) -> None:
        self.key = (*self.parts.key, self.choice)

    def take_slot(self, *, offset_ns: int, watermark_ns: int, receipt_ns: int) -> None:
        """Take a slot of the table."""
        self.slot = self.table.take(self, self.table_key, self.parts.tenant)
        self.table.offset_ns[self.slot] = offset_ns
        self.table.watermark_ns[self.slot] = watermark_ns
        self.table.receipt_ns[self.slot] = receipt_ns
        self.table.part[self.slot] = crc32(key_bytes(self.parts.key)) % PARTS
        since_ns = self.parts.since_ns
        self.table.found_ns[self.slot] = receipt_ns if since_ns is None else min(since_ns, receipt_ns)

    @property
    def table_key(self) -> bytes | None:
        """Return the ids by which the table finds the stream; None for choices other than 0."""
        return None if self.choice else self.parts.trace_id + self.parts.span_id

    @property
    def begun(self) -> bool:
        """Return whether the commit is known."""
        return self._arithmetic is not None

    @property
    def stream(self) -> Stream:
        """Return the arithmetic of a stream with a known commit.

        Raises:
            LookupError: the commit is not known.
        """
        if self._arithmetic is None:
            raise LookupError("the stream's commit is not known")
        if self.table.fresh.item(self.slot):
            self.table.flush_fresh(self.slot)
        return self._arithmetic

    @property
    def received(self) -> ReceivedStream:
        """Return the received segments."""
        parts = self.parts.stream(self.choice)
        table, slot, prefix = self.table, self.slot, parts.prefix
        if prefix.segments < (segments := table.segments.item(slot)):
            tokens = table.tokens.item(slot)
            parts.tokens += tokens - prefix.tokens
            prefix.segments, prefix.tokens = segments, tokens
            prefix.end_ns = max(prefix.end_ns, table.watermark_ns.item(slot))
        return parts

    def resolve(self) -> Resolved:
        """Return the data that are known of the stream now."""
        _ = self.received
        return self.parts.resolve(self.choice)

    @property
    def offset_ns(self) -> int:
        """Return the largest (segment end - receipt) so far, ns: the stream's now is the collector's now plus this."""
        return self.table.offset_ns.item(self.slot)

    @property
    def watermark_ns(self) -> int:
        """Return the end of the last segment that has no missing one before it."""
        return self.table.watermark_ns.item(self.slot)

    @property
    def last_byte_ns(self) -> int:
        """Return when the newest byte was received that a segment states, 0 if none does."""
        return self.table.last_byte_ns.item(self.slot)

    @property
    def last_receipt_ns(self) -> int:
        """Return the receipt time of the last segment."""
        return self.table.receipt_ns.item(self.slot)

    @property
    def applied_tokens(self) -> int:
        """Return the number of applied token indexes."""
        return self.table.tokens.item(self.slot)

    @property
    def has_gap(self) -> bool:
        """Return whether a segment is missing now; facts about time are then missing, too."""
        return bool(self.waiting) or self._arithmetic is None

    @property
    def ageless(self) -> bool:
        """Return False: facts are as old as the last segment."""
        return False

    @property
    def known_until_ns(self) -> int:
        """Return the instant up to which all tokens are known: the watermark, or the end stated by the request span."""
        if self.ended_ns is None or self.has_gap or self.parts.stream(self.choice).ending is not None:
            return self.watermark_ns
        return max(self.watermark_ns, self.ended_ns) if self.resolve().complete else self.watermark_ns

    def note_receipt(self, end_ns: int, now_ns: int) -> None:
        """Note a segment received at `now_ns`."""
        table, slot = self.table, self.slot
        if end_ns - now_ns > table.offset_ns.item(slot):
            table.offset_ns[slot] = end_ns - now_ns
        table.receipt_ns[slot] = now_ns

    def move(self, event: StreamEvent) -> None:
        """Make a transition of the lifecycle.

        Raises:
            LifecycleError: the event is impossible in the present state.
        """
        self.state = following(self.state, event)
        self.table.in_flight[self.slot] = self.state in IN_FLIGHT

    def commit(self, commit_ns: int, input_tokens: int | None) -> None:
        """Begin the stream at its commit, from which windows are charged."""
        self.begin(commit_ns, input_tokens)
        self.windows = Ledger(self.slo, commit_ns)

    def begin(self, commit_ns: int, input_tokens: int | None) -> None:
        """Start the arithmetic; restart it with its tokens if commit, class or prompt length have changed."""
        old = self.stream if self.begun else None
        arithmetic = self._arithmetic = Stream(self.slo, commit_ns, input_tokens, self.table, self.slot)
        if old is None:
            self.table.watermark_ns[self.slot] = commit_ns
        else:
            arithmetic.extend(*self._as_sent(old))
        self._write_columns()

    def _as_sent(self, old: Stream) -> TokenEvents:
        """Return the events of the arithmetic, those from before the commit at the times that were sent."""
        if not self.early:
            return old.events
        placed = Counter((max(time, old.commit_ns), kind, count) for time, kind, count in self.early)
        sent = list(self.early)
        times, kinds, counts = old.events
        for one in zip(times, kinds or bytes(len(times)), counts or [1] * len(times), strict=True):
            if placed[one]:
                placed[one] -= 1
            else:
                sent.append(one)
        every_time, every_kind, every_count = zip(*sent, strict=True)
        return TokenEvents(every_time, bytes(every_kind), every_count)

    def mark_begun(self, end_ns: int) -> None:
        """Note a commit without tokens, at `end_ns`: the next segment can be applied by columns."""
        table, slot = self.table, self.slot
        table.watermark_ns[slot] = end_ns
        table.segments[slot] = table.ready[slot] = 1

    def apply(self) -> bool:
        """Apply the waiting segments that continue the stream, in order of number.

        Returns:
            Whether its tokens are counted otherwise than before.
        """
        if self._arithmetic is None:
            return False
        counting = self.token_basis, self.token_ratio_learned
        if self.waiting:
            arithmetic = self.stream
            tokens = arithmetic.tokens
            self._apply(arithmetic)
            if arithmetic.tokens != tokens and self.parts.stream(self.choice).ending is None:
                self._write_columns()
        if self.state in IN_FLIGHT and bool(self.waiting) is not (self.state is StreamState.GAP):
            self.move(StreamEvent.GAP_OPENED if self.waiting else StreamEvent.GAP_CLOSED)
        # A segment stays held if it was applied while an empty one before it is missing.
        streaming = self.state is StreamState.STREAMING
        self.table.ready[self.slot] = streaming and not self.parts.stream(self.choice).held
        return counting != (self.token_basis, self.token_ratio_learned)

    def _apply(self, arithmetic: Stream) -> None:
        table, slot = self.table, self.slot
        received = self.received
        applied, watermark_ns, last_byte_ns = self.applied_tokens, self.watermark_ns, self.last_byte_ns
        self.waiting.sort()
        taken = 0
        for seq in self.waiting:
            held = received.held[seq]
            segment = held.segment
            if segment.first_token > applied:
                break
            if segment.times_ns:
                if segment.attributes:
                    self._note_counting(segment)
                times, kinds, counts = events = received.take_events(seq)
                if min(times) < arithmetic.commit_ns:
                    every = zip(times, kinds or bytes(len(times)), counts or [1] * len(times), strict=True)
                    self.early += [one for one in every if one[0] < arithmetic.commit_ns]
                arithmetic.extend(*events)
            applied = max(applied, held.next_token)
            watermark_ns = max(watermark_ns, segment.end_ns)
            last_byte_ns = max(last_byte_ns, segment.last_byte_ns)
            taken += 1
        del self.waiting[:taken]
        received.compact()
        table.tokens[slot], table.watermark_ns[slot], table.last_byte_ns[slot] = applied, watermark_ns, last_byte_ns
        table.segments[slot] = received.prefix.segments

    def _note_counting(self, segment: Segment) -> None:
        """Note how the tokens of a segment are counted, if it states that."""
        basis = text_of(segment.attributes, semconv.TOKEN_BASIS)
        learned = segment.attributes.get(semconv.TOKEN_RATIO_LEARNED) is True
        if basis is None or (basis, learned) == (self.token_basis, self.token_ratio_learned):
            return
        if self.token_basis is not None:
            self.counted_since_ns = min(segment.times_ns)
        self.token_basis, self.token_ratio_learned = basis, learned

    def _write_columns(self) -> None:
        """Write what the columns have of all tokens, read or not."""
        arithmetic, table, slot = self._arithmetic, self.table, self.slot
        assert arithmetic is not None  # noqa: S101
        table.last_ns[slot] = arithmetic.last_ns
        table.first_ns[slot] = arithmetic.times_ns[0] if arithmetic.times_ns else arithmetic.commit_ns
        table.attach(slot, arithmetic.open_arrays)

    def end(self, ended_ns: int, outcome: str) -> None:
        """Note the end; later segments are not applied by columns."""
        self.ended_ns, self.outcome = ended_ns, outcome
        self.table.ready[self.slot] = False
        self.move(StreamEvent.END)

    def find_end(self) -> bool:
        """Note the end if a segment, or else the request span, states it; return whether one does."""
        last, request = self.received.last(), self.parts.request
        if last is not None:
            self.end(last.segment.end_ns, str(last.segment.attributes[semconv.OUTCOME]))
        elif request is not None and self.parts.request_ends(self.choice):
            self.end(request.end_ns, str(request.attributes[semconv.OUTCOME]))
        return self.state is StreamState.ENDED

    @property
    def is_complete(self) -> bool:
        """Return whether no part that may still arrive would change the row of this ended stream."""
        if self.has_gap:
            return False
        received, request = self.received, self.parts.request
        last = received.last()
        if last is None:  # the request span states the end: every segment that it counts must be here
            declared = request.attributes.get(semconv.SEGMENTS) if request is not None else None
            return isinstance(declared, int) and received.count() >= declared
        tokens = last.segment.attributes.get(semconv.TOKENS)
        if isinstance(tokens, int) and tokens > self.applied_tokens:
            return False
        return received.has(0) and request is not None

    def token_events(self) -> TokenEvents:
        """Return the events (unix ns) of all received tokens, applied ones first."""
        rest = self.received.token_events()
        return rest if self._arithmetic is None else joined([self.stream.events, rest])

    def identify(self, slo: SloClass, group: Group, *, exact_resume: bool) -> None:
        """Set the identity."""
        self.slo, self.group, self.exact_resume = slo, group, exact_resume
        self.table.name(self.slot, group, slo)
