"""The streaming evaluator: batches and instants in, verdicts, window charges and rule decisions out.

A function of (batches with receipt times, instants) on one virtual clock: it reads no clock and does no I/O, so a
journal that is replayed gives what the live run gave. One thread owns it.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Literal, Protocol

from otel_llm import semconv
from otel_llm.collector.streams import LiveStream
from otel_llm.collector.windowing import group_of
from otel_llm.readers.assemble import Parts, RequestKey, Resolved, StreamKey, StreamParts, missing_segments
from otel_llm.readers.rows import Cell, Row, judged_row, unjudged_row
from otel_llm.slo.windows import Charge, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_llm.collector.windowing import Windowing
    from otel_llm.readers.records import Batch, RequestSpan, Segment
    from otel_llm.rules.decisions import Decision
    from otel_llm.rules.engine import RuleEngine
    from otel_llm.slo.classes import SloClass, SloClasses
    from otel_llm.slo.verdict import Verdict

FINISHED_REMEMBERED = 100_000
"""Requests whose end was judged and that are still known, so that what comes late is counted and starts nothing."""

MAX_CHOICES = 128
"""Streams of one request; a later choice is refused."""

Due = Literal["settle", "lost", "orphan", "forget"]


class Sink(Protocol):
    """Take what the evaluator finds; called in its thread, in order of the virtual clock."""

    def stream_started(self, stream: LiveStream) -> None:
        """Take a stream whose commit became known."""

    def stream_moved(self, stream: LiveStream) -> None:
        """Take a stream to which segments were applied."""

    def stream_charged(self, stream: LiveStream, charge: Charge) -> None:
        """Take what a stream's reader got or waited, or what is given back of it."""

    def stream_judged(self, stream: LiveStream, row: Row, verdict: Verdict | None) -> None:
        """Take a stream's verdict; `verdict` is None when it cannot be judged."""

    def foreign_judged(self, row: Row) -> None:
        """Take a row that follows from another instrumentation's span."""

    def decided(self, decisions: list[Decision]) -> None:
        """Take decisions of rules."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the evaluator waits, in ns."""

    lateness_ns: int = 5_000_000_000
    """For what is missing: a segment in the middle, the request span, the rest of a window."""
    lost_after_ns: int = 120_000_000_000
    """For a stream that went silent without an end."""


