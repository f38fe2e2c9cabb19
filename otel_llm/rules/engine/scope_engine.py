"""The rules of scopes instance and class: the same states as a stream's, evaluated in whole seconds.

A function of facts and instants; it reads no clock. These facts are sums over streams, without a line whose crossing
could be computed, so a rule's state changes at evaluations only. A duration of a rule ends at the first whole second
that is not before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.rules.engine.decision_maker import About, deciding
from otel_llm.rules.engine.state_machine import Event, Output, Phase, step
from otel_llm.rules.language.condition import identity_part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from otel_llm.rules.decisions.decision_records import Decided, Decision, Labels
    from otel_llm.rules.engine.decision_maker import DecisionMaker
    from otel_llm.rules.engine.scope_facts import ScopeFacts
    from otel_llm.rules.files.ruleset import Rule, RuleSet
    from otel_llm.rules.language.compile import Program
    from otel_llm.rules.language.condition import Condition
    from otel_llm.rules.language.facts import Scope
    from otel_llm.rules.language.tokens import Value


@dataclass(slots=True)
class _ScopeRuleState:
    """One rule on one instance or class; `holds`, `since_ns`: the last value of `when`, and since when it has it."""

    rule: Rule
    phase: Phase = Phase.INACTIVE
    holds: bool | None = None
    since_ns: int = 0


class ScopeEngine:
    """The evaluation of the rules of scopes instance and class.

    `decision_maker` is the stream engine's too: it keeps the budgets of all rules. `decided`: decisions of the decision
    file: rules that fire there fire here, since these facts are not read again from the journal.
    """

    def __init__(self, rules: RuleSet, decision_maker: DecisionMaker, decided: Collection[Decided] = ()) -> None:
        self.rules = rules
        self.decision_maker = decision_maker
        self._rules: dict[Scope, list[tuple[Rule, Program | None]]] = {"instance": [], "class": []}
        for rule in rules.rules:
            if rule.scope in self._rules:
                # One that fires on missing facts fires for any identity.
                part = None if rule.on_missing == "fire" else identity_part(rule.when)
                self._rules[rule.scope].append((rule, part))
        self._rules_of = {scope: tuple(rule for rule, _ in pairs) for scope, pairs in self._rules.items()}
        self._states: dict[tuple[Scope, Labels], list[_ScopeRuleState]] = {}
        self._fired = _firing(rules, decided)

    @property
    def left_firing(self) -> list[tuple[Scope, Labels]]:
        """Return the subjects on which rules fire by the decision file, and that were not seen since."""
        return list(self._fired)

    def of(self, scope: Scope) -> Sequence[Rule]:
        """Return the rules of a scope."""
        return self._rules_of[scope]

    def pending(self, rule: str) -> list[tuple[Labels, int]]:
        """Return the labels on which a rule waits for its `for`, and since when its condition has held."""
        return [
            (labels, state.since_ns)
            for (_, labels), states in self._states.items()
            for state in states
            if state.rule.name == rule and state.phase is Phase.PENDING
        ]

    def phases(self, scope: Scope, labels: Labels) -> dict[str, Phase]:
        """Return the state of each rule that is followed for an instance or class, by the rule's name."""
        return {state.rule.name: state.phase for state in self._states.get((scope, labels), ())}

    def firing(self) -> list[tuple[str, Labels]]:
        """Return the rules that fire now, by name, and the labels of their instance or class."""
        return [
            (state.rule.name, labels)
            for (_, labels), states in self._states.items()
            for state in states
            if state.phase is Phase.FIRING
        ]

    def evaluate(self, facts: ScopeFacts) -> list[Decision]:
        """Evaluate every rule of the scope at the facts' instant."""
        decisions: list[Decision] = []
        for state in self.follow(facts):
            decisions += self._transition(state, _find(state, facts), facts)
        return decisions

    def end_firings(self, facts: ScopeFacts) -> list[Decision]:
        """Stop following an instance or class; its firings end."""
        decisions: list[Decision] = []
        for state in self._states.pop((facts.scope, facts.labels), ()):
            decisions += self._transition(state, Event.ENDED, facts)
        self.decision_maker.forget(facts.labels)
        return decisions

    def next_due_ns(self, scope: Scope, labels: Labels, now_ns: int) -> int | None:
        """Return the next instant after now at which a state may change though no fact does; None if none will."""
        dues = []
        for state in self._states.get((scope, labels), ()):
            rule = state.rule
            if state.phase is Phase.PENDING and state.holds:
                dues.append(state.since_ns + rule.for_ns)
            elif state.phase is Phase.FIRING and not state.holds:
                dues.append(state.since_ns + rule.keep_firing_for_ns)
        return min((due for due in dues if due > now_ns), default=None)

    def succeed(self, former: ScopeEngine, subjects: Iterable[ScopeFacts]) -> list[Decision]:
        """Take over another engine's states of rules of the same hash; return the ends of the other rules' firings.

        `subjects`: all followed ones. The budgets are the stream engine's to take over.
        """
        decisions: list[Decision] = []
        own = {rule.hash: rule for rules in self._rules.values() for rule, _ in rules}
        for facts in subjects:
            known = []
            for state in former._states.get((facts.scope, facts.labels), ()):
                if state.rule.hash in own:
                    known.append(_ScopeRuleState(own[state.rule.hash], state.phase, state.holds, state.since_ns))
                else:
                    decisions += former._transition(state, Event.ENDED, facts)
            self._states[facts.scope, facts.labels] = self._new_states(facts.scope, facts.labels, known)
        self._fired = former._fired
        return decisions

    def follow(self, facts: ScopeFacts) -> list[_ScopeRuleState]:
        """Return the states of an instance's or class's rules; rules that fire by the decision file fire here."""
        subject = facts.scope, facts.labels
        states = self._states.get(subject)
        if states is None:
            states = self._states[subject] = self._new_states(*subject, ())
            fired = self._fired.pop(subject, {})
            for state in states:
                if state.rule.hash in fired:
                    state.phase = Phase.FIRING
                    self._fire(state.rule, fired[state.rule.hash], facts)
        return states

    def _new_states(self, scope: Scope, labels: Labels, known: Collection[_ScopeRuleState]) -> list[_ScopeRuleState]:
        """Return the state of each rule that can ever hold for these labels; known states stay."""
        states = {state.rule.name: state for state in known}
        identity = dict(labels)
        return [
            states.get(rule.name) or _ScopeRuleState(rule)
            for rule, part in self._rules[scope]
            if rule.name in states or part is None or part.run(*(identity[name] for name in part.facts))
        ]

    def _transition(self, state: _ScopeRuleState, event: Event, facts: ScopeFacts) -> list[Decision]:
        """Make the transition; return its decisions."""
        state.phase, output = step(state.phase, event)
        if output is None:
            return []
        rule = state.rule
        if output is Output.FIRE:
            return self._fire(rule, facts.now_ns, facts)
        names = deciding(rule, output).facts
        return self.decision_maker.end(rule, output, facts.now_ns, _about(facts), _read(names, facts, rule))

    def _fire(self, rule: Rule, flip_ns: int, facts: ScopeFacts) -> list[Decision]:
        return self.decision_maker.act(
            rule,
            flip_ns,
            _about(facts),
            read=lambda names: _read(names, facts, rule),
            holds=lambda only_if: _truth(only_if, facts, rule),
        )


