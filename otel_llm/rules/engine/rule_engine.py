"""The rule engine: a function of stream changes and instants on one virtual clock; it reads no clock and sends nothing.

For everything received at an instant t its owner calls, in this order:

    advance(t - 1, views)    what was due before, by what was known before
    update(view, t)          for each stream that the batch changed, after the whole batch was applied
    ended(view, end, t)      instead, for each stream that it ended
    advance(t, views)        the rules are evaluated, at t

Between receipts `next_timer` returns the instant of the next `advance`; called later, it gives the same decisions. So
a replay of the same records with the same receipt times decides the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from otel_llm.rules.engine.applicable_rules import ApplicableRules, identity_of
from otel_llm.rules.engine.decision_maker import DecisionMaker, Moment
from otel_llm.rules.engine.rule_state import (
    RuleState,
    began_to_fire,
    begin_anew,
    byte_came,
    evaluate,
    identity_changed,
    next_due_ns,
    refuted,
    stays_inactive,
)
from otel_llm.rules.engine.state_machine import Event, Output, Phase, step
from otel_llm.rules.language.snapshot import COUNTING, IDENTITY, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from otel_llm.formats.records import RequestKey, StreamKey
    from otel_llm.rules.decisions.decision_records import Decided, Decision
    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.rules.language.snapshot import StreamView
    from otel_llm.rules.language.tokens import Value


class Evaluated(NamedTuple):
    """An evaluated stream: its rules' states, whether any ever fired, whether none may begin to fire now."""

    key: StreamKey
    states: list[RuleState]
    fired: bool
    muted: bool


