"""The JSON schema of rule files, for editors, from the models of rule files and the tables of facts.

It covers the structure; only `otel-llm rules check` checks conditions and combinations.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import WithJsonSchema

from otel_llm.config.durations import DURATION_ADVICE
from otel_llm.config.strict_model import StrictModel
from otel_llm.rules.files.ruleset import Verb
from otel_llm.rules.files.schema import ActionShape, FileShape, GroupShape, RuleShape
from otel_llm.rules.language.facts import SCOPES, WINDOWS, in_scope
from otel_llm.rules.language.parser import MAX_CHARACTERS

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

_DURATION: Final = {
    "description": f"A duration: {DURATION_ADVICE}.",
    "oneOf": [
        {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(us|ms|s|m|h)$"},
        {"type": "number", "minimum": 0, "maximum": 10**9},
    ],
}


def rule_schema() -> dict[str, Any]:
    """Return the schema (JSON Schema, draft 2020-12) as plain data."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "otel-llm rules",
        "description": "Groups of rules over what the readers of streaming LLM responses see.",
        **_object(FileShape),
        "$defs": {
            "group": _object(GroupShape),
            "rule": _object(RuleShape),
            "action": {**_object(ActionShape), "oneOf": [{"required": [verb]} for verb in get_args(Verb)]},
            "condition": _condition(),
            "duration": dict(_DURATION),
        },
    }


def schema_text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(rule_schema(), indent=2, ensure_ascii=False) + "\n"


def _object(model: type[StrictModel]) -> dict[str, Any]:
    fields = {str(info.validation_alias or name): info for name, info in model.model_fields.items()}
    required = [key for key, info in fields.items() if info.is_required()]
    shape = {
        "type": "object",
        "properties": {key: _field(info) for key, info in fields.items()},
        "additionalProperties": False,
    }
    return {**shape, "required": required} if required else shape


def _field(info: FieldInfo) -> dict[str, Any]:
    shape = _type(Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation)
    if info.description is not None:
        shape |= {"description": info.description}
    if shape.get("$ref", "").endswith("/duration") and isinstance(info.default, int):
        shape |= {"default": f"{info.default // 1_000_000}ms" if info.default else "0s"}
    elif isinstance(info.default, str | int):
        shape |= {"default": info.default}
    return shape


def _type(annotation: Any) -> dict[str, Any]:
    """Return the schema of a type: as it states it, of a model, of words, or of the one alternative to None."""
    if get_origin(annotation) is Annotated:
        stated = [one.json_schema or {} for one in annotation.__metadata__ if isinstance(one, WithJsonSchema)]
        return dict(stated[-1]) if stated else _type(annotation.__origin__)
    if get_origin(annotation) is Literal:
        return {"enum": list(get_args(annotation))}
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        return _object(annotation)
    (one,) = (part for part in get_args(annotation) if part is not type(None))
    return _type(one)


def _condition() -> dict[str, Any]:
    text = ["A condition: `|| && ! == != < <= > >= + - * / in [..]` over facts. Facts by scope:"]
    for scope in SCOPES:
        others = tuple(f"_{window}" for window in WINDOWS[1:])
        names = [f"{name} ({fact.type})" for name, fact in in_scope(scope).items() if not name.endswith(others)]
        text.append(f"{scope}: {', '.join(names)}.")
    text.append(f"A window at the end of a name is one of {', '.join(WINDOWS)}.")
    return {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS, "description": " ".join(text)}
