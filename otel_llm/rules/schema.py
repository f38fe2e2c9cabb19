"""The shape of a rule file: what may stand where, and how rules are made of it. Every mistake is reported, not one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from otel_llm.rules.condition import Condition, condition
from otel_llm.rules.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.rules.facts import LABELS, Scope, in_scope
from otel_llm.rules.place import expression_error
from otel_llm.rules.refusals import StrictModel, refusals, wrong
from otel_llm.rules.ruleset import (
    DEFAULT_MAX_FACT_AGE_NS,
    DEFAULT_TTL_NS,
    Action,
    Limits,
    Mode,
    OnMissing,
    Rule,
    Verb,
)
from otel_llm.rules.tokens import ExpressionError
from otel_llm.rules.yamlfile import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_llm.rules.yamlfile import ConfigError, KeyPath, YamlFile

_Model = TypeVar("_Model", bound=StrictModel)
_VERBS: Final = get_args(Verb)
_RATE: Final = re.compile(r"(?P<count>[0-9]{1,9}) in (?P<window>\S+)")
_RATE_ADVICE: Final = "write `2 in 10s`"
_LONGEST_NAME: Final = 200
_SCOPES_OF: Final[dict[str, tuple[Scope, ...]]] = {
    "migrate": ("stream",),
    "abort": ("stream",),
    "preempt": ("stream", "instance"),
    "drain": ("stream", "instance"),
}
"""Verbs that need something to act on: a stream, or an instance."""


def _duration(value: object) -> int:
    try:
        return parse_duration_ns(value)
    except ValueError as error:
        raise wrong(str(error), DURATION_ADVICE) from None


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST_NAME or not value.isprintable():
        raise wrong(f"{value!r} is no name", f"write a line of text, at most {_LONGEST_NAME} characters")
    if "{{" in value or "${" in value:
        raise wrong("a template", "there are no templates in rules; write the text itself")
    return value


def _receiver(value: object) -> str:
    name = _name(value)
    if "://" in name:
        raise wrong("a URL", "name a receiver; its URL stands in the file given with --config")
    return name


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
        raise wrong(f"{value!r} is no limit", "write a whole number from 1; to do nothing, leave the action out")
    return value


def _rate(value: object) -> tuple[int, int]:
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not int(found["count"]):
        raise wrong(f"{value!r} is no limit in a window", _RATE_ADVICE)
    try:
        window_ns = parse_duration_ns(found["window"])
    except ValueError as error:
        raise wrong(str(error), _RATE_ADVICE) from None
    if not window_ns:
        raise wrong("a window of no length", _RATE_ADVICE)
    return int(found["count"]), window_ns


def _labels(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong("not a list of facts", f"write [{', '.join(LABELS)}] or some of them")
    for index, label in enumerate(value):
        if label not in LABELS:
            raise wrong(f"{label!r} is no label", did_you_mean(str(label), LABELS), index)
        if label in value[:index]:
            raise wrong(f"{label} stands here twice", "", index)
    return tuple(value)


_Duration = Annotated[int, BeforeValidator(_duration)]
_Name = Annotated[str, BeforeValidator(_name)]
_Count = Annotated[int, BeforeValidator(_count)]


class _Verb(StrictModel):
    only_if: str | None = None


class _Alert(_Verb):
    name: _Name
    by: Annotated[Any, BeforeValidator(_labels)] = ()


class _Migrate(_Verb):
    to: Literal["safest", "pack", "spread"] = "safest"


class _Scale(_Verb):
    by: int = 1

    @model_validator(mode="after")
    def _somewhere(self) -> _Scale:
        if not self.by:
            raise wrong("by nothing", "write how many replicas to add, or a negative number to remove", "by")
        return self


class _Webhook(_Verb):
    to: Annotated[str, BeforeValidator(_receiver)]


class _Budget(StrictModel):
    per_request: _Count | None = None
    per_instance: Annotated[Any, BeforeValidator(_rate)] = None
    in_flight: _Count | None = None

    def limits(self) -> Limits:
        return Limits(self.per_request, self.per_instance, self.in_flight)


class _Action(StrictModel):
    alert: _Alert | None = None
    migrate: _Migrate | None = None
    preempt: _Verb | None = None
    abort: _Verb | None = None
    drain: _Verb | None = None
    scale: _Scale | None = None
    webhook: _Webhook | None = None
    mode: Mode | None = None
    ttl: _Duration | None = None
    budget: _Budget = _Budget()

    @model_validator(mode="after")
    def _one_verb(self) -> _Action:
        verbs = self.verbs
        if not verbs:
            raise wrong("no action", f"write one of {', '.join(_VERBS)}")
        if len(verbs) > 1:
            raise wrong("two actions in one entry", f"begin another with `- {verbs[1]}:`", verbs[1])
        if getattr(self, verbs[0]) is None:
            raise wrong("no mapping", "write {} where there is nothing to say", verbs[0])
        return self

    @property
    def verbs(self) -> list[Verb]:
        return [verb for verb in _VERBS if verb in self.model_fields_set]


class _Rule(StrictModel):
    rule: _Name
    when: str
    resolve_when: str | None = None
    for_: _Duration = Field(0, alias="for")
    keep_firing_for: _Duration = 0
    on_missing: OnMissing = "hold"
    max_fact_age: _Duration = DEFAULT_MAX_FACT_AGE_NS
    actions: list[_Action]

    @model_validator(mode="after")
    def _does_something(self) -> _Rule:
        if not self.actions:
            raise wrong("no action", "a rule without one is never heard of; begin with an alert", "actions")
        return self


class _Group(StrictModel):
    name: _Name
    scope: Scope
    rules: list[Any]


class _File(StrictModel):
    version: int
    groups: list[Any]


class RuleReader:
    """Read the rules of one file; `errors` holds all that is wrong with it, in the file's order when sorted."""

    def __init__(self, file: YamlFile, executors: Collection[str] = ()) -> None:
        self.file = file
        self.errors: list[ConfigError] = []
        self.names: list[tuple[str, KeyPath]] = []
        """Every rule's name, and where it stands."""
        self._executors = executors

    def rules(self) -> list[Rule]:
        """Return the rules that are right."""
        if "groups" not in self.file.data and "classes" in self.file.data:
            self.errors.append(self.file.refuse(("classes",), "SLO classes", "give this file with --slo", at_key=True))
            return []
        model = self._model(_File, self.file.data, ())
        groups = [] if model is None else model.groups
        return [rule for index, group in enumerate(groups) for rule in self._group(group, ("groups", index))]

    def _group(self, data: Any, path: KeyPath) -> list[Rule]:
        group = self._model(_Group, data, path)
        if group is None:
            return []
        found = [self._rule(rule, group, (*path, "rules", index)) for index, rule in enumerate(group.rules)]
        return [rule for rule in found if rule is not None]

    def _rule(self, data: Any, group: _Group, path: KeyPath) -> Rule | None:
        rule = self._model(_Rule, data, path)
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

    def _action(self, action: _Action, scope: Scope, path: KeyPath) -> Action:
        verb = action.verbs[0]
        arguments: _Verb = getattr(action, verb)
        self._scope_fits(verb, scope, path)
        for index, label in enumerate(getattr(arguments, "by", ()) if verb == "alert" else ()):
            if label not in in_scope(scope):
                advice = f"a rule of scope {scope} has no {label}"
                self.errors.append(self.file.refuse((*path, verb, "by", index), f"{label!r} is unknown here", advice))
        mode: Mode = action.mode or ("enforce" if verb == "alert" else "shadow")
        if mode == "enforce" and verb != "alert" and verb not in self._executors:
            message = f"nothing is configured here that can {verb}"
            self.errors.append(self.file.refuse((*path, "mode"), message, "write `mode: shadow`, or leave it out"))
        return Action(
            verb=verb,
            arguments=tuple(sorted(arguments.model_dump(exclude={"only_if"}).items())),
            mode=mode,
            ttl_ns=action.ttl if action.ttl is not None else None if verb == "alert" else DEFAULT_TTL_NS,
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
            self.errors.extend(refusals(self.file, error, path))
            return None