def _about(facts: ScopeFacts) -> About:
    age_ns = max(0, facts.now_ns - facts.heard_ns)
    return About(None, dict(facts.labels), facts.labels, facts.now_ns, 0, age_ns)


def _find(state: _ScopeRuleState, facts: ScopeFacts) -> Event:
    """Evaluate a rule's condition; return the event, having noted since when the value holds."""
    rule, now_ns = state.rule, facts.now_ns
    truth = _truth(rule.when, facts, rule)
    if truth is None and rule.on_missing == "hold":
        return Event.MISSING
    holds = rule.on_missing == "fire" if truth is None else truth
    if holds is not state.holds:
        state.holds, state.since_ns = holds, now_ns
    if holds:
        return Event.DUE if now_ns >= state.since_ns + rule.for_ns else Event.HOLDS
    if state.phase is not Phase.FIRING or now_ns < state.since_ns + rule.keep_firing_for_ns:
        return Event.CLEAR
    if rule.resolve_when is not None and not _truth(rule.resolve_when, facts, rule):
        return Event.CLEAR
    return Event.RESOLVED


def _truth(condition: Condition, facts: ScopeFacts, rule: Rule) -> bool | None:
    return condition.of_values([facts.value(name, rule.max_fact_age_ns) for name in condition.facts])


def _read(names: Iterable[str], facts: ScopeFacts, rule: Rule) -> dict[str, Value | None]:
    return {name: facts.value(name, rule.max_fact_age_ns) for name in names}


def _firing(rules: RuleSet, decided: Collection[Decided]) -> dict[tuple[Scope, Labels], dict[str, int]]:
    """Return, by subject, the hashes of rules whose last decision is that they fire, and since when."""
    scopes = {rule.hash: rule.scope for rule in rules.rules if rule.scope != "stream"}
    last: dict[tuple[str, Labels], tuple[int, str]] = {}
    for rule_hash, subject, flip_unix_nano, state, _, _ in decided:
        if rule_hash in scopes:  # then it is about labels
            key: tuple[str, Labels] = (rule_hash, subject)  # type: ignore[assignment]
            last[key] = max(last.get(key, (0, "")), (flip_unix_nano, state))
    found: dict[tuple[Scope, Labels], dict[str, int]] = {}
    for (rule_hash, labels), (flip_unix_nano, state) in last.items():
        if state == "firing":
            found.setdefault((scopes[rule_hash], labels), {})[rule_hash] = flip_unix_nano
    return found
