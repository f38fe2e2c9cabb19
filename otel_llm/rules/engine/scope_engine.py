"""The rules of scopes instance and class: the same states as a stream's, looked at in whole seconds.

A function of facts and instants; no clock is read. These facts are sums over streams: there is no line to calculate a
crossing from, so a rule's state changes where it is looked at, and nowhere between. A duration of a rule is over at
the first whole second that is not before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.rules.engine.decision_maker import About, deciding
from otel_llm.rules.engine.state_machine import Event, Output, State, step
from otel_llm.rules.language.condition import identity_part

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from otel_llm.rules.decisions.decision_records import Decided, Decision, Labels
    from otel_llm.rules.engine.decision_maker import Acting
    from otel_llm.rules.engine.scope_facts import ScopeFacts
    from otel_llm.rules.files.ruleset import Rule, RuleSet
    from otel_llm.rules.language.compile import Program
    from otel_llm.rules.language.condition import Condition
    from otel_llm.rules.language.facts import Scope
    from otel_llm.rules.language.tokens import Value


@dataclass(slots=True)
class _Cell:
    """One rule on one instance or class; `holds`, `since_ns`: what `when` came to last, and since when it has."""

    rule: Rule
    state: State = State.INACTIVE
    holds: bool | None = None
    since_ns: int = 0


class ScopeEngine:
    """Follow the rules of scopes instance and class.

    `acting` is the stream engine's too: it keeps the budgets of all rules. `decided`: decisions that stand in the
    decision file: what fires there fires here, since these facts are not read again from the journal.
    """

    def __init__(self, rules: RuleSet, acting: Acting, decided: Collection[Decided] = ()) -> None:
        self.rules = rules
        self._acting = acting
        self._rules: dict[Scope, list[tuple[Rule, Program | None]]] = {"instance": [], "class": []}
        for rule in rules.rules:
            if rule.scope in self._rules:
                # One that fires on missing facts fires for any identity.
                part = None if rule.on_missing == "fire" else identity_part(rule.when)
                self._rules[rule.scope].append((rule, part))
        self._rules_of = {scope: tuple(rule for rule, _ in pairs) for scope, pairs in self._rules.items()}
        self._cells: dict[tuple[Scope, Labels], list[_Cell]] = {}
        self._fired = _firing(rules, decided)

    @property
    def left_firing(self) -> list[tuple[Scope, Labels]]:
        """Return of what rules fire by the decision file, of which nothing was seen since."""
        return list(self._fired)

    def of(self, scope: Scope) -> Sequence[Rule]:
        """Return the rules of a scope."""
        return self._rules_of[scope]

    def pending(self, rule: str) -> list[tuple[Labels, int]]:
        """Return of what a rule waits for its `for`, by labels, and since when its condition has held."""
        return [
            (labels, cell.since_ns)
            for (_, labels), cells in self._cells.items()
            for cell in cells
            if cell.rule.name == rule and cell.state is State.PENDING
        ]

    def look(self, facts: ScopeFacts) -> list[Decision]:
        """Look at every rule of the scope at the facts' instant."""
        decisions: list[Decision] = []
        for cell in self.follow(facts):
            decisions += self._take(cell, _find(cell, facts), facts)
        return decisions

    def over(self, facts: ScopeFacts) -> list[Decision]:
        """Follow an instance or class no longer; what fires is over."""
        decisions: list[Decision] = []
        for cell in self._cells.pop((facts.scope, facts.labels), ()):
            decisions += self._take(cell, Event.ENDED, facts)
        self._acting.forget(facts.labels)
        return decisions

    def next_due_ns(self, scope: Scope, labels: Labels, now_ns: int) -> int | None:
        """Return the next instant after now at which a state may change though no fact does; None if none will."""
        dues = []
        for cell in self._cells.get((scope, labels), ()):
            rule = cell.rule
            if cell.state is State.PENDING and cell.holds:
                dues.append(cell.since_ns + rule.for_ns)
            elif cell.state is State.FIRING and not cell.holds:
                dues.append(cell.since_ns + rule.keep_firing_for_ns)
        return min((due for due in dues if due > now_ns), default=None)

    def succeed(self, former: ScopeEngine, subjects: Iterable[ScopeFacts]) -> list[Decision]:
        """Take over from another engine what it knows of rules that mean the same; return how the others' firings end.

        `subjects`: all that is followed. The budgets are the stream engine's to take over.
        """
        decisions: list[Decision] = []
        own = {rule.hash: rule for rules in self._rules.values() for rule, _ in rules}
        for facts in subjects:
            known = []
            for cell in former._cells.get((facts.scope, facts.labels), ()):
                if cell.rule.hash in own:
                    known.append(_Cell(own[cell.rule.hash], cell.state, cell.holds, cell.since_ns))
                else:
                    decisions += former._take(cell, Event.ENDED, facts)
            self._cells[facts.scope, facts.labels] = self._new_cells(facts.scope, facts.labels, known)
        self._fired = former._fired
        return decisions

    def follow(self, facts: ScopeFacts) -> list[_Cell]:
        """Return what is known of the rules of an instance or class; what fires by the decision file fires here."""
        subject = facts.scope, facts.labels
        cells = self._cells.get(subject)
        if cells is None:
            cells = self._cells[subject] = self._new_cells(*subject, ())
            fired = self._fired.pop(subject, {})
            for cell in cells:
                if cell.rule.hash in fired:
                    cell.state = State.FIRING
                    self._fire(cell.rule, fired[cell.rule.hash], facts)
        return cells

    def _new_cells(self, scope: Scope, labels: Labels, known: Collection[_Cell]) -> list[_Cell]:
        """Return a cell for each rule that can ever hold for these labels; one that is known stays."""
        cells = {cell.rule.name: cell for cell in known}
        identity = dict(labels)
        return [
            cells.get(rule.name) or _Cell(rule)
            for rule, part in self._rules[scope]
            if rule.name in cells or part is None or part.run(*(identity[name] for name in part.facts))
        ]

    def _take(self, cell: _Cell, event: Event, facts: ScopeFacts) -> list[Decision]:
        """Make the transition; return the decisions that go with it."""
        cell.state, output = step(cell.state, event)
        if output is None:
            return []
        rule = cell.rule
        if output is Output.FIRE:
            return self._fire(rule, facts.now_ns, facts)
        names = deciding(rule, output).facts
        return self._acting.end(rule, output, facts.now_ns, _about(facts), _read(names, facts, rule))

    def _fire(self, rule: Rule, flip_ns: int, facts: ScopeFacts) -> list[Decision]:
        return self._acting.act(
            rule,
            flip_ns,
            _about(facts),
            read=lambda names: _read(names, facts, rule),
            holds=lambda only_if: _truth(only_if, facts, rule),
        )


