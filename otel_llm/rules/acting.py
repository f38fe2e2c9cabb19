"""What a transition decides: an outcome for each action of a rule that fires, one record for the end of its firing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.rules.budget import Budget, RequestKey
from otel_llm.rules.condition import read_facts
from otel_llm.rules.decisions import Decided, Decision, Outcome
from otel_llm.rules.history import snapshot_at
from otel_llm.rules.machine import Output

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from otel_llm.rules.cell import Cell
    from otel_llm.rules.ruleset import Action, RuleSet
    from otel_llm.rules.snapshot import Snapshot
    from otel_llm.rules.tokens import Value

_ENDS: Final[Mapping[Output, Outcome]] = {
    Output.RESOLVE: "resolved",
    Output.REFUTE: "refuted",
    Output.END: "ended",
}


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at a stream: its facts, its now, and the collector's now."""

    facts: Snapshot
    x_ns: int
    now_ns: int


class Acting:
    """Decide, and keep the budgets; nothing is done here.

    `decided`: what stands in the decision file already; it spends its budgets again and is not returned.
    """

    def __init__(self, rules: RuleSet, decided: Collection[Decided]) -> None:
        self._set = rules
        self._decided = frozenset(decided)
        self._budgets = {
            rule.name: tuple(Budget(action.limits) for action in rule.actions) for rule in rules.stream_rules
        }

    def fire(self, cell: Cell, at: Moment) -> list[Decision]:
        """Decide the actions of a rule that began to fire, by the facts at its flip."""
        rule, flip_ns, view = cell.rule, cell.flip_ns, at.facts.view
        flip = snapshot_at(at.facts, flip_ns)
        max_age_ns = rule.max_fact_age_ns if cell.missing else None
        decisions = []
        for action, budget in zip(rule.actions, self._budgets[rule.name], strict=True):
            names = rule.when.facts if action.only_if is None else (*rule.when.facts, *action.only_if.facts)
            facts = read_facts(names, flip, flip_ns, max_age_ns)
            within: dict[str, bool] = {}
            outcome: Outcome = "only_if"
            if action.only_if is None or action.only_if.truth(flip, flip_ns, max_age_ns):
                within = budget.take(view.key[:2], view.instance, at.now_ns, action.ttl_ns)
                outcome = self._outcome(action) if all(within.values()) else "budget"
            decisions.append(self._decision(cell, at, flip_ns, action, outcome, facts, within))
        return self._new(decisions)

    def close(self, cell: Cell, output: Output, since_ns: int, at: Moment) -> list[Decision]:
        """Record the end of a firing, with the facts at its first instant."""
        rule = cell.rule
        by_own = output is Output.RESOLVE and rule.resolve_when is not None
        condition = rule.resolve_when if by_own and rule.resolve_when is not None else rule.when
        facts = read_facts(condition.facts, snapshot_at(at.facts, since_ns), since_ns, None)
        return self._new([self._decision(cell, at, since_ns, None, _ENDS[output], facts, {})])

    def succeed(self, former: Acting) -> None:
        """Take over the budgets of rules that mean the same, and what was decided before."""
        hashes = {rule.hash for rule in former._set.stream_rules}
        for rule in self._set.stream_rules:
            if rule.hash in hashes:
                self._budgets[rule.name] = former._budgets[rule.name]  # the name is part of what is hashed
        self._decided |= former._decided

    def forget(self, request: RequestKey) -> None:
        """Drop what was counted for a request of which no stream is left."""
        for budgets in self._budgets.values():
            for budget in budgets:
                budget.forget(request)

    def _outcome(self, action: Action) -> Outcome:
        if self._set.mode(action) == "shadow":
            return "shadow"
        # An alert's receiver is the record and the console until another is configured: writing it is doing it.
        return "done" if action.verb == "alert" else "unconfirmed"

    def _new(self, decisions: list[Decision]) -> list[Decision]:
        return [decision for decision in decisions if decision.key not in self._decided]

    def _decision(
        self,
        cell: Cell,
        at: Moment,
        flip_ns: int,
        action: Action | None,
        outcome: Outcome,
        facts: dict[str, Value | None],
        within: dict[str, bool],
    ) -> Decision:
        rule, view = cell.rule, at.facts.view
        return Decision(
            now_ns=at.now_ns,
            flip_ns=flip_ns,
            offset_ns=view.offset_ns,
            group=rule.group,
            rule=rule.name,
            rule_hash=rule.hash,
            scope=rule.scope,
            stream=view.key,
            identity={
                "slo_class": view.slo_class,
                "model": view.model,
                "instance": view.instance,
                "measured_at": view.measured_at,
            },
            state="resolved" if action is None else "firing",
            action=None if action is None else action.verb,
            mode=None if action is None else self._set.mode(action),
            outcome=outcome,
            facts=facts,
            fact_age_ns=at.x_ns - at.facts.watermark_ns,
            budget=within,
            arguments={} if action is None else dict(action.arguments),
        )
