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
from otel_llm.readers.assemble import Parts, RequestKey, Resolved, StreamKey, StreamParts, missing_segments
from otel_llm.readers.rows import Cell, Row, judged_row, unjudged_row
from otel_llm.slo.stream import Stream
from otel_llm.slo.windows import Charge, Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.collector.windowing import Windowing
    from otel_llm.readers.records import Batch, RequestSpan, Segment
    from otel_llm.rules.decisions import Decision
    from otel_llm.rules.engine import RuleEngine
    from otel_llm.slo.classes import SloClasses
    from otel_llm.slo.verdict import Verdict

FINISHED_REMEMBERED = 100_000
"""Requests whose end was judged and that are still known, so that what comes late is counted and starts nothing."""

Due = Literal["settle", "lost", "orphan"]


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
    _finished: OrderedDict[RequestKey, set[int]] = field(default_factory=OrderedDict)
    _due: list[tuple[int, int, Due, StreamKey]] = field(default_factory=list)
    _order: Iterable[int] = field(default_factory=count)

    # Input.

    def apply(self, batch: Batch, now_ns: int) -> None:
        """Take what one export request held, received at `now_ns`; then look at the rules of what it touched."""
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
            self._decide(self.rules.advance(due_ns, self.live))
            while self._due and self._due[0][0] <= due_ns:
                _, _, what, key = heapq.heappop(self._due)
                self._fall_due(what, key, due_ns)
            self.windowing.close_until(due_ns, self.live.values(), self._judge_for_window)

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
            self._judge(stream, now_ns)

    # Segments and request spans.

    def _take_segment(self, segment: Segment, now_ns: int) -> LiveStream | None:
        key = (segment.trace_id, segment.span_id)
        done = self._finished.get(key)
        if done is not None and segment.choice in done:
            self.counts["late_or_duplicate_segments"] += 1
            return None
        parts = self._parts_of(key)
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
            first_receipt_ns=now_ns,
            last_receipt_ns=now_ns,
            offset_ns=segment.end_ns - now_ns,
            watermark_ns=segment.start_ns,
            shift_ns=shift_ns,
        )
        stream.identify(resolved, slo)
        self._schedule(now_ns + self.patience.lost_after_ns, "lost", stream.key)
        return stream

    def _take_request(self, span: RequestSpan, now_ns: int) -> list[StreamKey]:
        done = self._finished.get(span.key)
        if done is not None and span.key not in self._parts:
            self.counts["late_request_spans"] += 1
            return []
        parts = self._parts_of(span.key)
        if not parts.add_request(span):
            self.counts["duplicate_request_spans"] += 1
            return []
        self.counts["request_spans"] += 1
        keys = [(*span.key, choice) for choice in parts.streams]
        if not keys:  # its segments may be on the way; others' spans wait the same time
            self._schedule(now_ns + self.patience.lateness_ns, "orphan", (*span.key, 0))
        return [key for key in keys if key in self.live]

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
            self._judge(stream, now_ns)

    def _begin(self, stream: LiveStream) -> None:
        resolved = stream.parts.resolve(stream.choice)
        if resolved.commit_ns is None:
            return
        slo, _ = self.classes.choose(resolved.declared_class, resolved.attributes)
        stream.identify(resolved, slo)
        self._commit(stream, resolved)
        self.sink.stream_started(stream)
        self.windowing.started(stream)

    def _commit(self, stream: LiveStream, resolved: Resolved) -> None:
        assert resolved.commit_ns is not None  # noqa: S101
        stream.arithmetic = Stream(stream.slo, resolved.commit_ns, resolved.input_tokens)
        stream.windows = Ledger(stream.slo, resolved.commit_ns)
        stream.meter = Ledger(stream.slo, resolved.commit_ns)
        stream.watermark_ns = max(stream.watermark_ns, resolved.commit_ns)

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
        if 0 not in received.held:
            return False
        if request is not None:
            return True
        declared_class = received.held[0].segment.attributes.get(semconv.SLO_CLASS)
        return bool(stream.model and stream.instance and declared_class == stream.slo_class)

    # Verdicts.

    def _judge_for_window(self, stream: LiveStream, now_ns: int) -> None:
        self._judge(stream, now_ns)

    def _judge(self, stream: LiveStream, now_ns: int) -> None:
        """Give the verdict with what is there, and forget the stream."""
        resolved = stream.parts.resolve(stream.choice)
        slo, _ = self.classes.choose(resolved.declared_class, resolved.attributes)
        stream.outcome = resolved.outcome
        stream.identify(resolved, slo)
        if resolved.commit_ns is not None:
            self._rejudge_if_changed(stream, resolved)
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
        self.windowing.ended(stream, resolved, verdict, now_ns)
        self.counts["judged"] += 1
        self.counts["lost"] += resolved.outcome == "lost"
        self.sink.stream_judged(stream, row, verdict)
        self._forget(stream)

    def _rejudge_if_changed(self, stream: LiveStream, resolved: Resolved) -> None:
        """Start the arithmetic anew where the request span or a late segment 0 changed what it was begun with."""
        assert resolved.commit_ns is not None  # noqa: S101
        old = stream.arithmetic
        if old is None:
            self._commit(stream, resolved)
            stream.apply()
            self.windowing.started(stream)
            return
        same = old.slo == stream.slo and old.commit_ns == resolved.commit_ns
        if same and old.input_tokens == resolved.input_tokens:
            return
        windows, meter = stream.windows, stream.meter
        self._commit(stream, resolved)
        assert stream.arithmetic is not None  # noqa: S101
        stream.arithmetic.extend(old.times_ns, old.kinds)
        if old.slo == stream.slo:  # the ledgers know what was charged: the last charge balances it
            stream.windows, stream.meter = windows, meter
        elif windows is not None and meter is not None:  # another class, another penalty: what was charged goes back
            self.windowing.give_back(stream, windows.close(None))
            self.sink.stream_charged(stream, meter.close(None))

    def _forget(self, stream: LiveStream) -> None:
        del self.live[stream.key]
        key = (stream.parts.trace_id, stream.parts.span_id)
        self._remember(key, stream.choice)
        if not any((*key, choice) in self.live for choice in stream.parts.streams):
            self._parts.pop(key, None)

    def _remember(self, key: RequestKey, choice: int) -> None:
        self._finished.setdefault(key, set()).add(choice)
        self._finished.move_to_end(key)
        while len(self._finished) > FINISHED_REMEMBERED:
            self._finished.popitem(last=False)

    # Timers.

    def _schedule(self, at_ns: int, what: Due, key: StreamKey) -> None:
        heapq.heappush(self._due, (at_ns, next(iter(self._order)), what, key))

    def _fall_due(self, what: Due, key: StreamKey, now_ns: int) -> None:
        if what == "orphan":
            self._judge_orphan(key, now_ns)
            return
        stream = self.live.get(key)
        if stream is None:
            return
        if what == "settle":
            self._judge(stream, now_ns)
            return
        lost_ns = stream.last_receipt_ns + self.patience.lost_after_ns
        if lost_ns > now_ns:
            self._schedule(lost_ns, "lost", key)
            return
        if stream.arithmetic is not None:
            self._decide(self.rules.ended(stream, stream.watermark_ns, now_ns))
        self._judge(stream, now_ns)

    def _judge_orphan(self, key: StreamKey, now_ns: int) -> None:
        """Judge a request span whose segments did not come, or that has none because it is another's."""
        request_key = key[:2]
        parts = self._parts.get(request_key)
        if parts is None or parts.streams or parts.request is None:
            return
        ours = semconv.SEGMENTS in parts.request.attributes
        resolved = parts.resolve(0) if ours else parts.resolve_foreign()
        del self._parts[request_key]
        self._remember(request_key, 0)
        if resolved is None:
            self.counts["ignored_spans"] += 1
            return
        slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
        self.counts["unknown_slo_class"] += unknown
        if not ours:  # a row of its own; windows and smooth goodput need token times
            self.sink.foreign_judged(unjudged_row(resolved, slo.name, [], None, slo.reads))
            return
        stream = LiveStream(
            parts=parts, choice=0, slo=slo, slo_class=slo.name, model="", instance="", measured_at="",
            exact_resume=False, first_receipt_ns=0, last_receipt_ns=0, offset_ns=0,
            watermark_ns=parts.request.start_ns, shift_ns=0, ended_ns=parts.request.end_ns,
        )  # fmt: skip
        stream.identify(resolved, slo)
        self._parts[request_key] = parts
        self.live[stream.key] = stream
        self._judge(stream, now_ns)

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
