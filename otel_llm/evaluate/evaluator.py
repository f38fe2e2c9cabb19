"""The streaming evaluator: batches and instants in, verdicts, window charges and rule decisions out.

A function of (batches with receipt times, instants) on one virtual clock: it reads no clock and does no I/O, so a
journal that is replayed gives what the live run gave. One thread owns it.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from otel_llm import semconv
from otel_llm.evaluate.group_facts import Groups, groups_for
from otel_llm.evaluate.identity_cache import IdentityCache
from otel_llm.evaluate.rule_scheduler import RuleScheduler
from otel_llm.evaluate.streams.batch_update import Applied, apply_plain
from otel_llm.evaluate.streams.live_stream import LiveStream
from otel_llm.evaluate.streams.stream_in_flight import group_of
from otel_llm.evaluate.streams.stream_table import StreamTable
from otel_llm.evaluate.tombstones import Tombstones
from otel_llm.evaluate.usage import Meter
from otel_llm.readers.assemble.requests import (
    Parts,
    RequestKey,
    Resolved,
    StreamKey,
    StreamParts,
    missing_segments,
    shift_ns,
)
from otel_llm.readers.foreign.foreign_spans import foreign_tokens
from otel_llm.readers.rows import Row, unjudged_row, verdict_row
from otel_llm.readers.segment_columns import TRACE_BYTES, keys_of
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.slo.stream import sort_gaps
from otel_llm.slo.windows import Ledger

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    from collections.abc import Callable, Iterator

    from otel_llm.evaluate.sink import Sink
    from otel_llm.evaluate.windowing import Windowing
    from otel_llm.readers.records import Batch, RequestSpan, Segment
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClass, SloClasses
    from otel_llm.slo.verdict import Verdict

FINISHED_REMEMBERED = 100_000
"""Requests whose end was judged and that are still known at least, so that what comes late is counted and starts
nothing."""

MAX_CHOICES = 128
"""Streams of one request, numbered from 0; those of later choices are refused."""

LONGEST_LOOK_NS = 5_000_000
"""The longest that a due evaluation is put off while exports are received."""

WAITING_TIMES = 10_000_000
"""Token times on spans of others that wait for the lateness, all together; beyond, the oldest are judged at once."""

Tokens: TypeAlias = tuple[list[int], bytes | None]
"""Token times (unix ns) and their kinds."""
Due = Literal["settle", "lost", "orphan", "forget"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Durations in ns after which the evaluator waits no longer."""

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
    sink: Sink[LiveStream]
    timeouts: Timeouts = field(default_factory=Timeouts)
    counts: Counter[str] = field(default_factory=Counter)
    live: dict[StreamKey, LiveStream] = field(default_factory=dict)
    table: StreamTable = field(default_factory=StreamTable)
    meter: Meter = field(init=False)
    scheduler: RuleScheduler = field(init=False)
    groups: Groups | None = field(init=False)
    """Evaluates the rules of scopes instance and class; None where there are none."""
    by_columns: bool = True
    """Whether rules are looked at by columns where that is certain to find the same; else one by one."""
    _identities: IdentityCache = field(init=False)
    _parts: dict[RequestKey, Parts] = field(default_factory=dict)
    _flying: Counter[RequestKey] = field(default_factory=Counter)
    _orphans: dict[RequestKey, int] = field(default_factory=dict)
    """Request spans without a stream, and when they end in the collector's time."""
    _tombstones: Tombstones = field(default_factory=lambda: Tombstones(FINISHED_REMEMBERED))
    _due: list[tuple[int, int, Due, StreamKey]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _ended: dict[StreamKey, LiveStream] = field(default_factory=dict)
    """Streams whose end was seen and that wait for the rest."""
    _waiting_times: int = 0
    _done: deque[tuple[int, int]] = field(default_factory=deque)
    """Of streams judged lately: when, and when the first of each was received."""
    _now_ns: int = 0

    def __post_init__(self) -> None:
        self._identities = IdentityCache(self.classes)
        self.meter = Meter(self.table)
        self.scheduler = RuleScheduler(self.table, self.rules, by_columns=self.by_columns)
        self.groups = groups_for(self.table, self.meter, self.rules, self.classes, self.counts)

    # Input.

    def apply(self, batch: Batch, now_ns: int) -> None:
        """Take what one export request held, received at `now_ns`; then look at the rules of what it touched."""
        segments = batch.plain
        slots = None if segments is None else self.table.find(segments.ids)
        self._arrive(batch, slots, now_ns)
        begun: dict[StreamKey, bool | None] = {}
        touched: dict[StreamKey, bool | None] = {}
        opened: list[LiveStream] = []
        later: list[Segment] = []
        for segment in batch.segments:
            if segment.seq:
                later.append(segment)
            # A commit first: what follows of the stream in this batch can then be applied with all others.
            elif (stream := self._open(segment, now_ns)) is not None:
                opened.append(stream)
            else:
                self._ingest_segment(segment, now_ns, begun)
        self.counts["segments"] += len(opened)
        self.scheduler.begin_all(opened)  # not before: perhaps another choice of the request came, too
        for key in begun:
            if self._settle(self.live[key], now_ns)[1]:
                self._judge(self.live[key])
        begun.update((stream.key, True) for stream in opened)
        moved = None
        if segments is not None and slots is not None:
            if begun:
                slots = self.table.find(segments.ids)
            moved = apply_plain(self.table, segments, slots, now_ns, self.timeouts.lateness_ns)
            self.counts["segments"] += moved.segments
            self.counts["tokens"] += moved.tokens
            self.counts["late_segments"] += moved.late
            later += [segments.segment(place, now_ns) for place in moved.left]
        for segment in sorted(later, key=lambda one: one.seq):
            self._ingest_segment(segment, now_ns, touched)
        for span in batch.requests:
            for key in self._take_request(span, now_ns):
                touched.setdefault(key, None)
        if batch.ignored:
            self.counts["ignored_spans"] += batch.ignored
        for reason, number in batch.refused.items():
            self.counts[f"refused.{reason}"] += number
        for name, number in batch.anomalies.items():
            self.counts[f"anomaly.{name}"] += number
        self._settle_all(touched, now_ns)
        for key, acts in touched.items():  # each stream once, whatever of it came
            begun[key] = begun.get(key) if acts is None else acts or bool(begun.get(key))
        self._look_at(moved, begun, now_ns)
        self._decide(self.scheduler.advance(now_ns, self.live))
        due_ns = self.scheduler.next_due()
        if due_ns is not None and due_ns <= now_ns - LONGEST_LOOK_NS:
            self.scheduler.evaluate_due(now_ns)
            self._decide(self.scheduler.advance(now_ns, self.live))
        self.scheduler.reclaim(now_ns, self.live)

    def _arrive(self, batch: Batch, slots: Ints | None, now_ns: int) -> None:
        """Let time pass until an export request is received; `slots`: of its plain segments, -1 for none."""
        self.windowing.begin(now_ns)
        if self.scheduler.is_due(now_ns - 1):
            self.scheduler.evaluate_due_of(self._slots_of(batch, slots), now_ns - 1)
        self._pass_time(now_ns - 1)  # what falls due at this very instant is decided with what has just come
        if self.groups is not None:
            self.groups.wake(now_ns)
        self._now_ns = max(self._now_ns, now_ns)

    def _ingest_segment(self, segment: Segment, now_ns: int, touched: dict[StreamKey, bool | None]) -> None:
        stream = self._take_segment(segment, now_ns)
        if stream is None:
            return
        late = now_ns + stream.offset_ns - segment.end_ns > self.timeouts.lateness_ns
        if late:
            self.counts["late_segments"] += 1
        touched[stream.key] = bool(touched.get(stream.key)) or not late

    def _look_at(self, moved: Applied | None, touched: dict[StreamKey, bool | None], now_ns: int) -> None:
        """Have the rules look at everything that the batch moved, each stream once.

        `touched`: whether one of its segments was in time; None where only its request span came, which moves no fact.
        """
        others: dict[int, bool] = {}
        for key, acts in touched.items():
            stream = self.live.get(key)
            if acts is not None and stream is not None and stream.ended_ns is None and stream.begun:
                others[stream.slot] = acts
        if moved is None or not moved.slots.size:
            slots, heard = list(others), list(others.values())
        elif not others:
            self.scheduler.evaluate_moved(moved.slots, moved.heard, now_ns)
            return
        else:
            for slot, acts in zip(moved.slots.tolist(), moved.heard.tolist(), strict=True):
                others[slot] = others.get(slot, False) or acts
            slots, heard = list(others), list(others.values())
        if slots:
            self.scheduler.evaluate_moved(np.array(slots), np.array(heard), now_ns)

    def _slots_of(self, batch: Batch, slots: Ints | None) -> Ints:
        """Return the slots of the streams of requests that a batch is about.

        `slots`: of its plain segments, -1 for none: those begin a stream, and perhaps beside others of their request.
        """
        requests = {(one.trace_id, one.span_id) for one in batch.segments}
        requests.update(span.key for span in batch.requests)
        if batch.plain is not None and slots is not None:
            requests.update((key[:TRACE_BYTES], key[TRACE_BYTES:]) for key in keys_of(batch.plain.ids[slots < 0]))
        found = [
            stream.slot
            for key in requests
            if (parts := self._parts.get(key)) is not None
            for choice in parts.streams
            if (stream := self.live.get((*key, choice))) is not None
        ]
        others = np.array(found, dtype=np.int64)
        return others if slots is None else np.concatenate((slots[slots >= 0], others))

    def advance(self, now_ns: int) -> None:
        """Let time pass up to `now_ns`: everything that falls due happens at its own instant, in order."""
        self.scheduler.evaluate_due(now_ns)
        self._pass_time(now_ns)
        self.scheduler.reclaim(now_ns, self.live)

    def _pass_time(self, now_ns: int) -> None:
        """Let everything happen that falls due, but for looks by columns that nothing depends on."""
        while True:
            due_ns = self._due[0][0] if self._due else None
            if not self.live and not self._orphans:
                self.windowing.skip_to(now_ns if due_ns is None else min(now_ns, due_ns))
            tick_ns = None if self.groups is None else self.groups.next_tick_ns
            event_ns = _earliest(due_ns, self.windowing.next_close(), tick_ns)
            upto_ns = now_ns if event_ns is None else min(now_ns, event_ns)
            self._decide(self.scheduler.advance(upto_ns, self.live))  # at one instant rules go first
            if event_ns is None or event_ns > now_ns:
                break
            self._now_ns = max(self._now_ns, event_ns)
            while self._due and self._due[0][0] <= event_ns:
                _, _, what, key = heapq.heappop(self._due)
                self._on_timer(what, key, event_ns)
            self.windowing.close_until(event_ns, self.table, self._judge_before)
            if self.groups is not None and tick_ns == event_ns:
                self._decide_after(self.groups.tick(event_ns), event_ns)

    def next_timer(self) -> int | None:
        """Return the next instant at which something happens without any input, None if nothing will."""
        due_ns = self._due[0][0] if self._due else None
        tick_ns = None if self.groups is None else self.groups.next_tick_ns
        waiting = (self.scheduler.next_due(), self.scheduler.engine.next_timer(), self.windowing.next_close(), due_ns)
        return _earliest(*waiting, tick_ns)

    def finish(self, now_ns: int) -> None:
        """Judge every stream whose end was seen, waiting for nothing more; those in flight stay so."""
        self.advance(now_ns)
        for stream in list(self._ended.values()):
            self._judge(stream)
        for key in list(self._orphans):
            self._judge_orphan(key)

    def resume_point(self) -> tuple[int, int]:
        """Return since which receipt time records are needed to come to this state again, and the oldest open window.

        Needed are those of every stream in flight, and of every one that ended since the oldest open window began.
        """
        margin_ns = self.windowing.window_ns + 2 * self.timeouts.lateness_ns
        while self._done and self._done[0][0] < self._now_ns - margin_ns:
            self._done.popleft()
        found = [self._now_ns - margin_ns, *(found_ns for _, found_ns in self._done)]
        if self.table.size:
            found.append(int(self.table.found_ns.min()))
        return min(found), self.windowing.closed_until_ns or 0

    def pause_group_rules(self) -> None:
        """Evaluate no rule of an instance or class until `resume_group_rules`.

        From a journal that is read from its middle on they would see too little.
        """
        if self.groups is not None:
            self.groups.quiet = True

    def resume_group_rules(self, now_ns: int) -> None:
        """Evaluate all rules again: the journal has been read up to now."""
        if self.groups is not None:
            self.groups.resume(now_ns)

    def mark_closed(self, batch: Batch) -> None:
        """Mark the streams and requests of a batch as closed: a run before has seen their end."""
        for segment in batch.segments:
            self._tombstones.add((segment.trace_id, segment.span_id), segment.choice)
        for key in [] if batch.plain is None else batch.plain.keys:
            self._tombstones.add((key[:TRACE_BYTES], key[TRACE_BYTES:]), 0)
        for span in batch.requests:
            self._tombstones.add(span.key, 0)

    @property
    def now_ns(self) -> int:
        """Return the present instant of the virtual clock."""
        return self._now_ns

    def reload(self, classes: SloClasses, rules: RuleSet, now_ns: int) -> None:
        """Judge by these classes and decide by these rules from an instant on, streams in flight too."""
        self.advance(now_ns)
        self.classes, self._identities = classes, IdentityCache(classes)
        engine = RuleEngine(rules)
        self._decide(engine.succeed(self.rules, now_ns, self.live))
        self.rules = engine
        if self.groups is not None:
            self._decide(self.groups.use(engine, classes, now_ns))
        if self.groups is None or not rules.group_rules:
            self.groups = groups_for(self.table, self.meter, engine, classes, self.counts)
        if self.groups is not None:
            self.groups.wake(now_ns)
        self.scheduler.use(engine, self.live.values(), now_ns)
        self._decide(self.scheduler.advance(now_ns, self.live))

    # Segments and request spans.

    def _open(self, segment: Segment, now_ns: int) -> LiveStream | None:
        """Follow the stream of a commit if nothing else has come of its request; None: it is to be taken as others are.

        So nearly every stream begins. What `_ingest_segment` and `_settle` find out step by step is known here.
        """
        key = (segment.trace_id, segment.span_id)
        plain = not (segment.choice or segment.first_token or segment.times_ns or semconv.OUTCOME in segment.attributes)
        if not plain or not self.by_columns or key in self._parts or key in self._tombstones:
            return None
        parts = self._parts[key] = Parts(*key, streams={0: StreamParts.begun(segment)}, since_ns=self._now_ns)
        opening = self._identities.of(parts)
        offset_ns = segment.end_ns - now_ns
        stream = LiveStream(self.table, parts, 0, opening.slo, shift_ns(offset_ns, self.timeouts.lateness_ns))
        stream.take_slot(offset_ns=offset_ns, watermark_ns=segment.start_ns, receipt_ns=now_ns)
        stream.identify(opening.slo, opening.group, exact_resume=opening.exact_resume)
        if opening.unknown:
            self.counts["unknown_slo_class"] += 1
        if stream.shift_ns:
            self.counts["shifted_streams"] += 1
        self.live[stream.key] = stream
        self._flying[key] = 1
        self._schedule(now_ns + self.timeouts.lost_after_ns, "lost", stream.key)
        self._commit(stream, segment.start_ns, opening.input_tokens)
        stream.begun_at(segment.end_ns)
        self.windowing.started(stream)
        return stream

    def _take_segment(self, segment: Segment, now_ns: int) -> LiveStream | None:
        key = (segment.trace_id, segment.span_id)
        stream_key = (*key, segment.choice)
        stream = self.live.get(stream_key)
        if stream is not None:
            parts, received = stream.parts, stream.received
        elif self._tombstones.has(key, segment.choice):
            self.counts["late_or_duplicate_segments"] += 1
            return None
        else:
            parts = self._parts_of(key)
            received = parts.stream(segment.choice)
        if not received.add(segment):
            self.counts["duplicate_segments"] += 1
            return None
        self.counts["segments"] += 1
        self.counts["tokens"] += len(segment.times_ns)
        if stream is None:
            for choice in parts.streams:
                if choice != segment.choice and (sibling := self.live.get((*key, choice))) is not None:
                    self.scheduler.leave_to_engine(sibling, now_ns)
            stream = self.live[stream_key] = self._new(parts, segment, now_ns)
            self._flying[key] += 1
            self._forget_orphan(key)
        else:
            stream.heard(segment.end_ns, now_ns)
        stream.waiting.append(segment.seq)
        return stream

    def _new(self, parts: Parts, segment: Segment, now_ns: int) -> LiveStream:
        resolved = parts.resolve(segment.choice)
        slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
        self.counts["unknown_slo_class"] += unknown
        stream = LiveStream(self.table, parts, segment.choice, slo, resolved.shift_ns(self.timeouts.lateness_ns))
        self.counts["shifted_streams"] += stream.shift_ns != 0
        stream.take_slot(offset_ns=segment.end_ns - now_ns, watermark_ns=segment.start_ns, receipt_ns=now_ns)
        stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        stream.known = resolved if segment.seq == 0 else None
        self._schedule(now_ns + self.timeouts.lost_after_ns, "lost", stream.key)
        return stream

    def _take_request(self, span: RequestSpan, now_ns: int) -> list[StreamKey]:
        key = span.key
        if key not in self._parts and key in self._tombstones:
            self.counts["late_request_spans"] += 1
            return []
        parts = self._parts_of(key)
        if not parts.add_request(span):
            self.counts["duplicate_request_spans"] += 1
            return []
        self.counts["request_spans"] += 1
        if not parts.streams:  # its segments may be on the way; others' spans wait the same time
            # One with token times is judged before the first window closes that they are in.
            at_ns = span.start_ns if span.events_ns else span.end_ns
            self._orphans[key] = at_ns - parts.resolve(0).shift_ns(self.timeouts.lateness_ns)
            self._schedule(now_ns + self.timeouts.lateness_ns, "orphan", (*key, 0))
            self._waiting_times += len(span.events_ns)
            while self._waiting_times > WAITING_TIMES:
                self._judge_orphan(next(iter(self._orphans)))
        return [stream for choice in parts.streams if (stream := (*key, choice)) in self.live]

    def _parts_of(self, key: RequestKey) -> Parts:
        parts = self._parts.get(key)
        if parts is None:
            parts = self._parts[key] = Parts(*key, since_ns=self._now_ns)
            for choice in self._tombstones.choices(key):
                parts.streams[choice] = StreamParts()  # judged already, but seen: the request span is not for one alone
        return parts

    # From segments to a stream, to its end.

    def _settle_all(self, touched: dict[StreamKey, bool | None], now_ns: int) -> None:
        """Settle every stream that a batch touched, then judge those that are over."""
        over: list[LiveStream] = []
        for key in touched:
            stream = self.live.get(key)
            if stream is None:
                continue
            fresh, complete = self._settle(stream, now_ns)
            if fresh and touched[key] is None:
                touched[key] = True
            if complete:
                over.append(stream)
        if len(over) > 1:
            sort_gaps([stream.tokens_so_far for stream in over if stream.begun])
        for stream in over:
            self._judge(stream)

    def _settle(self, stream: LiveStream, now_ns: int) -> tuple[bool, bool]:
        """Apply what can be applied, and see whether the stream has ended.

        Return whether it has just begun, and whether it is to be judged: nothing that could still come would change it.
        """
        fresh = not stream.begun
        if fresh:
            self._begin(stream)
        stream.apply()
        if stream.ended_ns is None:
            self._see_end(stream, now_ns)
        fresh = fresh and stream.begun and stream.ended_ns is None
        if fresh:
            self.scheduler.begin(stream)
        complete = stream.ended_ns is not None and self._is_complete(stream)
        if not complete and stream.settle_by_ns is not None and not stream.settling:
            stream.settling = True
            self._schedule(stream.settle_by_ns, "settle", stream.key)
        return fresh, complete

    def _begin(self, stream: LiveStream) -> None:
        if not stream.received.has(0) and stream.parts.request is None:
            return
        resolved, stream.known = stream.known, None
        if resolved is None:
            resolved = stream.resolve()
            slo, _ = self.classes.choose(resolved.declared_class, resolved.attributes)
            stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        assert resolved.commit_ns is not None  # noqa: S101  segment 0 or the request span is there
        self._commit(stream, resolved.commit_ns, resolved.input_tokens)
        self.windowing.started(stream)

    def _commit(self, stream: LiveStream, commit_ns: int, input_tokens: int | None) -> None:
        stream.begin(commit_ns, input_tokens)
        stream.windows = Ledger(stream.slo, commit_ns)
        self.table.begun[stream.slot] = stream.ended_ns is None

    def _see_end(self, stream: LiveStream, now_ns: int) -> None:
        last = stream.received.last()
        if last is not None:
            ended_ns, attributes = last.segment.end_ns, last.segment.attributes
        elif stream.parts.request_ends(stream.choice):
            request = stream.parts.request
            assert request is not None  # noqa: S101
            ended_ns, attributes = request.end_ns, request.attributes
        else:
            return
        stream.end(ended_ns)
        self._ended[stream.key] = stream
        stream.outcome = str(attributes[semconv.OUTCOME])
        stream.settle_by_ns = now_ns + self.timeouts.lateness_ns
        if stream.begun:
            self._decide_after(self.scheduler.ended(stream, ended_ns, now_ns), now_ns - 1)

    def _is_complete(self, stream: LiveStream) -> bool:
        """Return whether nothing that could still come would change the row."""
        if stream.has_gap:
            return False
        received, request = stream.received, stream.parts.request
        last = received.last()
        if last is None:  # the request span speaks for the end: every segment it counts must be here
            declared = request.attributes.get(semconv.SEGMENTS) if request is not None else None
            return isinstance(declared, int) and received.count() >= declared
        tokens = last.segment.attributes.get(semconv.TOKENS)
        if isinstance(tokens, int) and tokens > stream.applied_tokens:
            return False
        return received.has(0) and request is not None

    # Verdicts.

    def _judge_before(self, boundary_ns: int, now_ns: int) -> None:  # noqa: ARG002
        """Judge what ended before a window did that is about to close, whatever it still waits for."""
        for stream in list(self._ended.values()):
            assert stream.ended_ns is not None  # noqa: S101
            last_ns = max(stream.ended_ns, stream.tokens_so_far.last_ns) if stream.begun else stream.ended_ns
            if last_ns < boundary_ns + stream.shift_ns:
                self._judge(stream)
        for key in [key for key, end_ns in self._orphans.items() if end_ns < boundary_ns]:
            self._judge_orphan(key)

    def _judge(self, stream: LiveStream, others: Resolved | None = None, tokens: Tokens | None = None) -> None:
        """Give the verdict with what is there, and follow the stream no longer.

        `others`, `tokens`: what is known of a span of others, and when its tokens came.
        """
        self._drop(stream)  # first: whatever goes wrong below goes wrong once
        try:
            self._give_verdict(stream, stream.resolve() if others is None else others, tokens)
        finally:
            self.table.release(stream.slot, stream.table_key)

    def _give_verdict(self, stream: LiveStream, resolved: Resolved, tokens: Tokens | None) -> None:
        slo, _ = self.classes.choose(resolved.declared_class, resolved.attributes)
        stream.outcome = resolved.outcome
        self._reidentify(stream, resolved, slo)
        if tokens is not None and resolved.complete:
            stream.stream.extend(*tokens)
        verdict: Verdict | None = None
        row: Callable[[], Row]
        if resolved.complete and stream.begun and resolved.end_ns is not None:
            verdict = stream.stream.finish(resolved.end_ns, resolved.outcome)
            if verdict.skewed:
                self.counts["skewed_tokens"] += verdict.skewed
            if missing := missing_segments(stream.received):
                self.counts["missing_empty_segments"] += missing
            row = partial(verdict_row, resolved, slo.name, verdict)
        else:
            times_ns, kinds = stream.token_times() if tokens is None else tokens
            # Made at once: whoever keeps it should not keep the times.
            row = partial(dict, unjudged_row(resolved, slo.name, times_ns, kinds, slo.reads))
        self.windowing.ended(stream, resolved, verdict)
        if self.groups is not None:
            self.groups.ended(stream, resolved.outcome, verdict, self._now_ns)
        self.counts["judged"] += 1
        if resolved.outcome == "lost":
            self.counts["lost"] += 1
        stream.parts.streams[stream.choice] = StreamParts()  # seen, judged: no more than that is remembered
        self.sink.charged(self.meter.close(stream, verdict))
        self.sink.stream_judged(stream, row, verdict)

    def _reidentify(self, stream: LiveStream, resolved: Resolved, slo: SloClass) -> None:
        """Update the identity by what the request span or a late segment 0 changed since the stream was begun."""
        old, group = stream.stream if stream.begun else None, stream.group
        stream_is = group_of(resolved, slo)
        same_class = old is None or old.slo is slo or old.slo == slo
        if old is not None and (stream_is != group or not same_class):
            # What was charged under another name goes back under that name, and is charged anew.
            if stream.windows is not None:
                self.windowing.give_back(stream, stream.windows.close(None))
            self.sink.charged(self.meter.close(stream, None))
            if self.groups is not None:
                self.groups.close(stream, None)
            stream.identify(slo, stream_is, exact_resume=resolved.exact_resume)
            self.windowing.move_start(stream, group)
            stream.windows = Ledger(slo, old.commit_ns)
        elif stream.slo is not slo or stream_is != group or stream.exact_resume != resolved.exact_resume:
            stream.identify(slo, stream_is, exact_resume=resolved.exact_resume)
        if resolved.commit_ns is None:
            return
        if old is None:
            self._commit(stream, resolved.commit_ns, resolved.input_tokens)
            stream.apply()
            self.windowing.started(stream)
        elif old.commit_ns != resolved.commit_ns:
            self._move_commit(stream, resolved)
        elif not same_class:
            # The ledgers know what was charged: their last charge balances it.
            stream.begin(resolved.commit_ns, resolved.input_tokens)
        elif resolved.input_tokens is not None:
            old.know_input_tokens(resolved.input_tokens)  # often only the request span says it

    def _move_commit(self, stream: LiveStream, resolved: Resolved) -> None:
        """Begin a stream anew at its own commit, where it was begun at its request's: nothing is owed from before."""
        assert resolved.commit_ns is not None  # noqa: S101
        if stream.windows is not None:
            self.windowing.give_back(stream, stream.windows.close(None))
            stream.windows = Ledger(stream.slo, resolved.commit_ns)
            self.table.charged_ns[stream.slot] = 0  # what was charged is to be charged again
        counted = self.windowing.take_back_start(stream)
        stream.begin(resolved.commit_ns, resolved.input_tokens)
        if counted:
            self.windowing.started(stream)

    def _drop(self, stream: LiveStream) -> None:
        """Follow a stream no longer; its request span is kept for the choices that may still come."""
        del self.live[stream.key]
        self._ended.pop(stream.key, None)
        self._done.append((self._now_ns, self.table.found_ns.item(stream.slot)))
        key = (stream.parts.trace_id, stream.parts.span_id)
        self._tombstones.add(key, stream.choice)
        self._flying[key] -= 1
        if not self._flying[key]:
            del self._flying[key]
            self._schedule(self._now_ns + self.timeouts.lateness_ns, "forget", stream.key)

    # Timers.

    def _schedule(self, at_ns: int, what: Due, key: StreamKey) -> None:
        heapq.heappush(self._due, (at_ns, next(self._order), what, key))

    def _on_timer(self, what: Due, key: StreamKey, now_ns: int) -> None:
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
        if stream.ended_ns is not None:  # not silent, but over: it waits for the rest as long as that may take
            return
        lost_ns = stream.last_receipt_ns + self.timeouts.lost_after_ns
        if lost_ns > now_ns:
            self._schedule(lost_ns, "lost", key)
            return
        if stream.begun:
            self.scheduler.evaluate_due(now_ns)
            self._decide(self.scheduler.advance(now_ns, self.live))
            self._decide(self.scheduler.ended(stream, stream.watermark_ns, now_ns))
        self._judge(stream)

    def _judge_orphan(self, key: RequestKey) -> None:
        """Judge a request span whose segments did not come, or that is another's."""
        if not self._forget_orphan(key):
            return
        parts = self._parts[key]
        assert parts.request is not None  # noqa: S101
        ours = semconv.SEGMENTS in parts.request.attributes
        resolved = parts.resolve(0) if ours else parts.resolve_foreign()
        if resolved is None:
            self.counts["ignored_spans"] += 1
        tokens = None if ours else foreign_tokens(parts.request)
        if resolved is not None and (ours or tokens is not None):
            self._judge_without_segments(parts, resolved, tokens)
            return
        del self._parts[key]
        self._tombstones.add(key, 0)
        if resolved is not None:  # a row of its own; windows and smooth goodput need token times
            slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
            self.counts["unknown_slo_class"] += unknown
            self.sink.foreign_judged(unjudged_row(resolved, slo.name, [], None, slo.reads))

    def _forget_orphan(self, key: RequestKey) -> bool:
        """Wait no longer for segments of a request span; return whether it did."""
        if self._orphans.pop(key, None) is None:
            return False
        request = self._parts[key].request
        self._waiting_times -= 0 if request is None else len(request.events_ns)
        return True

    def _judge_without_segments(self, parts: Parts, resolved: Resolved, tokens: Tokens | None) -> None:
        slo, unknown = self.classes.choose(resolved.declared_class, resolved.attributes)
        self.counts["unknown_slo_class"] += unknown
        stream = LiveStream(self.table, parts, 0, slo, resolved.shift_ns(self.timeouts.lateness_ns))
        stream.take_slot(offset_ns=0, watermark_ns=resolved.commit_ns or 0, receipt_ns=self._now_ns)
        stream.ended_ns = resolved.end_ns
        stream.identify(slo, group_of(resolved, slo), exact_resume=resolved.exact_resume)
        self.live[stream.key] = stream
        self._flying[parts.trace_id, parts.span_id] += 1
        self._judge(stream, None if tokens is None else resolved, tokens)
        if tokens is not None and parts.request is not None:
            parts.request.events_ns = []  # judged: no more than that is remembered

    def _decide_after(self, decisions: list[Decision], before_ns: int) -> None:
        """Hand on decisions; what streams decide up to `before_ns` comes first, also where nobody has looked yet.

        So the order of decisions does not depend on when somebody lets time pass.
        """
        if decisions:
            self.scheduler.evaluate_due(before_ns)
            self._decide(self.scheduler.advance(before_ns, self.live))
            self._decide(decisions)

    def _decide(self, decisions: list[Decision]) -> None:
        if decisions:
            self.sink.decided(decisions)


def _earliest(*instants: int | None) -> int | None:
    return min((instant for instant in instants if instant is not None), default=None)
