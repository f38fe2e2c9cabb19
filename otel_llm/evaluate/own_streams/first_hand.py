"""The scalar evaluator, for a process that owns its streams: events in, verdicts and decisions out.

It does no I/O and reads no clock: every instant is an argument, unix ns of the owner's one clock, monotonic. No segment
is late or missing, so a token costs its arithmetic and little more: rules are evaluated when a computed timer is due,
and for tokens at most every `EVALUATE_EVERY_NS`.

The owner calls `advance` whenever `next_timer` is due. `advance` alone evaluates rules: the owner reports a change
first, and the decision follows in `advance`. Single writer: one thread owns it; a sink may call back.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.evaluate.group_facts import Groups
from otel_llm.evaluate.own_streams.inactive_until import NEVER, InactiveUntil
from otel_llm.evaluate.own_streams.own_stream import UNSTATED, Identity, OwnStream, Statement, write
from otel_llm.evaluate.streams.final_verdict import EndedStream, final_verdict, judged_row, stated_reply
from otel_llm.evaluate.streams.stream_in_flight import Group
from otel_llm.evaluate.streams.stream_table import StreamTable
from otel_llm.evaluate.timers import Timers, earliest
from otel_llm.evaluate.usage import Meter
from otel_llm.rules.engine.rule_engine import RuleEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.evaluate.sink import Sink
    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClass, SloClasses
    from otel_llm.slo.token_events import TokenEvents
    from otel_llm.slo.verdict import Verdict

EVALUATE_EVERY_NS: Final = 50_000_000
"""The least time between evaluations of one stream's rules because of tokens; computed timers see all tokens anyway."""