def _about(facts: ScopeFacts) -> About:
    age_ns = max(0, facts.now_ns - facts.heard_ns)
    return About(None, dict(facts.labels), facts.labels, facts.now_ns, 0, age_ns)


def _find(cell: _Cell, facts: ScopeFacts) -> Event:
    """Look at a rule's condition; return what was found, having noted since when it has been so."""
    rule, now_ns = cell.rule, facts.now_ns
    truth = _truth(rule.when, facts, rule)
    if truth is None and rule.on_missing == "hold":
        return Event.MISSING
    holds = rule.on_missing == "fire" if truth is None else truth
    if holds is not cell.holds:
        cell.holds, cell.since_ns = holds, now_ns
    if holds:
        return Event.DUE if now_ns >= cell.since_ns + rule.for_ns else Event.HOLDS
    if cell.state is not State.FIRING or now_ns < cell.since_ns + rule.keep_firing_for_ns:
        return Event.CLEAR
    if rule.resolve_when is not None and not _truth(rule.resolve_when, facts, rule):
        return Event.CLEAR
    return Event.RESOLVED


def _truth(condition: Condition, facts: ScopeFacts, rule: Rule) -> bool | None:
    return condition.of_values([facts.value(name, rule.max_fact_age_ns) for name in condition.facts])


def _read(names: Iterable[str], facts: ScopeFacts, rule: Rule) -> dict[str, Value | None]:
    return {name: facts.value(name, rule.max_fact_age_ns) for name in names}


def _firing(rules: RuleSet, decided: Collection[Decided]) -> dict[tuple[Scope, Labels], dict[str, int]]:
    """Return of which instance or class rules fire, by what was decided last: their hashes, and since when."""
    scopes = {rule.hash: rule.scope for rule in rules.rules if rule.scope != "stream"}
    last: dict[tuple[str, Labels], tuple[int, str]] = {}
    for rule_hash, subject, flip_unix_nano, state in decided:
        if rule_hash in scopes:  # then it is about labels
            key: tuple[str, Labels] = (rule_hash, subject)  # type: ignore[assignment]
            last[key] = max(last.get(key, (0, "")), (flip_unix_nano, state))
    found: dict[tuple[Scope, Labels], dict[str, int]] = {}
    for (rule_hash, labels), (flip_unix_nano, state) in last.items():
        if state == "firing":
            found.setdefault((scopes[rule_hash], labels), {})[rule_hash] = flip_unix_nano
    return found
