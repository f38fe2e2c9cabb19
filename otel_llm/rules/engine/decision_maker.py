"""Decisions of transitions: an outcome for each action of a rule that fires, one record for the end of its firing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.rules.decisions.decision_records import Decided, Decision, Outcome
from otel_llm.rules.engine.budget import Budget, Spends
from otel_llm.rules.engine.history import snapshot_at
from otel_llm.rules.engine.state_machine import Output
from otel_llm.rules.language.condition import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.rules.files.ruleset import Action, Rule, RuleSet, Verb
    from otel_llm.rules.language.condition import Condition
    from otel_llm.rules.language.snapshot import Snapshot
    from otel_llm.rules.language.tokens import Value

_ENDS: Final[Mapping[Output, Outcome]] = {
    Output.RESOLVE: "resolved",
    Output.REFUTE: "refuted",
    Output.END: "ended",
}


@dataclass(frozen=True, slots=True)
class About:
    """The subject and the time of a decision.

    `stream` is None for the scopes instance and class, which `identity` tells apart; `request`: the key of a limit
    `per_request`; `now_ns`: the collector's now; `offset_ns`: what to add for the subject's own.
    """

    stream: StreamKey | None
    identity: Mapping[str, str]
    request: Hashable
    now_ns: int
    offset_ns: int
    fact_age_ns: int


@dataclass(frozen=True, slots=True)
class Moment:
    """One evaluation of a stream: its facts, its now, and the collector's now."""

    facts: Snapshot
    x_ns: int
    now_ns: int

    @property
    def about(self) -> About:
        """Return the subject and the time of a decision."""
        view = self.facts.view
        return About(
            stream=view.key,
            identity={
                "slo_class": view.slo_class,
                "model": view.model,
                "instance": view.instance,
                "measured_at": view.measured_at,
                **({} if view.key[2] == DEFAULT_TENANT else {"tenant": view.key[2]}),
            },
            request=view.key[:3],
            now_ns=self.now_ns,
            offset_ns=view.offset_ns,
            fact_age_ns=self.facts.age_ns(self.x_ns),
        )


def deciding(rule: Rule, output: Output) -> Condition:
    """Return the condition whose facts are recorded with the end of a firing."""
    return rule.resolve_when if output is Output.RESOLVE and rule.resolve_when is not None else rule.when


