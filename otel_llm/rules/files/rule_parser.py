"""Read the rules of a rule file: structure, conditions, and combinations. All errors are collected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import ValidationError

from otel_llm.config.strict_model import StrictModel, config_errors
from otel_llm.rules.files.expression_errors import expression_error
from otel_llm.rules.files.ruleset import DEFAULT_TTL_NS, Action, Mode, Rule, Verb
from otel_llm.rules.files.schema import ActionShape, FileShape, GroupShape, RuleShape, VerbShape
from otel_llm.rules.language.condition import Condition, condition
from otel_llm.rules.language.facts import in_scope
from otel_llm.rules.language.tokens import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_llm.config.yaml_file import ConfigError, KeyPath, YamlFile
    from otel_llm.rules.language.facts import Scope

_Model = TypeVar("_Model", bound=StrictModel)
_SCOPES_OF: Final[dict[str, tuple[Scope, ...]]] = {
    "migrate": ("stream",),
    "abort": ("stream",),
    "preempt": ("stream", "instance"),
    "drain": ("stream", "instance"),
}
"""Verbs that need a target: a stream, or an instance."""
RELAY_ONLY: Final[frozenset[Verb]] = frozenset(("migrate", "preempt"))
"""Verbs that only a relay does; a test compares them with those of the other kinds of engine."""


class RuleParser:
    """The parser of one file's rules; `errors` holds all of its errors, in the file's order when sorted."""

    def __init__(self, file: YamlFile, executors: Collection[str] = ()) -> None:
        self.file = file
        self.errors: list[ConfigError] = []
        self.names: list[tuple[str, KeyPath]] = []
        """Every rule's name, and its position."""
        self.key_paths: list[KeyPath] = []
        """The paths of the valid rules."""
        self._executors = executors

    def rules(self) -> list[Rule]:
        """Return the valid rules."""
        model = self._model(FileShape, self.file.data, ())
        groups = [] if model is None else model.groups
        return [rule for index, group in enumerate(groups) for rule in self._group(group, ("groups", index))]

    def _group(self, data: Any, path: KeyPath) -> list[Rule]:
        group = self._model(GroupShape, data, path)
        if group is None:
            return []
        found = [self._rule(rule, group, (*path, "rules", index)) for index, rule in enumerate(group.rules)]
        return [rule for rule in found if rule is not None]

    def _rule(self, data: Any, group: GroupShape, path: KeyPath) -> Rule | None:
        rule = self._model(RuleShape, data, path)
        if rule is None:
            for key in ("when", "resolve_when") if isinstance(data, dict) else ():
                self._condition(data[key] if isinstance(data.get(key), str) else None, group.scope, (*path, key))
            return None
        self.names.append((rule.rule, (*path, "rule")))
        before = len(self.errors)
        when = self._condition(rule.when, group.scope, (*path, "when"))
        resolve_when = self._condition(rule.resolve_when, group.scope, (*path, "resolve_when"))
        actions = [self._action(action, group.scope, (*path, "actions", at)) for at, action in enumerate(rule.actions)]
        if when is None or len(self.errors) > before:
            return None
        self.key_paths.append(path)
        return Rule(
            name=rule.rule,
            group=group.name,
            scope=group.scope,
            when=when,
            resolve_when=resolve_when,
            for_ns=rule.for_,
            keep_firing_for_ns=rule.keep_firing_for,
            on_missing=rule.on_missing,
            max_fact_age_ns=rule.max_fact_age,
            actions=tuple(actions),
        )

    def _action(self, action: ActionShape, scope: Scope, path: KeyPath) -> Action:
        verb = action.verbs[0]
        arguments: VerbShape = getattr(action, verb)
        self._scope_fits(verb, scope, path)
        for index, label in enumerate(getattr(arguments, "by", ()) if verb == "alert" else ()):
            if label not in in_scope(scope):
                advice = f"a rule of scope {scope} has no {label}"
                self.errors.append(self.file.refuse((*path, verb, "by", index), f"{label!r} is unknown here", advice))
        mode: Mode = action.mode or ("enforce" if verb == "alert" else "shadow")
        if mode == "enforce" and verb != "alert" and verb not in self._executors:
            message = f"nothing is configured here that does `{verb}`"
            self.errors.append(self.file.refuse((*path, "mode"), message, _instead_of_enforce(verb)))
        ttl_ns = action.ttl if action.ttl is not None else None if verb == "alert" else DEFAULT_TTL_NS
        if action.budget.in_flight is not None and ttl_ns is None:
            advice = "add a ttl: how long an action counts as in flight"
            self.errors.append(self.file.refuse((*path, "budget", "in_flight"), "an alert without a ttl", advice))
        return Action(
            verb=verb,
            arguments=tuple(sorted(arguments.model_dump(exclude={"only_if"}).items())),
            mode=mode,
            ttl_ns=ttl_ns,
            limits=action.budget.limits(),
            only_if=self._condition(arguments.only_if, scope, (*path, verb, "only_if")),
        )

    def _scope_fits(self, verb: Verb, scope: Scope, path: KeyPath) -> None:
        scopes = _SCOPES_OF.get(verb, (scope,))
        if scope not in scopes:
            message = f"a rule of scope {scope} has nothing to {verb}"
            advice = f"{verb} belongs in a group of scope {' or '.join(scopes)}"
            self.errors.append(self.file.refuse((*path, verb), message, advice, at_key=True))

    def _condition(self, text: str | None, scope: Scope, path: KeyPath) -> Condition | None:
        if text is None:
            return None
        try:
            return condition(text, scope)
        except ExpressionError as error:
            self.errors.append(expression_error(self.file, path, text, error))
            return None

    def _model(self, kind: type[_Model], data: Any, path: KeyPath) -> _Model | None:
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            self.errors.extend(config_errors(self.file, error, path))
            return None


def _instead_of_enforce(verb: Verb) -> str:
    if verb in RELAY_ONLY:
        return (
            "a relay does it: give these rules to `otel-llm relay`, or give --config FILE with an engine of kind "
            "relay, or write `mode: shadow`"
        )
    return "give --config FILE with settings that name who does it, or write `mode: shadow`"