class RuleEngine:
    """The evaluation of a set's stream rules over in-flight streams.

    `decided`: decisions of the decision file; they are taken into account and passed to `again` instead of being
    returned.
    """

    def __init__(
        self,
        rules: RuleSet,
        decided: Collection[Decided] = (),
        again: Callable[[Decision], object] | None = None,
    ) -> None:
        self.rules = rules
        self._applicable = ApplicableRules(rules)
        self.decided = frozenset(decided)
        self.decision_maker = DecisionMaker(rules, self.decided, again)
        self._queue = EvaluationQueue()
        self._streams_of: Counter[RequestKey] = Counter()
        self._evaluated: dict[StreamKey, Followed] | None = None

    def __len__(self) -> int:
        """Return the number of followed streams."""
        return len(self._queue.streams)

    def update(
        self, view: StreamView, now_ns: int, *, late: bool = False, identity_since_ns: int | None = None
    ) -> None:
        """Note that a stream is new or has changed; the next `advance` evaluates it at its now.

        `late`: only segments older than the lateness have changed it. Nothing begins to fire then, until others arrive.
        `identity_since_ns`: when its identity last changed, on its own axis; None: at the commit, but for how its
        tokens are counted.
        """
        followed = self._queue.streams.get(view.key) or self._follow(view)
        identity = identity_of(view)
        if identity != followed.identity:
            pairs = zip(IDENTITY, followed.identity, identity, strict=True)
            changed = frozenset(name for name, old, new in pairs if old != new)
            if identity_since_ns is None and changed.issubset(COUNTING):
                identity_since_ns = view.counted_since_ns
            if identity_since_ns is not None:
                for state in followed.states:
                    identity_changed(state, changed, identity_since_ns)
            followed.identity = identity
            followed.states = self._applicable.states(view, followed.states, identity_since_ns)
        if followed.suspended:
            return
        followed.muted = late and (followed.muted or followed.changed_ns is None)
        self._queue.change(followed, now_ns)

    def ended(self, view: StreamView, end_ns: int, now_ns: int) -> list[Decision]:
        """Stop following a stream, and resolve its firings; `end_ns` on the stream's axis."""
        followed = self._queue.streams.get(view.key)
        if followed is None:
            return []
        decisions = self._close(followed.states, view, end_ns, now_ns)
        self._forget(followed)
        return decisions

    def next_timer(self) -> int | None:
        """Return the next instant, on the collector's axis, at which something can change if nothing is received."""
        return self._queue.next_due()

    def take_evaluated(self) -> list[Evaluated]:
        """Return the streams evaluated since the last call; they are collected from the first call on."""
        if self._evaluated is None:
            self._evaluated = {}
            return []
        found = [Evaluated(key, one.states, one.fired, one.muted) for key, one in self._evaluated.items()]
        self._evaluated.clear()
        return found

    def follow_from(self, view: StreamView, at_ns: int, dues: Mapping[str, int | None]) -> None:
        """Follow a stream that the prefilter has evaluated up to `at_ns`.

        `dues`: by rule the instant, on the stream's axis, at which it is next due without a token; None for none. Rules
        without an entry are evaluated when they would have been.
        """
        followed = self._queue.streams.get(view.key) or self._follow(view)
        x_ns = max(at_ns + view.offset_ns, view.stream.last_ns)
        facts = None
        for state in followed.states:
            if state.rule.name in dues:
                state.due_ns = dues[state.rule.name]
            else:
                facts = facts or Snapshot(view)
                truth = state.rule.when.truth(facts, x_ns, state.rule.max_fact_age_ns)
                state.due_ns = next_due_ns(state, facts, x_ns, truth, muted=False)
        followed.plan(view)
        self._queue.enqueue(followed)

    def suspend(self, key: StreamKey) -> None:
        """Evaluate no rule of a stream until `begin_anew`; firings go on."""
        followed = self._queue.streams.get(key)
        if followed is not None:
            followed.suspended = True
            followed.changed_ns = followed.due_ns = None

    def begin_anew(self, view: StreamView, now_ns: int) -> None:
        """Evaluate a stream, suspended or not, from now on: no rule looks further back."""
        followed = self._queue.streams.get(view.key) or self._follow(view)
        followed.suspended = False
        x_ns = max(now_ns + view.offset_ns, view.stream.last_ns)
        for state in followed.states:
            begin_anew(state, x_ns)
        self.update(view, now_ns, identity_since_ns=x_ns)

    def drop(self, key: StreamKey) -> None:
        """Stop following a stream on which nothing ever fired; another `update` follows it again."""
        followed = self._queue.streams.get(key)
        if followed is not None:
            self._forget(followed)

    def succeed(self, former: RuleEngine, now_ns: int, views: Mapping[StreamKey, StreamView]) -> list[Decision]:
        """Take over another engine's states of rules of the same hash; return the ends of the other rules' firings.

        Every followed stream is evaluated at the next `advance`.
        """
        decisions: list[Decision] = []
        own = self._applicable.by_hash
        for key, followed in former._queue.streams.items():
            view = views.get(key)
            if view is None:
                continue
            gone = [state for state in followed.states if state.rule.hash not in own]
            decisions += former._close(gone, view, now_ns + view.offset_ns, now_ns)
            known = [replace(state, rule=own[state.rule.hash]) for state in followed.states if state.rule.hash in own]
            taken = self._follow(view)
            taken.states = self._applicable.states(view, known)
            taken.fired, taken.muted, taken.suspended = followed.fired, followed.muted, followed.suspended
            self.update(view, now_ns, late=followed.muted)
        self.decision_maker.succeed(former.decision_maker)
        return decisions

    def pending(self, rule: str) -> list[tuple[StreamKey, int]]:
        """Return the streams on which a rule waits for its `for`, and since when it has held, on the stream's axis."""
        return [
            (followed.key, state.run.start_ns)
            for followed in self._queue.streams.values()
            for state in followed.states
            if state.rule.name == rule and state.phase is Phase.PENDING and state.run is not None
        ]

    def firing(self, tenant: str | None = None) -> Counter[str]:
        """Return on how many streams of a tenant, or of all (None), each rule fires now, by its name.

        O(streams on which any rule ever fired).
        """
        return Counter(
            state.rule.name
            for followed in self._queue.streams.values()
            if followed.fired and tenant in (None, followed.key[2])
            for state in followed.states
            if state.phase is Phase.FIRING
        )

    def firing_on(self, key: StreamKey) -> list[str]:
        """Return the names of the rules that fire on a stream now."""
        followed = self._queue.streams.get(key)
        return [] if followed is None else [one.rule.name for one in followed.states if one.phase is Phase.FIRING]

    def follows(self, key: StreamKey) -> bool:
        """Tell whether a stream is followed."""
        return key in self._queue.streams

    def unschedule(self, key: StreamKey) -> None:
        """Do not evaluate a stream before its next `update`, which the caller makes in time."""
        followed = self._queue.streams.get(key)
        if followed is not None:
            followed.due_ns = None

    def advance(self, now_ns: int, views: Mapping[StreamKey, StreamView]) -> list[Decision]:
        """Evaluate everything that is due up to now, in order of instant; drop a stream without a view."""
        decisions: list[Decision] = []
        while (due := self._queue.pop(now_ns)) is not None:
            at_ns, followed = due
            view = views.get(followed.key)
            if view is None:
                self._forget(followed)
                continue
            decisions += self._evaluate(followed, view, at_ns)
            self._queue.enqueue(followed)
            if self._evaluated is not None:
                self._evaluated[followed.key] = followed
        return decisions

    def _evaluate(self, followed: Followed, view: StreamView, now_ns: int) -> list[Decision]:
        x_ns = max(now_ns + view.offset_ns, view.stream.last_ns)
        at = Moment(Snapshot(view), x_ns, now_ns)
        decisions: list[Decision] = []
        if followed.last_byte_ns != view.last_byte_ns:
            followed.last_byte_ns = view.last_byte_ns
            for state in followed.states:
                byte_came(state, view.last_byte_ns)
        for state in followed.states:
            if followed.changed_ns is None and (state.due_ns is None or state.due_ns > x_ns):
                continue
            if stays_inactive(state, at.facts, x_ns):
                state.due_ns = None
                continue
            if state.phase is Phase.FIRING and refuted(state, at.facts):
                decisions += self._transition(state, Event.REFUTED, state.flip_ns, at)
            found = evaluate(state, at.facts, x_ns, muted=followed.muted)
            decisions += self._transition(state, found.event, found.since_ns, at)
            state.due_ns = next_due_ns(state, at.facts, x_ns, found.truth, muted=followed.muted)
        fires = any(state.phase is Phase.FIRING for state in followed.states)
        followed.fired = followed.fired or bool(decisions) or fires
        followed.changed_ns = None
        followed.plan(view)
        return decisions

    def _close(self, states: list[RuleState], view: StreamView, end_ns: int, now_ns: int) -> list[Decision]:
        """Resolve firings; `end_ns` on the stream's axis."""
        firing = [state for state in states if state.phase is Phase.FIRING]
        decisions: list[Decision] = []
        if firing:
            x_ns = max(end_ns, view.stream.last_ns)
            at = Moment(Snapshot(view), x_ns, now_ns)
            for state in firing:
                wrong = refuted(state, at.facts)
                # It may have begun to fire after the stream was over, before its end was received.
                event, since_ns = (Event.REFUTED, state.flip_ns) if wrong else (Event.ENDED, max(x_ns, state.flip_ns))
                decisions += self._transition(state, event, since_ns, at)
        return decisions

    def _transition(self, state: RuleState, event: Event, since_ns: int, at: Moment) -> list[Decision]:
        """Make the transition; return its decisions."""
        state.phase, output = step(state.phase, event)
        if output is None:
            return []
        if output is Output.FIRE:
            began_to_fire(state, at.facts, since_ns)
            return self.decision_maker.fire(state, at)
        state.floor_ns = max(state.floor_ns, since_ns)
        state.run = None
        return self.decision_maker.close(state, output, since_ns, at)

    def _follow(self, view: StreamView) -> Followed:
        followed = Followed(view.key, identity_of(view), self._applicable.states(view, []))
        self._queue.streams[view.key] = followed
        self._streams_of[view.key[:3]] += 1
        return followed

    def _forget(self, followed: Followed) -> None:
        del self._queue.streams[followed.key]
        if self._evaluated is not None:
            self._evaluated.pop(followed.key, None)
        request = followed.key[:3]
        self._streams_of[request] -= 1
        if not self._streams_of[request]:
            del self._streams_of[request]
            self.decision_maker.forget(request)