class FirstHand:
    """The evaluator of streams that this process owns.

    Args:
        classes: the SLO classes that judge streams.
        rules: the engine of rules.
        sink: gets charges, verdicts and decisions, in order of time.
        evaluate_every_ns: as EVALUATE_EVERY_NS; 0: each token.

    `counts`: judged, lost, tokens, unknown_slo_class, skewed_tokens, folded_groups.
    """

    def __init__(
        self, classes: SloClasses, rules: RuleEngine, sink: Sink[OwnStream], evaluate_every_ns: int = EVALUATE_EVERY_NS
    ) -> None:
        self._evaluate_every_ns = evaluate_every_ns
        self.classes = classes
        self.rules = rules
        self.sink = sink
        self.counts: Counter[str] = Counter()
        self.streams: dict[StreamKey, OwnStream] = {}
        """The streams in flight."""
        self._table = StreamTable()
        self._meter = Meter(self._table)
        self.groups = Groups(self._table, rules, classes, self.counts)
        self._inactive_until = InactiveUntil(rules.rules)
        rules.take_evaluated()  # from now on it records which streams it evaluates
        self._timers = Timers()
        self._next_ns: int = NEVER

    # The life of a stream.

    def begin(self, key: StreamKey, commit_ns: int, identity: Identity, now_ns: int) -> OwnStream:
        """Add a stream at its commit.

        Raises:
            ValueError: a stream with this key is in flight.
        """
        if key in self.streams:
            raise ValueError(f"stream {key[0].hex()} {key[1].hex()} {key[3]} is in flight already")
        self._catch_up(now_ns)
        slo, unknown = self.classes.choose(identity.declared_class, identity.attributes)
        self.counts["unknown_slo_class"] += unknown
        group = Group(slo.name, identity.model or "", identity.instance or "", identity.measured_at, key[2])
        stream = OwnStream(self._table, key, identity, slo, group, identity.exact_resume)
        stream.begin(commit_ns)
        write(self._table, (stream,), now_ns)
        self._table.found_ns[stream.slot] = now_ns
        self._table.in_flight[stream.slot] = True
        self.streams[key] = stream
        stream.evaluated_ns = now_ns
        self._changed(stream, now_ns)
        self.groups.wake(now_ns)
        return stream

    def tokens(self, stream: OwnStream, events: TokenEvents, now_ns: int) -> None:
        """Add tokens, read from the backend at their times (unix ns); errors are those of `Stream.extend`.

        Timers that are due before them run first. An error changes nothing.
        """
        if not events.times_ns:
            return
        if self._next_ns < events.times_ns[0]:
            self.advance(min(events.times_ns[0], now_ns) - 1)
        self._timers.move_to(now_ns)
        stream.stream.extend(*events)
        self._evaluate_soon(stream, now_ns)

    def heard(self, stream: OwnStream, now_ns: int) -> None:
        """Note that bytes of a stream's reply were read, perhaps without tokens."""
        self._catch_up(now_ns)
        stream.last_byte_ns = max(stream.last_byte_ns, now_ns)
        self._evaluate_soon(stream, now_ns)

    def _evaluate_soon(self, stream: OwnStream, now_ns: int) -> None:
        if stream.evaluation_ns is None and not stream.suspended and stream.ended_ns is None:
            self._schedule_evaluation(stream, max(now_ns, stream.evaluated_ns + self._evaluate_every_ns))

    def identify(
        self,
        stream: OwnStream,
        *,
        instance: str | None = None,
        exact_resume: bool | None = None,
        input_tokens: int | None = None,
        counting: tuple[str, bool] | None = None,
        now_ns: int,
    ) -> None:
        """Set a stream's replica, whether it can be resumed exactly, and its prompt's length; None: unchanged.

        `counting`: the basis of its tokens from `now_ns` on, and whether the estimate uses what was learned of the
        model. Tokens and idle time so far are charged to the former replica.
        """
        self._catch_up(now_ns)
        changed = counting is not None and stream.count_by(counting, now_ns)
        if input_tokens is not None and stream.stream.know_input_tokens(input_tokens):
            stream.written_tokens = None
            changed = True
        if exact_resume is not None and exact_resume is not stream.exact_resume:
            stream.exact_resume = exact_resume
            changed = True
        if instance is not None and instance != stream.instance:
            self._serve(stream, instance, now_ns)
            changed = True
        if changed:
            self._changed(stream, now_ns)

    def hold_back(self, stream: OwnStream, *, blocked: bool, now_ns: int) -> None:
        """Note whether bytes wait for the client's socket: while they do, all facts about time are missing.

        Its stream rules are then suspended, also rules that need no time or fire on missing facts. They resume, without
        the time in between, `evaluate_every_ns` after the bytes are sent: the backend was not read in between, and the
        tokens that it has sent by then are no stall.
        """
        if blocked is stream.has_gap:
            return
        self._catch_up(now_ns)
        stream.has_gap, stream.catches_up = blocked, not blocked
        if blocked:
            self.rules.suspend(stream.key)
        else:
            self._schedule_evaluation(stream, now_ns + self._evaluate_every_ns)

    def pause(self, stream: OwnStream, now_ns: int) -> None:
        """Suspend its stream rules until `resume`: its generation was stopped on purpose."""
        if stream.paused:
            return
        self.advance(now_ns)
        stream.paused = True
        self.rules.suspend(stream.key)

    def resume(self, stream: OwnStream, now_ns: int) -> None:
        """Resume its stream rules, without the time of the pause."""
        if not stream.paused:
            return
        self._catch_up(now_ns)
        stream.paused = False
        self._changed(stream, now_ns, anew=True)

    def disconnected(self, stream: OwnStream, now_ns: int) -> None:
        """Note that it has no open connection to a backend: its facts age from now on."""
        if not stream.ageless:
            return
        self._catch_up(now_ns)
        stream.watermark_ns, stream.ageless = now_ns, False
        self._changed(stream, now_ns)

    def connected(self, stream: OwnStream, now_ns: int) -> None:
        """Note that it has an open connection to a backend again; its rules resume without the time before."""
        if stream.ageless:
            return
        self._catch_up(now_ns)
        stream.ageless = True
        self._changed(stream, now_ns, anew=True)

    def end(
        self, stream: OwnStream, end_ns: int, outcome: str, now_ns: int, stated: Statement = UNSTATED
    ) -> Verdict | None:
        """Judge a stream and remove it; return its verdict, None if it has ended already.

        Raises:
            ValueError: the outcome is unknown; nothing has changed.
        """
        if stream.ended_ns is not None:
            return None
        recorded = stream.stream.tokens
        resolved = stream.resolved(end_ns, outcome, stated)
        verdict, basis = final_verdict(stream.stream, resolved, end_ns)
        row = partial(judged_row, lambda: resolved, basis, stream.slo.name, verdict, recorded)
        ended = EndedStream(stream, resolved, verdict, lambda: resolved, row)
        self._catch_up(now_ns)
        write(self._table, (stream,), now_ns)
        stream.ended_ns, stream.outcome = end_ns, outcome
        del self.streams[stream.key]
        self._table.in_flight[stream.slot] = False
        self._decide(self.rules.ended(stream, end_ns, now_ns))
        self.groups.ended([ended], now_ns)
        self._next_ns = min(self._next_ns, self.groups.next_tick_ns or NEVER)
        self.counts.update(judged=1, lost=outcome == "lost", tokens=recorded, skewed_tokens=verdict.skewed)
        try:
            if (reply := stated_reply(ended, recorded, stream.token_ratio_learned)) is not None:
                self.sink.reply_stated(reply)
            for metered in self._meter.close([(stream, verdict)]):
                self.sink.charged(metered)
            self.sink.streams_judged([ended])
        finally:
            self._table.release(stream.slot, None)
        return verdict

    # Time.

    def advance(self, now_ns: int) -> None:
        """Advance the clock to `now_ns`: every timer runs at its own instant, in order."""
        while self._next_ns <= now_ns:
            at_ns = self._next_ns
            self._timers.move_to(at_ns)
            for _, key in self._timers.pop_due(at_ns):
                stream = self.streams.get(key)
                if stream is not None and stream.evaluation_ns == at_ns:
                    stream.evaluation_ns = None
                    if stream.catches_up:
                        stream.catches_up = False
                        self._changed(stream, at_ns, anew=True)
                    elif not (stream.suspended or self._stays_inactive(stream, stream.inactive_states, at_ns)):
                        self.rules.update(stream, at_ns)
            decisions = self.rules.advance(at_ns, self.streams)
            self._unschedule_inactive(at_ns)
            self._decide(decisions)
            if self.groups.next_tick_ns == at_ns:
                self._write()
                self._decide(self.groups.tick(at_ns))
            self._next_ns = self._earliest()
        self._timers.move_to(now_ns)

    def next_timer(self) -> int | None:
        """Return the instant of the next timer, None if there is none; O(1)."""
        return None if self._next_ns == NEVER else self._next_ns

    def reload(self, classes: SloClasses, rules: RuleSet, now_ns: int) -> None:
        """Use these classes and rules from now on, also for streams in flight."""
        self.advance(now_ns)
        self._write()
        self.classes = classes
        for stream in self.streams.values():
            slo, _ = classes.choose(stream.identity.declared_class, stream.identity.attributes)
            if slo != stream.slo:
                self._judge_by(stream, slo)
        self._write()
        engine = RuleEngine(rules)
        self._decide(engine.succeed(self.rules, now_ns, self.streams))
        self.rules, self._inactive_until = engine, InactiveUntil(rules)
        engine.take_evaluated()
        self._decide(self.groups.use(engine, classes, now_ns))
        for stream in self.streams.values():
            self.rules.update(stream, now_ns)
        self._next_ns = min(self._earliest(), now_ns)
        self.advance(now_ns)

    @property
    def table(self) -> StreamTable:
        """Return the table of streams in flight, with rows of the last instant."""
        self._write()
        return self._table

    @property
    def meter(self) -> Meter:
        """Return the meter of usage, with rows of the last instant."""
        self._write()
        return self._meter

    @property
    def now_ns(self) -> int:
        """Return the last instant."""
        return self._timers.now_ns

    # Inner parts.

    def _catch_up(self, now_ns: int) -> None:
        """Run the timers before an instant at which a stream changes."""
        if self._next_ns < now_ns:
            self.advance(now_ns - 1)
        self._timers.move_to(now_ns)

    def _changed(self, stream: OwnStream, now_ns: int, *, anew: bool = False) -> None:
        """Schedule all rules of a stream for the next `advance`; `anew`: without the time before."""
        if stream.suspended:
            return
        if anew:
            self.rules.begin_anew(stream, now_ns)
        else:
            self.rules.update(stream, now_ns, identity_since_ns=now_ns)
        self._next_ns = min(self._next_ns, now_ns)

    def _schedule_evaluation(self, stream: OwnStream, at_ns: int) -> None:
        stream.evaluation_ns = at_ns
        if at_ns < NEVER:
            self._timers.schedule(at_ns, "evaluate", stream.key)
            self._next_ns = min(self._next_ns, at_ns)

    def _unschedule_inactive(self, now_ns: int) -> None:
        """Unschedule the streams just evaluated whose rules stay inactive for a while, whatever tokens follow."""
        for key, states, _, _ in self.rules.take_evaluated():
            stream = self.streams.get(key)
            if stream is not None and not stream.suspended:
                stream.evaluated_ns = now_ns
                if self._stays_inactive(stream, states, now_ns):
                    self.rules.unschedule(key)

    def _stays_inactive(self, stream: OwnStream, states: Sequence[RuleState] | None, now_ns: int) -> bool:
        """Return whether no rule can hold before a later instant, and schedule the next evaluation there."""
        until_ns = now_ns if states is None else self._inactive_until.of(stream, states)
        if until_ns > now_ns:
            stream.inactive_states = states
            self._schedule_evaluation(stream, until_ns)
            return True
        if stream.inactive_states is not None:
            # That evaluation was scheduled because no rule could hold before; now the next token schedules one.
            stream.inactive_states = stream.evaluation_ns = None
        return False

    def _serve(self, stream: OwnStream, instance: str, now_ns: int) -> None:
        """Set the replica that serves a stream from now on."""
        if stream.instance:
            self._charge(stream, now_ns)
        if stream.identity.instance is None:
            stream.name_instance(instance)
        stream.group = stream.group._replace(instance=instance)
        self._table.name(stream.slot, stream.group, stream.slo)

    def _charge(self, stream: OwnStream, now_ns: int) -> None:
        """Charge the tokens and idle time of a stream so far to its present group."""
        write(self._table, (stream,), now_ns)
        slots = np.array([stream.slot])
        for metered in self._meter.charge(slots):
            self.sink.charged(metered)
        self.groups.charge(slots)

    def _judge_by(self, stream: OwnStream, slo: SloClass) -> None:
        """Judge a stream by another class: its charges are refunded under the old class, and made again."""
        for metered in self._meter.close([(stream, None)]):
            self.sink.charged(metered)
        self.groups.close([(stream, None)])
        stream.judge_by(slo)
        stream.group = stream.group._replace(slo_class=slo.name)
        self._table.name(stream.slot, stream.group, slo)

    def _write(self) -> None:
        write(self._table, self.streams.values(), self._timers.now_ns)

    def _earliest(self) -> int:
        at_ns = earliest(self.rules.next_timer(), self.groups.next_tick_ns, self._timers.next_due())
        return NEVER if at_ns is None else at_ns

    def _decide(self, decisions: list[Decision]) -> None:
        if decisions:
            self.sink.decided(decisions)
