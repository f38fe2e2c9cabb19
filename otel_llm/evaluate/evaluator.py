"""The streaming evaluator: batches and instants in, verdicts, window charges and rule decisions out.

It is a function of batches with receipt times, and instants, on one virtual clock. It reads no clock and does no I/O: a
replayed journal gives the results of the live run. Single writer: one thread owns it.

A segment is received (`registry`), applied (`streams`), evaluated by rules (`rule_scheduler`) and, when its stream has
ended, judged (`verdicts`); `timers` holds events of later instants.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.evaluate.group_facts import Groups
from otel_llm.evaluate.registry import Registry, RegistryLimits
from otel_llm.evaluate.rule_scheduler import RuleScheduler
from otel_llm.evaluate.streams.batch_update import Applied, apply_plain
from otel_llm.evaluate.streams.lifecycle import IN_FLIGHT, OPEN, StreamEvent, StreamState
from otel_llm.evaluate.streams.stream_table import StreamTable
from otel_llm.evaluate.timers import Timeouts, Timers, earliest
from otel_llm.evaluate.usage import Meter
from otel_llm.evaluate.verdicts import Verdicts
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.slo.stream import sort_gaps

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.evaluate.sink import Sink
    from otel_llm.evaluate.streams.live_stream import LiveStream
    from otel_llm.evaluate.timers import Timer
    from otel_llm.evaluate.windowing import Windowing
    from otel_llm.formats.batch import Batch
    from otel_llm.formats.records import RequestSpan, Segment, StreamKey
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClasses

    Ints = npt.NDArray[np.int64]
    Touched = dict[StreamKey, bool | None]

MOST_DELAY_NS: Final = 5_000_000
"""The longest that a due evaluation is delayed while exports are received."""


class Evaluator:
    """The evaluator of every stream from its first segment to its verdict.

    Args:
        classes: the SLO classes that judge streams.
        rules: the engine of rules.
        windowing: the event-time windows.
        sink: gets charges, verdicts and decisions.
        timeouts: how long to wait for missing segments and silent streams.
        limits: of the registry.
        by_columns: whether rules are evaluated by columns if the result is certainly equal; else one by one.

    `counts`: events received, refused, late and judged.
    """

    def __init__(
        self,
        classes: SloClasses,
        rules: RuleEngine,
        windowing: Windowing,
        sink: Sink[LiveStream],
        timeouts: Timeouts | None = None,
        limits: RegistryLimits | None = None,
        *,
        by_columns: bool = True,
    ) -> None:
        self.rules = rules
        self.windowing = windowing
        self.sink = sink
        self.timeouts = Timeouts() if timeouts is None else timeouts
        self.by_columns = by_columns
        self.counts: Counter[str] = Counter()
        limits = RegistryLimits() if limits is None else limits
        self.table = StreamTable(most_groups=limits.groups)
        self.meter = Meter(self.table)
        self.scheduler = RuleScheduler(self.table, rules, by_columns=by_columns)
        self.timers = Timers()
        self.registry = Registry(classes, self.table, self.timers, self.timeouts, self.counts, limits)
        self.groups = Groups(self.table, rules, classes, self.counts, limits.subjects)
        self._verdicts = Verdicts(
            self.registry, self.table, self.meter, windowing, sink, self.timers, self.counts, self.groups
        )

    @property
    def live(self) -> dict[StreamKey, LiveStream]:
        """Return the streams without a verdict."""
        return self.registry.live

    @property
    def classes(self) -> SloClasses:
        """Return the SLO classes that judge streams."""
        return self.registry.classes

    @property
    def now_ns(self) -> int:
        """Return the present instant of the virtual clock (unix ns)."""
        return self.timers.now_ns

    # Input.

    def apply(self, batch: Batch, now_ns: int) -> None:
        """Apply an export request received at `now_ns` (unix ns), then evaluate the rules of its streams."""
        segments = batch.plain
        slots = None if segments is None else self.table.find(segments.ids, batch.tenant)
        self._advance_to_receipt(batch, slots, now_ns)
        begun: Touched = {}
        touched: Touched = {}
        opened: list[LiveStream] = []
        later: list[Segment] = []
        for segment in batch.segments:
            if segment.seq:
                later.append(segment)
            # Commits first: later segments of their streams in this batch can then be applied by columns.
            elif self.by_columns and (stream := self.registry.open(segment, now_ns)) is not None:
                self.windowing.started(stream)
                opened.append(stream)
            else:
                self._ingest_segment(segment, now_ns, begun)
        self.counts["segments"] += len(opened)
        self.scheduler.begin_all(opened)  # now that all choices of the requests in the batch are known
        for key in begun:
            if self._complete(self.live[key], now_ns)[1]:
                self._verdicts.judge([self.live[key]])
        begun.update((stream.key, True) for stream in opened)
        moved = None
        if segments is not None and slots is not None:
            if begun:
                slots = self.table.find(segments.ids, batch.tenant)
            moved = apply_plain(self.table, segments, slots, now_ns, self.timeouts.lateness_ns)
            self.counts["segments"] += moved.segments
            self.counts["tokens"] += moved.tokens
            self.counts["late_segments"] += moved.late
            later += [segments.segment(index, now_ns, batch.tenant) for index in moved.left]
        for segment in sorted(later, key=lambda one: one.seq):
            self._ingest_segment(segment, now_ns, touched)
        for span in batch.requests:
            self._ingest_request(span, now_ns, touched)
        self._count(batch)
        self._complete_all(touched, now_ns)
        for key, acts in touched.items():  # each stream once
            begun[key] = begun.get(key) if acts is None else acts or bool(begun.get(key))
        self._evaluate(moved, begun, now_ns)
        self._decide_due(now_ns)
        due_ns = self.scheduler.next_due()
        if due_ns is not None and due_ns <= now_ns - MOST_DELAY_NS:
            self.scheduler.evaluate_due(now_ns)
            self._decide_due(now_ns)
        self.scheduler.reclaim(now_ns, self.live)

    def advance(self, now_ns: int) -> None:
        """Advance the clock to `now_ns`: every timer runs at its own instant, in order."""
        self.scheduler.evaluate_due(now_ns)
        self._pass_time(now_ns)
        self.scheduler.reclaim(now_ns, self.live)

    def next_timer(self) -> int | None:
        """Return the instant of the next timer; None if there is none."""
        rules_ns = (self.scheduler.next_due(), self.scheduler.engine.next_timer())
        return earliest(*rules_ns, self.windowing.next_close(), self.timers.next_due(), self.groups.next_tick_ns)

    def finish(self, now_ns: int) -> None:
        """Judge every stream whose end was received, without further waiting; streams in flight stay."""
        self.advance(now_ns)
        self._verdicts.judge_ended()

    def reload(self, classes: SloClasses, rules: RuleSet, now_ns: int) -> None:
        """Use these classes and rules from an instant on, also for streams in flight."""
        self.advance(now_ns)
        self.registry.use(classes)
        engine = RuleEngine(rules)
        self._decide(engine.succeed(self.rules, now_ns, self.live))
        self.rules = engine
        self._decide(self.groups.use(engine, classes, now_ns))
        self.scheduler.use(engine, self.live.values(), now_ns)
        self._decide_due(now_ns)

    # Restart.

    def resume_point(self) -> tuple[int, int]:
        """Return the receipt time from which a restart needs records, and the start of the oldest open window.

        It needs the records of streams in flight, and of streams that ended since that window began. Both in unix ns.
        """
        margin_ns = self.windowing.window_ns + 2 * self.timeouts.lateness_ns
        return self.registry.oldest_receipt_ns(self.now_ns - margin_ns), self.windowing.closed_until_ns or 0

    def mark_closed(self, batch: Batch) -> None:
        """Mark the streams and requests of a batch as closed: an earlier run has seen their end."""
        self.registry.mark_closed(batch)

    def pause_group_rules(self) -> None:
        """Suspend the rules of instances and classes until `resume_group_rules`.

        A journal that is read from its middle would show them too little.
        """
        self.groups.paused = True

    def resume_group_rules(self, now_ns: int) -> None:
        """Resume the rules of instances and classes: the journal is read."""
        self.groups.resume(now_ns)

    # A batch's parts.

    def _advance_to_receipt(self, batch: Batch, slots: Ints | None, now_ns: int) -> None:
        """Advance the clock to the receipt of a batch; `slots`: (S,) int64, of its plain segments, -1 for none."""
        self.windowing.begin(now_ns)
        if self.scheduler.is_due(now_ns - 1):
            self.scheduler.evaluate_due_of(self.registry.slots_of(batch, slots), now_ns - 1)
        self._pass_time(now_ns - 1)  # timers of this very instant run after the batch
        self.groups.wake(now_ns)
        self.timers.move_to(now_ns)

    def _ingest_segment(self, segment: Segment, now_ns: int, touched: Touched) -> None:
        received = self.registry.receive(segment, now_ns)
        if received is None:
            return
        stream, found = received
        if found:
            for sibling in self.registry.siblings(stream):
                self.scheduler.leave_to_engine(sibling, now_ns)
        late = now_ns + stream.offset_ns - segment.end_ns > self.timeouts.lateness_ns
        if late:
            self.counts["late_segments"] += 1
        touched[stream.key] = bool(touched.get(stream.key)) or not late

    def _ingest_request(self, span: RequestSpan, now_ns: int, touched: Touched) -> None:
        for key in self.registry.receive_request(span, now_ns):
            touched.setdefault(key, None)
        while (oldest := self.registry.excess_orphan()) is not None:
            self._verdicts.judge_orphan(oldest)

    def _count(self, batch: Batch) -> None:
        """Count spans that gave no record."""
        if batch.ignored:
            self.counts["ignored_spans"] += batch.ignored
        for reason, number in batch.refused.items():
            self.counts[f"refused.{reason}"] += number
        for name, number in batch.anomalies.items():
            self.counts[f"anomaly.{name}"] += number

    def _complete_all(self, touched: Touched, now_ns: int) -> None:
        """Apply what every stream of a batch received, then judge the complete ones."""
        done: list[LiveStream] = []
        for key in touched:
            stream = self.live.get(key)
            if stream is None:
                continue
            fresh, complete = self._complete(stream, now_ns)
            if fresh and touched[key] is None:
                touched[key] = True
            if complete:
                done.append(stream)
        if len(done) > 1:
            sort_gaps([stream.stream for stream in done if stream.begun])
        if done:
            self._verdicts.judge(done)

    def _complete(self, stream: LiveStream, now_ns: int) -> tuple[bool, bool]:
        """Apply the segments that can be applied, and determine whether the stream has ended.

        Returns:
            Whether it has just begun, and whether it is complete: no later segment could change its row.
        """
        fresh = not stream.begun
        if fresh and self.registry.commit(stream):
            self.windowing.started(stream)
        if stream.apply() and not fresh:
            self.scheduler.recount(stream)
        ends_now = stream.state in OPEN and stream.find_end()
        if ends_now:
            self._on_end(stream, now_ns)
        fresh = fresh and stream.state in IN_FLIGHT
        if fresh:
            self.scheduler.begin(stream)
        complete = stream.ended_ns is not None and stream.is_complete
        if ends_now and not complete:
            stream.move(StreamEvent.INCOMPLETE)
            self.timers.schedule(now_ns + self.timeouts.lateness_ns, "complete", stream.key)
        return fresh, complete

    def _on_end(self, stream: LiveStream, now_ns: int) -> None:
        assert stream.ended_ns is not None  # noqa: S101
        self.registry.ended[stream.key] = stream
        if stream.begun:
            self._decide_after(self.scheduler.ended(stream, stream.ended_ns, now_ns), now_ns - 1)

    def _evaluate(self, moved: Applied | None, touched: Touched, now_ns: int) -> None:
        """Evaluate the rules of all streams that a batch changed, each stream once.

        `touched`: whether a segment of the stream was in time; None for a request span alone, which changes no fact.
        """
        others: dict[int, bool] = {}
        for key, acts in touched.items():
            stream = self.live.get(key)
            if acts is not None and stream is not None and stream.state in IN_FLIGHT:
                others[stream.slot] = acts
        if moved is not None and moved.slots.size:
            if not others:
                self.scheduler.evaluate_moved(moved.slots, moved.on_time, now_ns)
                return
            for slot, acts in zip(moved.slots.tolist(), moved.on_time.tolist(), strict=True):
                others[slot] = others.get(slot, False) or acts
        if others:
            self.scheduler.evaluate_moved(np.array(list(others)), np.array(list(others.values())), now_ns)

    # Time.

    def _pass_time(self, now_ns: int) -> None:
        """Run all timers up to an instant, except evaluations by columns on which no decision depends."""
        while True:
            due_ns = self.timers.next_due()
            if not self.live and not self.registry.orphans:
                self.windowing.skip_to(now_ns if due_ns is None else min(now_ns, due_ns))
            tick_ns = self.groups.next_tick_ns
            event_ns = earliest(due_ns, self.windowing.next_close(), tick_ns)
            self._decide_due(now_ns if event_ns is None else min(now_ns, event_ns))  # rules first at one instant
            if event_ns is None or event_ns > now_ns:
                break
            self.timers.move_to(event_ns)
            for what, key in self.timers.pop_due(event_ns):
                self._on_timer(what, key, event_ns)
            self.windowing.close_until(event_ns, self.table, self._verdicts.judge_before)
            if tick_ns == event_ns:
                self._decide_after(self.groups.tick(event_ns), event_ns)

    def _on_timer(self, what: Timer, key: StreamKey, now_ns: int) -> None:
        stream = self.live.get(key)
        if what == "forget":
            self.registry.forget(key[:3])
        elif what == "orphan":
            self._verdicts.judge_orphan(key[:3])
        elif what == "complete":
            if stream is not None and stream.state is StreamState.AWAITING_PARTS:
                self._verdicts.judge([stream])
        elif stream is not None and stream.state in OPEN:  # else it has ended, and "complete" judges it
            self._on_silence(stream, now_ns)

    def _on_silence(self, stream: LiveStream, now_ns: int) -> None:
        """Judge a stream as lost, or schedule the timer again if a segment was received since."""
        lost_ns = stream.last_receipt_ns + self.timeouts.lost_after_ns
        if lost_ns > now_ns:
            self.timers.schedule(lost_ns, "lost", stream.key)
            return
        if stream.begun:
            self.scheduler.evaluate_due(now_ns)
            self._decide_due(now_ns)
            self._decide(self.scheduler.ended(stream, stream.watermark_ns, now_ns))
        self._verdicts.judge([stream], StreamEvent.SILENCE)

    # Decisions.

    def _decide_due(self, now_ns: int) -> None:
        """Pass on the decisions of stream rules up to an instant."""
        self._decide(self.scheduler.advance(now_ns, self.live))

    def _decide_after(self, decisions: list[Decision], before_ns: int) -> None:
        """Pass on decisions, after those of stream rules up to `before_ns`, which are evaluated now if they were not.

        The order of decisions thus does not depend on the instants of `advance`.
        """
        if decisions:
            self.scheduler.evaluate_due(before_ns)
            self._decide_due(before_ns)
            self._decide(decisions)

    def _decide(self, decisions: list[Decision]) -> None:
        if decisions:
            self.sink.decided(decisions)