@dataclass(slots=True)
class Followed:
    """A followed stream; instants on the collector's axis.

    `changed_ns`: when it changed without an evaluation since; `due_ns`: when the next of its rules is due;
    `queued_ns`: its instant in the queue of timers, which may be too early.
    """

    key: StreamKey
    identity: tuple[Value | None, ...]
    states: list[RuleState]
    muted: bool = False
    """Only late segments have changed it since a segment was in time."""
    fired: bool = False
    suspended: bool = False
    """None of its rules is evaluated."""
    last_byte_ns: int = 0
    """The newest byte at the last evaluation, on the stream's axis."""
    changed_ns: int | None = None
    due_ns: int | None = None
    queued_ns: int | None = None

    def plan(self, view: StreamView) -> None:
        """Note when the first of its rules is due."""
        dues = [state.due_ns for state in self.states if state.due_ns is not None]
        self.due_ns = min(dues) - view.offset_ns if dues else None


class EvaluationQueue:
    """A queue of streams, by the instant of their next evaluation: they changed, or one of their rules is due."""

    def __init__(self) -> None:
        self.streams: dict[StreamKey, Followed] = {}
        """The followed streams."""
        self._changes: list[tuple[int, StreamKey]] = []
        self._timers: list[tuple[int, StreamKey]] = []

    def change(self, stream: Followed, now_ns: int) -> None:
        """Queue the evaluation of all rules of a stream that has changed."""
        if stream.changed_ns != now_ns:
            stream.changed_ns = now_ns
            heappush(self._changes, (now_ns, stream.key))

    def enqueue(self, stream: Followed) -> None:
        """Queue a stream for the instant at which it is due."""
        due_ns = stream.due_ns if stream.changed_ns is None else None
        # An earlier entry stays: one evaluation too many is cheaper than a new entry for every segment.
        if due_ns is not None and (stream.queued_ns is None or due_ns < stream.queued_ns):
            stream.queued_ns = due_ns
            heappush(self._timers, (due_ns, stream.key))

    def next_due(self) -> int | None:
        """Return the next instant at which a stream is evaluated, None if there is none."""
        while self._timers:
            queued_ns, key = self._timers[0]
            stream = self.streams.get(key)
            if stream is not None and stream.queued_ns == stream.due_ns == queued_ns:
                break
            heappop(self._timers)
            if stream is not None and stream.queued_ns == queued_ns:
                stream.queued_ns = None
                self.enqueue(stream)
        queues = [queue[0][0] for queue in (self._changes, self._timers) if queue]
        return min(queues, default=None)

    def pop(self, now_ns: int) -> tuple[int, Followed] | None:
        """Return and remove the next stream to evaluate up to now, with its instant; None if there is none."""
        changes, timers = self._changes, self._timers
        while True:
            # At one instant a stream's change goes before its timer: it evaluates all of its rules.
            queue = changes if changes and not (timers and timers[0] < changes[0]) else timers
            if not queue or queue[0][0] > now_ns:
                return None
            at_ns, key = heappop(queue)
            stream = self.streams.get(key)
            if stream is not None and self._is_due(stream, at_ns, changed=queue is changes):
                return at_ns, stream

    def _is_due(self, stream: Followed, at_ns: int, *, changed: bool) -> bool:
        if changed:
            return stream.changed_ns == at_ns and not stream.suspended
        if stream.queued_ns != at_ns:
            return False
        stream.queued_ns = None
        if stream.suspended:
            return False
        if stream.due_ns == at_ns and stream.changed_ns is None:
            return True
        self.enqueue(stream)
        return False
