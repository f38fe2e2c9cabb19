"""Convert a pydantic schema's errors to ConfigErrors that point into the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from otel_llm.rules.files.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.rules.files.yamlfile import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.rules.files.yamlfile import ConfigError, KeyPath, YamlFile

_WORDING = {
    "dict_type": ("not a mapping", "write `key: value` lines below it"),
    "model_type": ("not a mapping", "write `key: value` lines below it"),
    "list_type": ("not a list", "write [a, b] or `- a` lines below it"),
    "string_type": ("not a string", "put it in quotes"),
    "int_type": ("not a whole number", ""),
    "bool_type": ("neither true nor false", "write true or false"),
    "too_short": ("empty", "it needs at least one entry"),
    "string_too_short": ("an empty name", "give it one"),
}
_LONGEST = 200


class StrictModel(BaseModel):
    """A model that refuses unknown keys, naming the nearest known one, and every value that would need a conversion."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any) -> Any:
        known = [info.alias or name for name, info in cls.model_fields.items()]
        for key in data if isinstance(data, dict) else ():
            if key not in known:
                raise wrong("unknown key", did_you_mean(str(key), known), key)
        return data


def wrong(message: str, advice: str = "", *below: str | int) -> PydanticCustomError:
    """Return the error for a validator to raise; `below`: keys and indexes under the value that it validates."""
    return PydanticCustomError("wrong", "{message}", {"message": message, "advice": advice, "below": below})


def quoted(value: object) -> str:
    """Return a value as it is written in Python, shortened, since a refused value may be long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def duration(value: object) -> int:
    """Return a duration in ns, for a validator; raises a pydantic error."""
    try:
        return parse_duration_ns(value)
    except ValueError as error:
        raise wrong(str(error), DURATION_ADVICE) from None


Duration = Annotated[int, BeforeValidator(duration)]


def config_errors(
    file: YamlFile, error: ValidationError, prefix: KeyPath = (), missing: Mapping[KeyPath, str] | None = None
) -> list[ConfigError]:
    """Return the schema's errors in file order; `prefix`: the path of the validated data in the file.

    `missing`: the advice for required keys whose name alone does not say enough.
    """
    found = [_config_error(file, prefix, dict(detail), missing or {}) for detail in error.errors(include_url=False)]
    return sorted(found, key=lambda refusal: (refusal.line or 0, refusal.column or 0))


def _config_error(
    file: YamlFile, prefix: KeyPath, detail: Mapping[str, Any], missing: Mapping[KeyPath, str]
) -> ConfigError:
    context: Mapping[str, Any] = detail.get("ctx", {})
    # A mapping's key is marked by a part of the location that is no key of the file.
    path = (*prefix, *(part for part in detail["loc"] if part != "[key]"), *context.get("below", ()))
    if detail["type"] == "wrong":
        return file.refuse(path, context["message"], context["advice"], at_key=context["message"] == "unknown key")
    if detail["type"] == "missing":
        return file.refuse(path, "missing", missing.get(path, f"write `{path[-1]}: ...`"))
    if detail["type"] == "literal_error":
        return file.refuse(path, f"{quoted(detail['input'])} is not allowed here", f"write {context['expected']}")
    message, advice = _WORDING.get(detail["type"], (detail["msg"], ""))
    return file.refuse(path, message, advice)