class DecisionMaker:
    """The maker of decisions and keeper of budgets; it does no action.

    `decided`: decisions of the decision file; each spends its budgets again and is passed to `again`, which restores
    the firing, instead of being returned.
    """

    def __init__(
        self, rules: RuleSet, decided: Collection[Decided], again: Callable[[Decision], object] | None = None
    ) -> None:
        self._set = rules
        self._again = again
        self._decided = frozenset(decided)
        self._budgets = {rule.name: tuple(Budget(action.limits) for action in rule.actions) for rule in rules.rules}
        self._groups = {key: Spends(most) for key, most in group_limits(rules).items()}

    def fire(self, state: RuleState, at: Moment) -> list[Decision]:
        """Decide the actions of a rule that began to fire, with the facts at its flip."""
        flip_ns = state.flip_ns
        flip = snapshot_at(at.facts, flip_ns)
        max_age_ns = state.rule.max_fact_age_ns if state.missing else None
        return self.act(
            state.rule,
            flip_ns,
            at.about,
            read=lambda names: read_facts(names, flip, flip_ns, max_age_ns),
            holds=lambda only_if: only_if.truth(flip, flip_ns, max_age_ns),
        )

    def close(self, state: RuleState, output: Output, since_ns: int, at: Moment) -> list[Decision]:
        """Record the end of a firing, with the facts at its first instant."""
        names = deciding(state.rule, output).facts
        facts = read_facts(names, snapshot_at(at.facts, since_ns), since_ns, None)
        return self.end(state.rule, output, since_ns, at.about, facts)

    def act(
        self,
        rule: Rule,
        flip_ns: int,
        about: About,
        *,
        read: Callable[[Iterable[str]], dict[str, Value | None]],
        holds: Callable[[Condition], bool | None],
    ) -> list[Decision]:
        """Decide the actions of a rule that fires; `read`, `holds`: the facts at the flip."""
        decisions = []
        budgets = self._budgets[rule.name]
        for action_index, (action, budget) in enumerate(zip(rule.actions, budgets, strict=True)):
            names = rule.when.facts if action.only_if is None else (*rule.when.facts, *action.only_if.facts)
            facts = read(names)
            within: dict[str, bool] = {}
            outcome: Outcome = "only_if"
            if action.only_if is None or holds(action.only_if):
                instance, group = about.identity.get("instance", ""), self._groups.get((rule.group, action.verb))
                within = budget.take(about.request, instance, about.now_ns, action.ttl_ns, group)
                outcome = self._outcome(action) if all(within.values()) else "budget"
            decisions.append(self._decision(rule, about, flip_ns, action_index, outcome, facts, within))
        return self._new(decisions)

    def end(
        self, rule: Rule, output: Output, since_ns: int, about: About, facts: dict[str, Value | None]
    ) -> list[Decision]:
        """Record the end of a firing, with the facts at its first instant."""
        return self._new([self._decision(rule, about, since_ns, None, _ENDS[output], facts, {})])

    def succeed(self, former: DecisionMaker) -> None:
        """Take over the budgets of rules of the same hash, and the earlier decisions."""
        hashes = {rule.hash for rule in former._set.rules}
        for rule in self._set.rules:
            if rule.hash in hashes:
                self._budgets[rule.name] = former._budgets[rule.name]  # the hash covers the name
        for key, most in group_limits(self._set).items():
            self._groups[key] = Spends(most, former._groups.get(key))
        self._decided |= former._decided
        self._again = self._again or former._again

    def forget(self, request: Hashable) -> None:
        """Drop the counts of a request without streams."""
        for budgets in self._budgets.values():
            for budget in budgets:
                budget.forget(request)

    def _outcome(self, action: Action) -> Outcome:
        if self._set.mode(action) == "shadow":
            return "shadow"
        # Without a configured channel the record and the console are an alert's receivers: writing it is doing it.
        return "done" if action.verb == "alert" else "unconfirmed"

    def _new(self, decisions: list[Decision]) -> list[Decision]:
        if not self._decided:
            return decisions
        new = []
        for decision in decisions:
            if decision.key not in self._decided:
                new.append(decision)
            elif self._again is not None:
                self._again(decision)
        return new

    def _decision(
        self,
        rule: Rule,
        about: About,
        flip_ns: int,
        action_index: int | None,
        outcome: Outcome,
        facts: dict[str, Value | None],
        within: dict[str, bool],
    ) -> Decision:
        action = None if action_index is None else rule.actions[action_index]
        return Decision(
            now_ns=about.now_ns,
            flip_ns=flip_ns,
            offset_ns=about.offset_ns,
            group=rule.group,
            rule=rule.name,
            rule_hash=rule.hash,
            scope=rule.scope,
            stream=about.stream,
            identity=about.identity,
            state="resolved" if action is None else "firing",
            action=None if action is None else action.verb,
            mode=None if action is None else self._set.mode(action),
            outcome=outcome,
            facts=facts,
            fact_age_ns=about.fact_age_ns,
            budget=within,
            arguments={} if action is None else dict(action.arguments),
            ttl_ns=None if action is None else action.ttl_ns,
            action_index=action_index,
        )


def group_limits(rules: RuleSet) -> dict[tuple[str, Verb], int]:
    """Return the largest count to which an action of a verb is limited in a group, if it is."""
    most: dict[tuple[str, Verb], int] = {}
    for rule in rules.rules:
        for action in rule.actions:
            if action.limits.per_group is not None:
                key = (rule.group, action.verb)
                most[key] = max(most.get(key, 0), action.limits.per_group[0])
    return most
