"""The rules that can ever hold for a stream, by its identity: the others have no state on it."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_llm.rules.engine.rule_state import RuleState
from otel_llm.rules.engine.state_machine import Phase
from otel_llm.rules.language.condition import identity_part
from otel_llm.rules.language.snapshot import COUNTING, IDENTITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_llm.rules.files.ruleset import Rule, RuleSet
    from otel_llm.rules.language.compile import Program
    from otel_llm.rules.language.snapshot import StreamView
    from otel_llm.rules.language.tokens import Value

_IDENTITIES: Final = 4096
"""Identities whose rules are cached; bounded, since names come from telemetry."""


class ApplicableRules:
    """The stream rules of a set, chosen by identity."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = [(rule, _identity_part(rule)) for rule in rules.stream_rules]
        self._by_counting = {rule.name for rule in rules.stream_rules if not frozenset(COUNTING).isdisjoint(rule.facts)}
        self._for_identity = lru_cache(maxsize=_IDENTITIES)(self._find)

    @property
    def by_hash(self) -> dict[str, Rule]:
        """Return all rules by hash."""
        return {rule.hash: rule for rule, _ in self._rules}

    def states(self, view: StreamView, known: list[RuleState], since_ns: int | None = None) -> list[RuleState]:
        """Return a state for each rule that can ever hold for a stream; active ones of `known` stay.

        `since_ns`: how far new states look back, on the stream's axis; to the commit if None.
        """
        applicable = self._for_identity(identity_of(view))
        floor_ns = view.stream.commit_ns if since_ns is None else since_ns
        if not known:
            return [self._state(rule, view, floor_ns) for rule in applicable]
        by_name = {state.rule.name: state for state in known}
        found = []
        for rule, _ in self._rules:
            state = by_name.get(rule.name)
            applies = rule in applicable
            if state is not None and (applies or state.phase is not Phase.INACTIVE):
                found.append(state)
            elif applies:
                found.append(self._state(rule, view, floor_ns))
        return found

    def _state(self, rule: Rule, view: StreamView, floor_ns: int) -> RuleState:
        if view.counted_since_ns is not None and rule.name in self._by_counting:
            floor_ns = max(floor_ns, view.counted_since_ns)
        return RuleState(rule, floor_ns)

    def _find(self, identity: tuple[Value | None, ...]) -> list[Rule]:
        named = dict(zip(IDENTITY, identity, strict=True))
        return [rule for rule, part in self._rules if part is None or holds(part.run, [named[it] for it in part.facts])]


def holds(run: Callable[..., Value], values: Sequence[Value | None]) -> bool:
    """Return whether a term of identity holds with these values of its facts: not if one is missing."""
    return None not in values and bool(run(*values))


def identity_of(view: StreamView) -> tuple[Value | None, ...]:
    """Return a stream's identity, in the order of `IDENTITY`; None for what is missing."""
    return (
        *(view.slo_class, view.model, view.instance, view.measured_at, view.exact_resume),
        *(view.token_basis, view.token_ratio_learned),
    )


def _identity_part(rule: Rule) -> Program | None:
    # A rule that fires on missing facts fires for streams of any identity.
    return None if rule.on_missing == "fire" else identity_part(rule.when)
