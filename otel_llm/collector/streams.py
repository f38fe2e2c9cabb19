"""One stream in flight: what was received of it, what could be applied, and the facts that rules look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from otel_llm.readers.assemble import Parts, Resolved, StreamKey, StreamParts
    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.windows import Ledger


@dataclass(slots=True, eq=False)
class LiveStream:
    """A stream between its first segment and its verdict.

    Times are on the sender's clock but for those named `receipt`. `arithmetic` is None until the commit is known.
    """

    parts: Parts
    choice: int
    slo: SloClass
    slo_class: str
    model: str
    instance: str
    measured_at: str
    exact_resume: bool
    last_receipt_ns: int
    offset_ns: int
    """The largest (segment end - receipt) so far: the stream's now is the collector's now plus this."""
    watermark_ns: int
    shift_ns: int
    """What to subtract from the stream's times to place them in windows."""
    arithmetic: Stream | None = None
    windows: Ledger | None = None
    meter: Ledger | None = None
    waiting: list[int] = field(default_factory=list)
    """Numbers of the segments that came but wait for one before them."""
    applied_tokens: int = 0
    early: list[tuple[int, int]] = field(default_factory=list)
    """Tokens from before the commit as they were sent, with their kinds: the arithmetic has them at the commit."""
    ended_ns: int | None = None
    outcome: str | None = None
    settle_by_ns: int | None = None
    """Collector time at which an ended stream is judged with what is there."""
    forgotten: bool = False

    @property
    def key(self) -> StreamKey:
        """Return (trace id, span id, choice)."""
        return (self.parts.trace_id, self.parts.span_id, self.choice)

    @property
    def stream(self) -> Stream:
        """Return the arithmetic, of a stream whose commit is known."""
        if self.arithmetic is None:
            raise LookupError("the stream's commit is not known")
        return self.arithmetic

    @property
    def received(self) -> StreamParts:
        """Return the segments received."""
        return self.parts.stream(self.choice)

    @property
    def has_gap(self) -> bool:
        """Return whether a segment is missing right now: facts about time are missing with it."""
        return bool(self.waiting) or self.arithmetic is None

    @property
    def known_until_ns(self) -> int:
        """Return up to when nothing is missing: the end, where only the request span said when that was."""
        if self.ended_ns is None or self.has_gap or self.received.ending is not None:
            return self.watermark_ns
        complete = self.parts.resolve(self.choice).complete
        return max(self.watermark_ns, self.ended_ns) if complete else self.watermark_ns

    def begin(self, resolved: Resolved) -> None:
        """Start the arithmetic, or start it anew with what it had: what it was begun with has changed."""
        assert resolved.commit_ns is not None  # noqa: S101
        old = self.arithmetic
        self.arithmetic = Stream(self.slo, resolved.commit_ns, resolved.input_tokens)
        if old is None:
            self.watermark_ns = resolved.commit_ns
            return
        times, kinds = old.times_ns[old.skewed :], old.kinds
        early = [time for time, _ in self.early]
        if kinds is None and not any(kind for _, kind in self.early):
            self.arithmetic.extend([*early, *times])
        else:
            later = bytes(len(times)) if kinds is None else kinds[old.skewed :]
            self.arithmetic.extend([*early, *times], bytes(kind for _, kind in self.early) + later)

    def apply(self) -> None:
        """Hand every token that continues the unbroken run to the arithmetic, by number of segment."""
        if self.arithmetic is None or not self.waiting:
            return
        received = self.received
        self.waiting.sort()
        taken = 0
        for seq in self.waiting:
            held = received.held[seq]
            segment = held.segment
            if segment.first_token > self.applied_tokens:
                break
            if segment.times_ns:
                if min(segment.times_ns) < self.arithmetic.commit_ns:
                    pairs = zip(segment.times_ns, segment.kinds or bytes(held.tokens), strict=True)
                    self.early += [pair for pair in pairs if pair[0] < self.arithmetic.commit_ns]
                self.arithmetic.extend(segment.times_ns, segment.kinds)
                segment.times_ns, segment.kinds = [], None  # the stream has them now, eight bytes each
            self.applied_tokens = max(self.applied_tokens, held.next_token)
            self.watermark_ns = max(self.watermark_ns, segment.end_ns)
            taken += 1
        del self.waiting[:taken]

    def token_times(self) -> tuple[list[int], bytes | None]:
        """Return all tokens received, applied ones first, as unix ns and kinds (None: all content)."""
        rest, rest_kinds = self.received.token_times()
        if self.arithmetic is None:
            return rest, rest_kinds
        times, kinds = list(self.arithmetic.times_ns), self.arithmetic.kinds
        if not rest:
            return times, kinds
        if kinds is None and rest_kinds is None:
            return times + rest, None
        return times + rest, (kinds or bytes(len(times))) + (rest_kinds or bytes(len(rest)))

    def identify(self, resolved: Resolved, slo: SloClass) -> None:
        """Take over what is known of the stream now."""
        self.slo = slo
        self.slo_class = slo.name
        self.model = resolved.model or ""
        self.instance = resolved.instance or ""
        self.measured_at = resolved.measured_at
        self.exact_resume = resolved.exact_resume
