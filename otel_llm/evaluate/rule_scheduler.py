"""The scheduler of rules on streams in flight: a columnar prefilter first, the engine if a rule may hold.

Each stream has one evaluator at a time (single writer). While no rule of a stream can change its state, this is the
columnar prefilter. The engine takes the stream over as soon as a rule may, and returns it when none may. All decisions
are the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_llm.core.rule_tables import BY_ENGINE, INACTIVE, POLL_EVERY_NS
from otel_llm.evaluate.streams.lifecycle import IN_FLIGHT
from otel_llm.rules.engine.applicable_rules import identity_of
from otel_llm.rules.engine.prefilter import Prefilter, state_of
from otel_llm.slo.live.columns import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from otel_llm.evaluate.streams.live_stream import LiveStream
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.engine.prefilter import PrefilterResult
    from otel_llm.rules.engine.rule_engine import RuleEngine

    Ints = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]


class RuleScheduler:
    """The schedule of rule evaluations of every stream in flight; instants are unix ns of the collector's clock.

    `by_columns`: whether the prefilter is used; the engine alone costs 100 times as much.
    """

    def __init__(self, table: StreamTable, engine: RuleEngine, *, by_columns: bool = True) -> None:
        self._table = table
        self._by_columns = by_columns
        self.use(engine, (), 0)

    def use(self, engine: RuleEngine, streams: Iterable[LiveStream], now_ns: int) -> None:
        """Use another engine from now on, and evaluate all `streams` in flight."""
        self.engine = engine
        self._prefilter = Prefilter(engine.rules)
        self._clear = self._by_columns and self._prefilter.clear
        self._indexes = {rule.name: at for at, rule in enumerate(engine.rules.stream_rules)}
        self._states = np.zeros((0, self._prefilter.count), dtype=np.int8)
        self._due_ns: int = NEVER
        self._table.due_ns[:] = NEVER
        self._table.prefiltered[:] = False
        engine.take_evaluated()
        in_flight = [stream for stream in streams if stream.state in IN_FLIGHT]
        for stream in in_flight:
            self.begin(stream)
        # The engine evaluates the streams that it has taken over from the former engine.
        fresh = [stream.slot for stream in in_flight if not engine.follows(stream.key)]
        if fresh:
            self.evaluate_moved(np.array(fresh), np.ones(len(fresh), dtype=bool), now_ns)
        for stream in in_flight:
            if engine.follows(stream.key):
                self._release(stream.slot)

    def begin(self, stream: LiveStream) -> None:
        """Add a stream whose commit is known; `evaluate_moved` evaluates it."""
        slot = stream.slot
        self._table.identity[slot] = self._prefilter.bits(identity_of(stream))
        self._table.prefiltered[slot] = self._can_prefilter(stream)
        self._states_by_slot()[slot] = INACTIVE

    def recount(self, stream: LiveStream) -> None:
        """Note that the tokens of a stream are counted in another way from one of them on; then `evaluate_moved`."""
        bits = self._prefilter.bits(identity_of(stream))
        if bits != self._table.identity[stream.slot]:
            self._table.identity[stream.slot] = bits
            self._release(stream.slot)  # which rules held before it depends on the former way

    def begin_all(self, streams: Sequence[LiveStream]) -> None:
        """Add streams that have a commit only."""
        if not streams:
            return
        slots = [stream.slot for stream in streams]
        bits = self._prefilter.bits
        self._table.identity[slots] = [bits(identity_of(stream)) for stream in streams]
        # The result of `_can_prefilter`: no segment waits, and there are no tokens.
        self._table.prefiltered[slots] = [self._clear and len(stream.parts.streams) == 1 for stream in streams]
        self._states_by_slot()[slots] = INACTIVE

    def evaluate_moved(self, slots: Ints, on_time: Bools, now_ns: int) -> None:
        """Evaluate streams with new segments; `slots`: (S,) int64; `on_time`: (S,), whether a segment was in time."""
        table = self._table
        prefiltered = (table.prefiltered[slots] & table.ready[slots] & on_time) != 0
        chosen = slots[prefiltered]
        if chosen.size:
            prefiltered[prefiltered] = self._prefilter_slots(chosen, np.full(len(chosen), now_ns)).unchanged
        for slot, acts in zip(slots[~prefiltered].tolist(), on_time[~prefiltered].tolist(), strict=True):
            self._hand_over(slot, now_ns, late=not acts)

    def leave_to_engine(self, stream: LiveStream, now_ns: int) -> None:
        """Leave a stream to the engine: it shares budgets with another stream of its request."""
        if self._table.prefiltered[stream.slot]:
            self._release(stream.slot)
            self.engine.follow_from(stream, now_ns - 1, {})  # rules due at this very instant are not evaluated yet

    def ended(self, stream: LiveStream, end_ns: int, now_ns: int) -> list[Decision]:
        """Remove a stream that has ended, and return its decisions; `end_ns`: on its own clock."""
        self._table.prefiltered[stream.slot] = False
        self._table.due_ns[stream.slot] = NEVER
        return self.engine.ended(stream, end_ns, now_ns)

    def next_due(self) -> int | None:
        """Return the next instant at which the prefilter must evaluate a stream; None if there is none."""
        return None if self._due_ns == NEVER else self._due_ns

    def is_due(self, now_ns: int) -> bool:
        """Return whether the prefilter may have to evaluate a stream up to now."""
        return self._due_ns <= now_ns

    def evaluate_due(self, now_ns: int) -> None:
        """Evaluate all streams due up to now, each at its own instant; hand those that may change to the engine."""
        while self._due_ns <= now_ns:
            self._evaluate_slots(np.flatnonzero(self._table.due_ns <= now_ns))
            self._due_ns = int(self._table.due_ns.min(initial=NEVER))

    def evaluate_due_of(self, slots: Ints, now_ns: int) -> None:
        """Evaluate these streams, (S,) int64, if they are due up to now, before a batch changes them.

        Others can wait: until a decision it makes no difference when a stream is found inactive.
        """
        due = self._table.due_ns
        while (slots := slots[due[slots] <= now_ns]).size:
            self._evaluate_slots(np.unique(slots))

    def _evaluate_slots(self, slots: Ints) -> None:
        if not slots.size:
            return
        table, at_ns = self._table, self._table.due_ns[slots]
        unchanged, may_change, opens_ns, _ = self._prefilter_slots(slots, at_ns)
        steps = self._prefilter.stepping
        for index in np.flatnonzero(~unchanged).tolist():
            slot, due_ns = int(slots[index]), int(at_ns[index])
            stream = table.streams[slot]
            if due_ns == table.receipt_ns[slot]:  # a segment has changed it: the engine evaluates that
                self._hand_over(slot, due_ns, late=False)
                continue
            self._release(slot)
            if stream is None:
                continue
            x_ns = max(due_ns + stream.offset_ns, stream.stream.last_ns)
            polled = (x_ns - stream.stream.commit_ns) % POLL_EVERY_NS == 0
            rules = zip(self._indexes, may_change[index].tolist(), opens_ns[index].tolist(), steps, strict=True)
            # The engine finds deadlines between two evaluations, which the columns cannot show.
            dues = {
                name: x_ns if may else None if next_ns == NEVER else next_ns
                for name, may, next_ns, by_steps in rules
                if polled or not may or not by_steps
            }
            self.engine.follow_from(stream, due_ns, dues)

    def advance(self, now_ns: int, live: Mapping[StreamKey, LiveStream]) -> list[Decision]:
        """Evaluate the engine's due rules up to now, after the prefilter's, and return the decisions."""
        due_ns = self.engine.next_timer()
        if due_ns is None or due_ns > now_ns:
            return []
        self.evaluate_due(now_ns)
        return self.engine.advance(now_ns, live)

    def reclaim(self, now_ns: int, live: Mapping[StreamKey, LiveStream]) -> None:
        """Return streams from the engine to the prefilter if it can evaluate them again."""
        if self._clear:
            self._reclaim(now_ns, live)

    def _can_prefilter(self, stream: LiveStream) -> bool:
        # The streams of a request with several choices share budgets: the engine keeps them all.
        plain = self._table.ready[stream.slot] and len(stream.parts.streams) == 1
        return self._clear and bool(plain) and stream.stream.tokens == stream.applied_tokens

    def _hand_over(self, slot: int, now_ns: int, *, late: bool) -> None:
        """Hand a changed stream to the engine, unless it has ended."""
        stream = self._table.streams[slot]
        if stream is not None and stream.begun and stream.ended_ns is None:
            self._release(slot)
            self.engine.update(stream, now_ns, late=late)

    def _release(self, slot: int) -> None:
        """Remove a stream from the prefilter."""
        self._table.due_ns[slot] = NEVER
        self._table.prefiltered[slot] = 0

    def _reclaim(self, now_ns: int, live: Mapping[StreamKey, LiveStream]) -> None:
        returned: list[tuple[LiveStream, bool]] = []
        states = self._states_by_slot()
        for key, rule_states, fired, muted in self.engine.take_evaluated():
            stream = live.get(key)
            if stream is None or stream.ended_ns is not None or muted or not self._can_prefilter(stream):
                continue
            found = [(self._indexes[rule_state.rule.name], state_of(rule_state)) for rule_state in rule_states]
            if any(state == BY_ENGINE for _, state in found):
                continue
            row = states[stream.slot]
            row[:] = INACTIVE
            for index, state in found:
                row[index] = state
            returned.append((stream, fired))
        if not returned:
            return
        slots = np.array([stream.slot for stream, _ in returned], dtype=np.int64)
        self._table.known_tokens[slots] = self._table.tokens[slots]
        self._table.known_byte_ns[slots] = self._table.last_byte_ns[slots]
        unchanged = self._prefilter_slots(slots, np.full(len(slots), now_ns)).unchanged
        for (stream, fired), stays in zip(returned, unchanged.tolist(), strict=True):
            if not stays:
                self._release(stream.slot)  # the prefilter is the more conservative: the engine keeps the stream
                continue
            self._table.prefiltered[stream.slot] = 1
            if fired:
                self.engine.unschedule(stream.key)
            else:
                self.engine.drop(stream.key)

    def _prefilter_slots(self, slots: Ints, at_ns: Ints) -> PrefilterResult:
        """Evaluate streams by columns at these instants, and schedule the next; `slots`, `at_ns`: (S,) int64."""
        table = self._table
        found = self._prefilter.evaluate(table.rows, self._states_by_slot(), table.due_ns, slots, at_ns)
        self._due_ns = min(self._due_ns, found.earliest_ns)
        return found

    def _states_by_slot(self) -> npt.NDArray[np.int8]:
        if len(self._states) < self._table.size:
            states = np.zeros((self._table.size, self._prefilter.count), dtype=np.int8)
            states[: len(self._states)] = self._states
            self._states = states
        return self._states
