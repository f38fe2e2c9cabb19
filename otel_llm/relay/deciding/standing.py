"""The migrations that rules have decided, each attempted until it is done or its firing ends.

A rule decides once a firing. What goes wrong with one attempt is not final: while the firing goes on, a migration is
attempted whenever `when` and `only_if` hold and every limit of its budget has room. Behind an attempt that failed or
was refuted comes a pause that grows from 50 ms to 1 s; what waits for a budget goes on at once when there is room, the
reader who is worst off first. Behind one that was done, `when` must have been false first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from otel_llm.actions.execute.open_actions import Completion, completed_decision
from otel_llm.rules.engine.budget import Budget, Spends
from otel_llm.rules.engine.decision_maker import group_limits
from otel_llm.rules.language.snapshot import Snapshot
from otel_llm.shared.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from otel_llm.actions.execute.events import Order
    from otel_llm.evaluate.own_streams.first_hand import FirstHand
    from otel_llm.evaluate.own_streams.own_stream import OwnStream
    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.decisions.decision_records import Decision, Outcome
    from otel_llm.rules.files.ruleset import Action, Rule, RuleSet
    from otel_llm.shared.clock import Clock

EVALUATION_EVERY_NS: Final = 50_000_000
"""How often a migration is evaluated that waits for a condition."""
NOT_BEGUN: Final = frozenset({"shadow", "budget", "expired"})
"""Outcomes of an attempt that was not begun: nothing was asked of a backend."""


@dataclass(slots=True, eq=False)
class Standing:
    """One migration that a rule has decided, until its firing ends.

    `attempts`: those that were begun; `rests`: the last one was done, and `when` has held since; `waits`: the outcome
    that was last recorded, "" behind an attempt.
    """

    decision: Decision
    rule: Rule
    action: Action
    backoff: Backoff
    due_ns: int
    attempts: int = 0
    is_open: bool = False
    rests: bool = False
    over: bool = False
    waits: str = ""

    @property
    def key(self) -> StreamKey:
        """Return its stream."""
        assert self.decision.stream is not None  # noqa: S101
        return self.decision.stream


@dataclass(slots=True)
class StandingMigrations:
    """The standing migrations of a relay; in its loop.

    `order` makes an order of a decision; `take` does it, and calls back with the outcome; `record` writes a decision,
    with what is known of its order.
    """

    clock: Clock
    first_hand: FirstHand
    order: Callable[[Decision], Order]
    take: Callable[[Order, Callable[[Completion], None]], None]
    record: Callable[[Decision], None]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _standing: dict[StreamKey, dict[tuple[str, int], Standing]] = field(default_factory=dict)
    """By stream, then by the hash of the rule and the index of its action."""
    _room: bool = False
    """Whether an attempt has ended since the last evaluation: a budget may have room."""
    _budgets: dict[tuple[str, int], Budget] = field(default_factory=dict)
    _groups: dict[tuple[str, str], Spends] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _stopped: bool = False

    def __len__(self) -> int:
        """Return the number of standing migrations."""
        return sum(map(len, self._standing.values()))

    def keep(self, decision: Decision) -> bool:
        """Keep a decided migration; return whether it is attempted and recorded here.

        One in shadow is kept for the case that the shadow is lifted; its decision is recorded as it is.
        """
        if decision.action != "migrate" or decision.stream is None or decision.action_index is None or self._stopped:
            return False
        rule = next((one for one in self._rules.rules if one.hash == decision.rule_hash), None)
        if rule is None:
            return False
        action = rule.actions[decision.action_index]
        shadow = decision.mode == "shadow"
        self._standing.setdefault(decision.stream, {})[decision.rule_hash, decision.action_index] = Standing(
            decision,
            rule,
            action,
            Backoff(decision.stream[1]),
            self.clock.now_ns(),
            waits="shadow" if shadow else "",
        )
        self._evaluate_soon()
        return not shadow

    def withdraw(self, decision: Decision) -> None:
        """Attempt nothing more for a firing that has ended; record what was never attempted."""
        if decision.stream is None:
            return
        of_stream = self._standing.get(decision.stream, {})
        for one in [one for (rule, _), one in of_stream.items() if rule == decision.rule_hash]:
            self._drop(one)
            if not one.attempts and not one.waits:
                withdrawn = Completion(decision.outcome, "withdrawn: the firing ended first")
                self.record(completed_decision(one.decision, withdrawn))

    def ended(self, stream: StreamKey) -> None:
        """Forget a stream that has ended."""
        for one in self._standing.pop(stream, {}).values():
            one.over = True
        for budget in self._budgets.values():
            budget.forget(stream[:3])

    def wake(self) -> None:
        """Evaluate everything that waits: the rules or the backends have changed."""
        now_ns = self.clock.now_ns()
        for one in self._all():
            one.due_ns = min(one.due_ns, now_ns)
        self._evaluate_soon()

    def stop(self) -> None:
        """Attempt nothing more."""
        self._stopped = True
        self._standing.clear()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def _rules(self) -> RuleSet:
        return self.first_hand.rules.rules

    def _all(self) -> Iterator[Standing]:
        for of_stream in self._standing.values():
            yield from of_stream.values()

    def _drop(self, one: Standing) -> None:
        """Attempt it no more."""
        one.over = True
        of_stream = self._standing[one.key]
        assert one.decision.action_index is not None  # noqa: S101
        del of_stream[one.decision.rule_hash, one.decision.action_index]
        if not of_stream:
            del self._standing[one.key]

    # One evaluation of all that is due.

    def _evaluate_soon(self) -> None:
        if self._standing and not self._stopped:
            self._arm(0.0)

    def _arm(self, delay_s: float) -> None:
        at_s = self.loop.time() + delay_s
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(at_s, self._evaluate)

    def _evaluate(self) -> None:
        self._timer = None
        now_ns = self.clock.now_ns()
        room, self._room = self._room, False
        due = [
            one for one in self._all() if not one.is_open and (one.due_ns <= now_ns or (room and one.waits == "budget"))
        ]
        for one in sorted(due, key=self._runway_s):
            if not one.over and (one.due_ns <= now_ns or self._has_room(one, now_ns)):
                self._try(one, now_ns)
        waiting = [one.due_ns for one in self._all() if not one.is_open]
        if waiting:
            self._arm(max(0, min(waiting) - now_ns) / 1e9)

    def _runway_s(self, one: Standing) -> float:
        """Return the text that the reader has left (s); who has read nothing yet comes last."""
        stream = self.first_hand.streams.get(one.key)
        running = None if stream is None else stream.stream.running
        return float("inf") if running is None or not running.count else float(running.dry_ns - self.clock.now_ns())

    def _try(self, one: Standing, now_ns: int) -> None:
        """Attempt a migration if nothing stands in its way; else say when it is evaluated again."""
        stream = self.first_hand.streams.get(one.key)
        if stream is None:
            self._drop(one)
            return
        one.due_ns = now_ns + EVALUATION_EVERY_NS
        x_ns = max(now_ns + stream.offset_ns, stream.stream.last_ns)
        facts = Snapshot(stream)
        if stream.suspended or not self._holds(one, facts, x_ns, now_ns):
            return
        if self._rules.mode(one.action) == "shadow":
            self._waits(one, "shadow", {}, now_ns)
            return
        only_if = one.action.only_if
        if only_if is not None and not only_if.truth(facts, x_ns, one.rule.max_fact_age_ns):
            self._waits(one, "only_if", {}, now_ns)
            return
        budget, group = self._budget_of(one), self._group_of(one)
        within = budget.within(one.key[:3], stream.instance, now_ns, group)
        if not all(within.values()):
            one.due_ns = max(one.due_ns, budget.room_ns(stream.instance, now_ns, group))
            self._waits(one, "budget", within, now_ns)
            return
        self._attempt(one, stream, budget, within, now_ns)

    def _has_room(self, one: Standing, now_ns: int) -> bool:
        """Tell whether the budget that a migration waits for has room now."""
        stream = self.first_hand.streams.get(one.key)
        return stream is None or all(
            self._budget_of(one).within(one.key[:3], stream.instance, now_ns, self._group_of(one)).values()
        )

    def _holds(self, one: Standing, facts: Snapshot, x_ns: int, now_ns: int) -> bool:
        """Tell whether `when` holds now, and has not held since the last attempt that was done.

        If it does not, say when it may: at the next flip, if no token comes. `x_ns`: now on the stream's own axis.
        """
        when = one.rule.when
        truth = when.truth(facts, x_ns, one.rule.max_fact_age_ns)
        holds = one.rule.on_missing == "fire" if truth is None else truth
        if not holds and (flip_ns := when.flip_ns(facts, x_ns, x_ns + EVALUATION_EVERY_NS, truth)) is not None:
            one.due_ns = now_ns + flip_ns - x_ns
        if not holds and (truth is not None or one.rule.on_missing != "hold"):
            one.rests = False
        return holds and not one.rests

    def _waits(self, one: Standing, outcome: Outcome, within: dict[str, bool], now_ns: int) -> None:
        """Record why a migration waits, once for each change of the reason."""
        if one.waits != outcome:
            one.waits = outcome
            self.record(
                replace(
                    one.decision,
                    now_ns=now_ns,
                    mode=self._rules.mode(one.action),
                    outcome=outcome,
                    budget=within,
                    attempt=one.attempts + 1,
                )
            )

    # One attempt.

    def _attempt(self, one: Standing, stream: OwnStream, budget: Budget, within: dict[str, bool], now_ns: int) -> None:
        request, instance = one.key[:3], stream.instance
        budget.begin(request, instance, now_ns, self._group_of(one))
        one.is_open = True
        one.attempts += 1
        decision = replace(
            one.decision,
            now_ns=now_ns,
            identity={**one.decision.identity, "instance": instance},
            mode="enforce",
            outcome="unconfirmed",
            budget=within,
            attempt=one.attempts,
        )

        def completed(how: Completion) -> None:
            self._completed(one, budget, request, instance, decision, how)

        self.take(self.order(decision), completed)

    def _completed(
        self,
        one: Standing,
        budget: Budget,
        request: Hashable,
        instance: str,
        decision: Decision,
        how: Completion,
    ) -> None:
        begun = how.outcome not in NOT_BEGUN
        budget.end(request, instance, self._group_of(one), done=how.outcome == "done", begun=begun)
        one.is_open = False
        now_ns = self.clock.now_ns()
        if begun:
            one.waits = ""
            self.record(completed_decision(decision, how))
        else:
            one.attempts -= 1
            if one.waits != how.outcome:
                one.waits = how.outcome
                self.record(completed_decision(decision, how))
        if how.outcome == "done":
            one.rests, one.backoff, one.due_ns = True, Backoff(one.key[1]), now_ns
        else:
            one.due_ns = now_ns + int(one.backoff.next_s() * 1e9)
        self._room = self._room or begun
        self._evaluate_soon()

    def _budget_of(self, one: Standing) -> Budget:
        index = one.decision.action_index
        assert index is not None  # noqa: S101
        name = (one.rule.hash, index)
        if name not in self._budgets:
            self._budgets[name] = Budget(one.action.limits)
        return self._budgets[name]

    def _group_of(self, one: Standing) -> Spends:
        """Return the attempts of a group's rules, as many as the largest limit of its rules counts now."""
        key = (one.rule.group, one.action.verb)
        most = group_limits(self._rules).get(key, 0)
        found = self._groups.get(key)
        if found is None or found.most < most:
            found = self._groups[key] = Spends(most, found)
        return found
