"""The JSON schema of rule files, for editors: keys, verbs and words, facts in its descriptions; from the code's tables.

It covers the structure; only `otel-llm rules check` checks conditions and combinations.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, get_args

from otel_llm.rules.files.durations import DURATION_ADVICE
from otel_llm.rules.files.ruleset import DEFAULT_MAX_FACT_AGE_NS, DEFAULT_TTL_NS, Destination, Mode, OnMissing, Verb
from otel_llm.rules.files.schema import LONGEST_NAME
from otel_llm.rules.files.yamlfile import VERSION
from otel_llm.rules.language.facts import LABELS, SCOPES, WINDOWS, in_scope
from otel_llm.rules.language.parser import MAX_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Mapping

_DURATION: Final = {
    "description": f"A duration: {DURATION_ADVICE}.",
    "oneOf": [
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(us|ms|s|m|h)$"},
        {"type": "number", "minimum": 0, "maximum": 10**9},
    ],
}
_RATE: Final = {
    "type": "string",
    "pattern": r"^[0-9]{1,9} in [0-9]+(\.[0-9]+)?(us|ms|s|m|h)$",
    "examples": ["2 in 10s"],
}
_COUNT: Final = {"type": "integer", "minimum": 1, "maximum": 10**9}


def rule_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema, draft 2020-12) as plain data."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "otel-llm rules",
        "description": "Groups of rules over what the readers of streaming LLM responses see.",
        **_object({"version": {"const": VERSION}, "groups": _list({"$ref": "#/$defs/group"})}, "version", "groups"),
        "$defs": {
            "group": _object(
                {"name": _name("The group's name."), "scope": _scope(), "rules": _list({"$ref": "#/$defs/rule"})},
                "name", "scope", "rules",
            ),
            "rule": _rule(),
            "action": _action(),
            "condition": _condition(),
            "duration": dict(_DURATION),
        },
    }  # fmt: skip


def schema_text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(rule_schema(), indent=2, ensure_ascii=False) + "\n"


def _rule() -> dict[str, Any]:
    condition, duration = {"$ref": "#/$defs/condition"}, {"$ref": "#/$defs/duration"}
    return _object(
        {
            "rule": _name("The rule's name; it stands once in all that is loaded."),
            "when": {**condition, "description": "The condition under which it fires."},
            "resolve_when": {**condition, "description": "The condition under which it stops; default: not `when`."},
            "for": {**duration, "description": "How long `when` must have held.", "default": "0s"},
            "keep_firing_for": {
                **duration,
                "description": "How long `when` must not have held before it stops firing.",
                "default": "0s",
            },
            "on_missing": {
                "enum": [*get_args(OnMissing), False],
                "description": "When a fact of `when` is missing: keep the state, or count it as false or true.",
                "default": "hold",
            },
            "max_fact_age": {
                **duration,
                "description": "The age beyond which facts are missing.",
                "default": f"{DEFAULT_MAX_FACT_AGE_NS // 1_000_000}ms",
            },
            "actions": {**_list({"$ref": "#/$defs/action"}), "minItems": 1},
        },
        "rule", "when", "actions",
    )  # fmt: skip


def _action() -> dict[str, Any]:
    only_if = {"$ref": "#/$defs/condition", "description": "A condition without which the action is not done."}
    own: Mapping[Verb, dict[str, Any]] = {
        "alert": {
            "name": _name("The alert's name."),
            "by": {"type": "array", "items": {"enum": list(LABELS)}, "uniqueItems": True,
                   "description": "The facts that its labels are made of."},
        },
        "migrate": {"to": {"enum": list(get_args(Destination)), "default": "safest",
                           "description": "How the replica is chosen that the stream is moved to."}},
        "preempt": {},
        "abort": {},
        "drain": {},
        "scale": {"by": {"type": "integer", "not": {"const": 0}, "default": 1,
                         "description": "Replicas to add; negative: to remove."}},
        "webhook": {"to": {**_name("A receiver; its URL stands in the file given with --config."),
                           "not": {"pattern": "://"}}},
    }  # fmt: skip
    required = {"alert": ["name"], "webhook": ["to"]}
    verbs = {verb: _object({**own[verb], "only_if": only_if}, *required.get(verb, ())) for verb in get_args(Verb)}
    return {
        **_object(
            {
                **verbs,
                "mode": {
                    "enum": list(get_args(Mode)),
                    "description": "shadow: decided and recorded, not done. The default of all but alerts.",
                },
                "ttl": {
                    "$ref": "#/$defs/duration",
                    "description": f"After it it is not done; default {DEFAULT_TTL_NS // 10**9}s, none of alerts.",
                },
                "budget": _object(
                    {
                        "per_request": {**_COUNT, "description": "How often for one request, ever."},
                        "per_instance": {**_RATE, "description": "How often for one instance in a sliding window."},
                        "per_group": {**_RATE, "description": "How often all rules of the group may use this verb."},
                        "in_flight": {**_COUNT, "description": "How many at once, until confirmed or the ttl is over."},
                    }
                ),
            }
        ),
        "oneOf": [{"required": [verb]} for verb in get_args(Verb)],
    }


def _condition() -> dict[str, Any]:
    text = ["A condition: `|| && ! == != < <= > >= + - * / in [..]` over facts. Facts by scope:"]
    for scope in SCOPES:
        others = tuple(f"_{window}" for window in WINDOWS[1:])
        names = [f"{name} ({fact.type})" for name, fact in in_scope(scope).items() if not name.endswith(others)]
        text.append(f"{scope}: {', '.join(names)}.")
    text.append(f"A window at the end of a name is one of {', '.join(WINDOWS)}.")
    return {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS, "description": " ".join(text)}


def _scope() -> dict[str, Any]:
    return {"enum": list(SCOPES), "description": "What its rules look at: each stream, each instance, each class."}


def _name(description: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME, "description": description}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    return {**shape, "required": list(required)} if required else shape