@dataclass(slots=True)
class Evaluator:
    """Follow every stream in flight; see the module for what it is and is not."""

    classes: SloClasses
    rules: RuleEngine
    windowing: Windowing
    sink: Sink
    patience: Patience = field(default_factory=Patience)
    counts: Counter[str] = field(default_factory=Counter)
    live: dict[StreamKey, LiveStream] = field(default_factory=dict)
    _parts: dict[RequestKey, Parts] = field(default_factory=dict)
    _flying: Counter[RequestKey] = field(default_factory=Counter)
    _orphans: dict[RequestKey, int] = field(default_factory=dict)
    """Request spans without a stream, and when they end in the collector's time."""
    _finished: OrderedDict[RequestKey, set[int]] = field(default_factory=OrderedDict)
    _due: list[tuple[int, int, Due, StreamKey]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _now_ns: int = 0

    # Input.

    def apply(self, batch: Batch, now_ns: int) -> None:
        """Take what one export request held, received at `now_ns`; then look at the rules of what it touched."""
        self._now_ns = max(self._now_ns, now_ns)
        self.windowing.begin(now_ns)
        self.advance(now_ns - 1)  # what falls due at this very instant is decided with what has just come
        touched: dict[StreamKey, bool] = {}
        for segment in batch.segments:
            stream = self._take_segment(segment, now_ns)
            if stream is not None:
                late = now_ns + stream.offset_ns - segment.end_ns > self.patience.lateness_ns
                self.counts["late_segments"] += late
                touched[stream.key] = touched.get(stream.key, False) or not late
        for span in batch.requests:
            for key in self._take_request(span, now_ns):
                touched.setdefault(key, False)
        self.counts["ignored_spans"] += batch.ignored
        for reason, number in batch.refused.items():
            self.counts[f"refused.{reason}"] += number
        for name, number in batch.anomalies.items():
            self.counts[f"anomaly.{name}"] += number
        for key in touched:
            self._settle(self.live[key], now_ns)
        for key, acts in touched.items():
            stream = self.live.get(key)
            if stream is not None and stream.ended_ns is None and stream.arithmetic is not None:
                self.rules.update(stream, now_ns, late=not acts)
        self._decide(self.rules.advance(now_ns, self.live))

    def advance(self, now_ns: int) -> None:
        """Let time pass up to `now_ns`: everything that falls due happens at its own instant, in order."""
        while True:
            due_ns = self.next_timer()
            if due_ns is None or due_ns > now_ns:
                return
            self._now_ns = max(self._now_ns, due_ns)
            self._decide(self.rules.advance(due_ns, self.live))
            while self._due and self._due[0][0] <= due_ns:
                _, _, what, key = heapq.heappop(self._due)
                self._fall_due(what, key, due_ns)
            self.windowing.close_until(due_ns, self.live, self._judge_before)

    def next_timer(self) -> int | None:
        """Return the next instant at which something happens without any input, None if nothing will."""
        instants = [self.rules.next_timer(), self.windowing.next_close()]
        if self._due:
            instants.append(self._due[0][0])
        known = [instant for instant in instants if instant is not None]
        return min(known, default=None)

    def finish(self, now_ns: int) -> None:
        """Judge every stream whose end was seen, waiting for nothing more; those in flight stay so."""
        self.advance(now_ns)
        for stream in [one for one in self.live.values() if one.ended_ns is not None]:
            self._judge(stream)
        for key in list(self._orphans):
            self._judge_orphan(key)

    # Segments and request spans.

    def _take_segment(self, segment: Segment, now_ns: int) -> LiveStream | None:
        key = (segment.trace_id, segment.span_id)
        done = self._finished.get(key)
        if done is not None and segment.choice in done:
            self.counts["late_or_duplicate_segments"] += 1
            return None
        parts = self._parts_of(key)
        if segment.choice not in parts.streams and len(parts.streams) >= MAX_CHOICES:
            self.counts["refused.too_many_choices"] += 1
            return None
        if not parts.stream(segment.choice).add(segment):
            self.counts["duplicate_segments"] += 1
            return None
        self.counts["segments"] += 1
        self.counts["tokens"] += len(segment.times_ns)
        stream_key = (*key, segment.choice)
        offset_ns = segment.end_ns - now_ns
        stream = self.live.get(stream_key)
        if stream is None:
            stream = self.live[stream_key] = self._new(parts, segment, now_ns)
            self._flying[key] += 1
            self._orphans.pop(key, None)
        stream.offset_ns = max(stream.offset_ns, offset_ns)
        stream.last_receipt_ns = now_ns
        stream.waiting.append(segment.seq)
        return stream

    def _new(self, parts: Parts, segment: Segment, now_ns: int) -> LiveStream:
        resolved = parts.resolve(segment.choice)
        slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
        self.counts["unknown_slo_class"] += unknown
        shift_ns = resolved.shift_ns(self.patience.lateness_ns)
        self.counts["shifted_streams"] += shift_ns != 0
        stream = LiveStream(
            parts=parts,
            choice=segment.choice,
            slo=slo,
            slo_class=slo.name,
            model="",
            instance="",
            measured_at="",
            exact_resume=False,
            last_receipt_ns=now_ns,
            offset_ns=segment.end_ns - now_ns,
            watermark_ns=segment.start_ns,
            shift_ns=shift_ns,
        )
        stream.identify(resolved, slo)
        self._schedule(now_ns + self.patience.lost_after_ns, "lost", stream.key)
        return stream

    def _take_request(self, span: RequestSpan, now_ns: int) -> list[StreamKey]:
        if span.key in self._finished and span.key not in self._parts:
            self.counts["late_request_spans"] += 1
            return []
        parts = self._parts_of(span.key)
        if not parts.add_request(span):
            self.counts["duplicate_request_spans"] += 1
            return []
        self.counts["request_spans"] += 1
        if not parts.streams:  # its segments may be on the way; others' spans wait the same time
            self._orphans[span.key] = span.end_ns - parts.resolve(0).shift_ns(self.patience.lateness_ns)
            self._schedule(now_ns + self.patience.lateness_ns, "orphan", (*span.key, 0))
        return [key for choice in parts.streams if (key := (*span.key, choice)) in self.live]

    def _parts_of(self, key: RequestKey) -> Parts:
        parts = self._parts.get(key)
        if parts is None:
            parts = self._parts[key] = Parts(*key)
            for choice in self._finished.get(key, ()):
                parts.streams[choice] = StreamParts()  # judged already, but seen: the request span is not for one alone
        return parts

    # From segments to a stream, to its end.

    def _settle(self, stream: LiveStream, now_ns: int) -> None:
        """Apply what can be applied, and see whether the stream has begun or ended."""
        if stream.arithmetic is None:
            self._begin(stream)
        stream.apply()
        if stream.arithmetic is not None:
            self.sink.stream_moved(stream)
        if stream.ended_ns is None:
            self._see_end(stream, now_ns)
        if stream.ended_ns is not None and self._all_there(stream):
            self._judge(stream)

    def _begin(self, stream: LiveStream) -> None:
        if 0 not in stream.received.held and stream.parts.request is None:
            return
        resolved = stream.parts.resolve(stream.choice)
        slo, _ = self.classes.choose(resolved.declared_class, resolved.attributes)
        stream.identify(resolved, slo)
        self._commit(stream, resolved)
        self.sink.stream_started(stream)
        self.windowing.started(stream)

    def _commit(self, stream: LiveStream, resolved: Resolved) -> None:
        stream.begin(resolved)
        commit_ns = stream.stream.commit_ns
        stream.windows, stream.meter = Ledger(stream.slo, commit_ns), Ledger(stream.slo, commit_ns)

    def _see_end(self, stream: LiveStream, now_ns: int) -> None:
        last = stream.received.last()
        if last is not None:
            stream.ended_ns = last.segment.end_ns
        elif stream.parts.request_ends(stream.choice):
            request = stream.parts.request
            assert request is not None  # noqa: S101
            stream.ended_ns = request.end_ns
        else:
            return
        stream.outcome = stream.parts.resolve(stream.choice).outcome
        stream.settle_by_ns = now_ns + self.patience.lateness_ns
        self._schedule(stream.settle_by_ns, "settle", stream.key)
        if stream.arithmetic is not None:
            self._decide(self.rules.ended(stream, stream.ended_ns, now_ns))

    def _all_there(self, stream: LiveStream) -> bool:
        """Return whether nothing that could still come would change the row."""
        if stream.has_gap:
            return False
        received, request = stream.received, stream.parts.request
        last = received.last()
        if last is None:  # the request span speaks for the end: every segment it counts must be here
            declared = request.attributes.get(semconv.SEGMENTS) if request is not None else None
            return isinstance(declared, int) and sum(len(one.held) for one in stream.parts.streams.values()) >= declared
        tokens = last.segment.attributes.get(semconv.TOKENS)
        if isinstance(tokens, int) and tokens > stream.applied_tokens:
            return False
        return 0 in received.held and request is not None

    # Verdicts.

    def _judge_before(self, boundary_ns: int, now_ns: int) -> None:  # noqa: ARG002
        """Judge what ended before a window did that is about to close, whatever it still waits for."""
        for stream in list(self.live.values()):
            if stream.ended_ns is None:
                continue
            last_ns = stream.ended_ns if stream.arithmetic is None else max(stream.ended_ns, stream.stream.last_ns)
            if last_ns < boundary_ns + stream.shift_ns:
                self._judge(stream)
        for key in [key for key, end_ns in self._orphans.items() if end_ns < boundary_ns]:
            self._judge_orphan(key)

    def _judge(self, stream: LiveStream) -> None:
        """Give the verdict with what is there, and follow the stream no longer."""
        self._drop(stream)  # first: whatever goes wrong below goes wrong once
        resolved = stream.parts.resolve(stream.choice)
        slo, _ = self.classes.choose(resolved.declared_class, resolved.attributes)
        stream.outcome = resolved.outcome
        self._learn(stream, resolved, slo)
        verdict: Verdict | None = None
        if resolved.complete and stream.arithmetic is not None and resolved.end_ns is not None:
            verdict = stream.arithmetic.finish(resolved.end_ns, resolved.outcome)
            self.counts["skewed_tokens"] += verdict.skewed
            self.counts["missing_empty_segments"] += missing_segments(stream.received)
            cells: dict[str, Cell] = dict(verdict.columns())
            row = judged_row(resolved, slo.name, cells)
        else:
            times_ns, kinds = stream.token_times()
            row = unjudged_row(resolved, slo.name, times_ns, kinds, slo.reads)
        self.windowing.ended(stream, resolved, verdict)
        self.counts["judged"] += 1
        self.counts["lost"] += resolved.outcome == "lost"
        stream.parts.streams[stream.choice] = StreamParts()  # seen, judged: no more than that is remembered
        self.sink.stream_judged(stream, row, verdict)

    def _learn(self, stream: LiveStream, resolved: Resolved, slo: SloClass) -> None:
        """Take over what the request span or a late segment 0 changed since the stream was begun."""
        old, group = stream.arithmetic, group_of(stream)
        stream_is = (slo.name, resolved.model or "", resolved.instance or "", resolved.measured_at)
        if old is not None and (stream_is != group or old.slo != slo):
            # What was charged under another name goes back under that name, and is charged anew.
            if stream.windows is not None and stream.meter is not None:
                self.windowing.give_back(stream, stream.windows.close(None))
                self.sink.stream_charged(stream, stream.meter.close(None))
            stream.identify(resolved, slo)
            self.windowing.move_start(stream, group)
            stream.windows, stream.meter = Ledger(slo, old.commit_ns), Ledger(slo, old.commit_ns)
        else:
            stream.identify(resolved, slo)
        if resolved.commit_ns is None:
            return
        if old is None:
            self._commit(stream, resolved)
            stream.apply()
            self.windowing.started(stream)
        elif (old.slo, old.commit_ns, old.input_tokens) != (slo, resolved.commit_ns, resolved.input_tokens):
            stream.begin(resolved)  # the ledgers know what was charged: their last charge balances it

    def _drop(self, stream: LiveStream) -> None:
        """Follow a stream no longer; its request span is kept for the choices that may still come."""
        del self.live[stream.key]
        key = (stream.parts.trace_id, stream.parts.span_id)
        self._remember(key, stream.choice)
        self._flying[key] -= 1
        if not self._flying[key]:
            del self._flying[key]
            self._schedule(self._now_ns + self.patience.lateness_ns, "forget", stream.key)

    def _remember(self, key: RequestKey, choice: int) -> None:
        self._finished.setdefault(key, set()).add(choice)
        self._finished.move_to_end(key)
        while len(self._finished) > FINISHED_REMEMBERED:
            self._finished.popitem(last=False)

    # Timers.

    def _schedule(self, at_ns: int, what: Due, key: StreamKey) -> None:
        heapq.heappush(self._due, (at_ns, next(self._order), what, key))

    def _fall_due(self, what: Due, key: StreamKey, now_ns: int) -> None:
        if what == "forget":
            if key[:2] not in self._flying:
                self._parts.pop(key[:2], None)
            return
        if what == "orphan":
            self._judge_orphan(key[:2])
            return
        stream = self.live.get(key)
        if stream is None:
            return
        if what == "settle":
            self._judge(stream)
            return
        lost_ns = stream.last_receipt_ns + self.patience.lost_after_ns
        if lost_ns > now_ns:
            self._schedule(lost_ns, "lost", key)
            return
        if stream.arithmetic is not None:
            self._decide(self.rules.ended(stream, stream.watermark_ns, now_ns))
        self._judge(stream)

    def _judge_orphan(self, key: RequestKey) -> None:
        """Judge a request span whose segments did not come, or that has none because it is another's."""
        if self._orphans.pop(key, None) is None:
            return
        parts = self._parts[key]
        assert parts.request is not None  # noqa: S101
        ours = semconv.SEGMENTS in parts.request.attributes
        resolved = parts.resolve(0) if ours else parts.resolve_foreign()
        if resolved is None:
            self.counts["ignored_spans"] += 1
        if ours and resolved is not None:
            self._judge_without_segments(parts, resolved)
            return
        del self._parts[key]
        self._remember(key, 0)
        if resolved is not None:  # a row of its own; windows and smooth goodput need token times
            slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
            self.counts["unknown_slo_class"] += unknown
            self.sink.foreign_judged(unjudged_row(resolved, slo.name, [], None, slo.reads))

    def _judge_without_segments(self, parts: Parts, resolved: Resolved) -> None:
        slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
        self.counts["unknown_slo_class"] += unknown
        stream = LiveStream(
            parts=parts, choice=0, slo=slo, slo_class="", model="", instance="", measured_at="", exact_resume=False,
            last_receipt_ns=0, offset_ns=0, watermark_ns=resolved.commit_ns or 0,
            shift_ns=resolved.shift_ns(self.patience.lateness_ns), ended_ns=resolved.end_ns,
        )  # fmt: skip
        stream.identify(resolved, slo)
        self.live[stream.key] = stream
        self._flying[parts.trace_id, parts.span_id] += 1
        self._judge(stream)

    def _decide(self, decisions: list[Decision]) -> None:
        if decisions:
            self.sink.decided(decisions)


def facts_of(streams: Iterable[LiveStream], now_ns: int, limit: int, rank: Callable[[LiveStream], int]) -> list[Row]:
    """Return the in-flight facts of the `limit` lowest-ranking streams as JSON-able rows, seconds."""
    rows: list[Row] = []
    for one in heapq.nsmallest(limit, streams, key=rank):
        if one.arithmetic is None:
            continue
        facts = one.arithmetic.at(max(now_ns + one.offset_ns, one.arithmetic.commit_ns))
        rows.append(
            {
                "trace_id": one.parts.trace_id.hex(),
                "span_id": one.parts.span_id.hex(),
                "choice": one.choice,
                "slo_class": one.slo_class,
                "model": one.model,
                "instance": one.instance,
                "measured_at": one.measured_at,
                "tokens": facts.tokens,
                "tokens_read": facts.tokens_read,
                "age_s": facts.age_ns / 1e9,
                "ttft_s": None if facts.ttft_ns is None else facts.ttft_ns / 1e9,
                "gap_s": facts.gap_ns / 1e9,
                "idle_s": facts.idle_ns / 1e9,
                "runway_s": facts.runway_ns / 1e9,
                "fluidity_index": facts.fluidity_index,
                "ended": one.ended_ns is not None,
            }
        )
    return rows
