"""Rules as the engine uses them: checked and compiled, with every default filled in."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from otel_llm.rules.language.condition import Condition
    from otel_llm.rules.language.facts import Scope

OnMissing = Literal["hold", "false", "fire"]
Mode = Literal["shadow", "enforce"]
Destination = Literal["safest", "pack", "spread", "least_load"]
"""How a migration chooses where a stream goes."""
DEFAULT_DESTINATION: Final[Destination] = "safest"
Verb = Literal["alert", "migrate", "preempt", "abort", "drain", "scale", "webhook"]
DEFAULT_MAX_FACT_AGE_NS: Final = 1_500_000_000
DEFAULT_TTL_NS: Final = 1_000_000_000
"""The default time to live of actions other than alerts: later the stall that they answer is over."""


@dataclass(frozen=True, slots=True)
class Limits:
    """An action's budget; None if a limit is not set. `per_instance`, `per_group`: (count, window in ns)."""

    per_request: int | None = None
    per_instance: tuple[int, int] | None = None
    in_flight: int | None = None
    per_group: tuple[int, int] | None = None
    """The limit for all actions of the same verb in the rules of the group."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a rule; `arguments` are the verb's own, `ttl_ns` None for an alert that does not expire."""

    verb: Verb
    arguments: tuple[tuple[str, str | int | tuple[str, ...]], ...]
    mode: Mode
    ttl_ns: int | None
    limits: Limits
    only_if: Condition | None = None

    def canonical(self) -> dict[str, Any]:
        """Return the action as plain data, defaults included."""
        limits = self.limits
        return {
            self.verb: {
                **{name: list(value) if isinstance(value, tuple) else value for name, value in self.arguments},
                "only_if": None if self.only_if is None else self.only_if.canonical,
            },
            "mode": self.mode,
            "ttl_ns": self.ttl_ns,
            "budget": {
                "per_request": limits.per_request,
                "per_instance": None if limits.per_instance is None else list(limits.per_instance),
                "in_flight": limits.in_flight,
                # Only if it is set, so that the hashes of rules older than this limit stay the same.
                **({} if limits.per_group is None else {"per_group": list(limits.per_group)}),
            },
        }


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, with the name of its group; `resolve_when` None means: not `when`."""

    name: str
    group: str
    scope: Scope
    when: Condition
    resolve_when: Condition | None
    for_ns: int
    keep_firing_for_ns: int
    on_missing: OnMissing
    max_fact_age_ns: int
    actions: tuple[Action, ...]
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        object.__setattr__(self, "hash", hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def facts(self) -> tuple[str, ...]:
        """Return the facts on which it depends whether the rule fires."""
        return self.when.facts if self.resolve_when is None else (*self.when.facts, *self.resolve_when.facts)

    def canonical(self) -> dict[str, Any]:
        """Return the meaning of the rule as plain data: the same for every order of keys, layout and spelling.

        The group's name is not part of it; its scope is.
        """
        return {
            "rule": self.name,
            "scope": self.scope,
            "when": self.when.canonical,
            "resolve_when": None if self.resolve_when is None else self.resolve_when.canonical,
            "for_ns": self.for_ns,
            "keep_firing_for_ns": self.keep_firing_for_ns,
            "on_missing": self.on_missing,
            "max_fact_age_ns": self.max_fact_age_ns,
            "actions": [action.canonical() for action in self.actions],
        }


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The loaded rules, in order of files and lines; `shadow`: none of their actions is done."""

    rules: tuple[Rule, ...]
    shadow: bool = False

    @property
    def stream_rules(self) -> tuple[Rule, ...]:
        """Return the rules that are evaluated for each stream."""
        return tuple(rule for rule in self.rules if rule.scope == "stream")

    @property
    def group_rules(self) -> tuple[Rule, ...]:
        """Return the rules that are evaluated for each instance or class."""
        return tuple(rule for rule in self.rules if rule.scope != "stream")

    def in_shadow(self) -> RuleSet:
        """Return the same rules with every action in shadow, alerts too; their hashes stay."""
        return replace(self, shadow=True)

    def mode(self, action: Action) -> Mode:
        """Return the mode in which an action of this set runs."""
        return "shadow" if self.shadow else action.mode
