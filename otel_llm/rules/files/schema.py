"""The schema of rule files: allowed keys and values, and their defaults."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, get_args

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from otel_llm.config.durations import parse_duration_ns
from otel_llm.config.strict_model import Duration, StrictModel, quoted, wrong
from otel_llm.config.yaml_file import VERSION, did_you_mean
from otel_llm.rules.files.ruleset import (
    DEFAULT_DESTINATION,
    DEFAULT_MAX_FACT_AGE_NS,
    DEFAULT_TTL_NS,
    Destination,
    Limits,
    Mode,
    OnMissing,
    Verb,
)
from otel_llm.rules.language.facts import LABELS, Scope

_VERBS: Final = get_args(Verb)
_RATE: Final = re.compile(r"(?P<count>[0-9]{1,9}) in (?P<window>\S+)")
_RATE_ADVICE: Final = "write `2 in 10s`"
LONGEST_NAME: Final = 200


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > LONGEST_NAME or not value.isprintable():
        raise wrong(f"{quoted(value)} is no name", f"write a line of text, at most {LONGEST_NAME} characters")
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
        raise wrong(f"{quoted(value)} is no limit", "write a whole number from 1; to do nothing, leave the action out")
    return value


def _rate(value: object) -> tuple[int, int]:
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not int(found["count"]):
        raise wrong(f"{quoted(value)} is no limit in a window", _RATE_ADVICE)
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
            raise wrong(f"{quoted(label)} is no label", did_you_mean(str(label), LABELS), index)
        if label in value[:index]:
            raise wrong(f"{label} stands here twice", "", index)
    return tuple(value)


def _on_missing(value: object) -> object:
    return "false" if value is False else value  # YAML reads the bare word as a boolean


_COUNT: Final = {"type": "integer", "minimum": 1, "maximum": 10**9}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME}
_RATE_TEXT: Final = {
    "type": "string",
    "pattern": r"^[0-9]{1,9} in [0-9]+(\.[0-9]+)?(us|ms|s|m|h)$",
    "examples": ["2 in 10s"],
}

_Name = Annotated[str, BeforeValidator(_name), WithJsonSchema(_NAME)]
_Count = Annotated[int, BeforeValidator(_count), WithJsonSchema(_COUNT)]
_Rate = Annotated[Any, BeforeValidator(_rate), WithJsonSchema(_RATE_TEXT)]
_Duration = Annotated[Duration, WithJsonSchema({"$ref": "#/$defs/duration"})]
_Condition = Annotated[str, WithJsonSchema({"$ref": "#/$defs/condition"})]


class RuleFileModel(StrictModel):
    """A part of a rule file; the strings below its fields describe them in editors."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class VerbShape(RuleFileModel):
    """The keys that every verb may have."""

    only_if: _Condition | None = None
    """A condition without which the action is not done."""


class _Alert(VerbShape):
    name: _Name
    """The alert's name."""
    by: Annotated[
        Any,
        BeforeValidator(_labels),
        WithJsonSchema({"type": "array", "items": {"enum": list(LABELS)}, "uniqueItems": True}),
    ] = ()
    """The facts that its labels are made of."""


class _Migrate(VerbShape):
    to: Destination = DEFAULT_DESTINATION
    """How the replica is chosen that the stream is moved to."""


class _Scale(VerbShape):
    by: Annotated[int, WithJsonSchema({"type": "integer", "not": {"const": 0}})] = 1
    """Replicas to add; negative: to remove."""

    @model_validator(mode="after")
    def _somewhere(self) -> _Scale:
        if not self.by:
            raise wrong("by nothing", "write how many replicas to add, or a negative number to remove", "by")
        return self


class _Webhook(VerbShape):
    to: Annotated[str, BeforeValidator(_receiver), WithJsonSchema({**_NAME, "not": {"pattern": "://"}})]
    """A receiver; its URL stands in the file given with --config."""


class _Budget(RuleFileModel):
    per_request: _Count | None = None
    """How often for one request, ever."""
    per_instance: _Rate = None
    """How often for one instance in a sliding window."""
    per_group: _Rate = None
    """How often all rules of the group may use this verb."""
    in_flight: _Count | None = None
    """How many at once, until confirmed or the ttl is over."""

    def limits(self) -> Limits:
        return Limits(self.per_request, self.per_instance, self.in_flight, self.per_group)


class ActionShape(RuleFileModel):
    """One entry of `actions`: one verb and its options."""

    alert: _Alert | None = None
    migrate: _Migrate | None = None
    preempt: VerbShape | None = None
    abort: VerbShape | None = None
    drain: VerbShape | None = None
    scale: _Scale | None = None
    webhook: _Webhook | None = None
    mode: Mode | None = None
    """shadow: decided and recorded, not done. The default of all but alerts."""
    ttl: _Duration | None = Field(
        None, description=f"After it it is not done; default {DEFAULT_TTL_NS // 10**9}s, none of alerts."
    )
    budget: _Budget = _Budget()

    @model_validator(mode="after")
    def _one_verb(self) -> ActionShape:
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
        """Return the verbs of the entry."""
        return [verb for verb in _VERBS if verb in self.model_fields_set]


class RuleShape(RuleFileModel):
    """One rule."""

    rule: _Name
    """The rule's name; it stands once in all that is loaded."""
    when: _Condition
    """The condition under which it fires."""
    resolve_when: _Condition | None = None
    """The condition under which it stops; default: not `when`."""
    for_: _Duration = Field(0, validation_alias="for")
    """How long `when` must have held."""
    keep_firing_for: _Duration = 0
    """How long `when` must not have held before it stops firing."""
    on_missing: Annotated[
        OnMissing, BeforeValidator(_on_missing), WithJsonSchema({"enum": [*get_args(OnMissing), False]})
    ] = "hold"
    """When a fact of `when` is missing: keep the state, or count it as false or true."""
    max_fact_age: _Duration = DEFAULT_MAX_FACT_AGE_NS
    """The age beyond which facts are missing."""
    actions: Annotated[
        list[ActionShape],
        WithJsonSchema({"type": "array", "items": {"$ref": "#/$defs/action"}, "minItems": 1}),
    ]

    @model_validator(mode="after")
    def _does_something(self) -> RuleShape:
        if not self.actions:
            raise wrong("no action", "a rule without one is never heard of; begin with an alert", "actions")
        return self


class GroupShape(RuleFileModel):
    """One group; its rules are checked one by one."""

    name: _Name
    """The group's name."""
    scope: Scope
    """What its rules look at: each stream, each instance, each class."""
    rules: Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"$ref": "#/$defs/rule"}})]


class FileShape(RuleFileModel):
    """A whole file; its groups are checked one by one."""

    version: Annotated[int, WithJsonSchema({"const": VERSION})]
    groups: Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"$ref": "#/$defs/group"}})]
