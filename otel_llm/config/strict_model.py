"""The base of all models of files, and their errors as ConfigErrors that point into the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from otel_llm.config.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.config.yaml_file import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.config.yaml_file import ConfigError, KeyPath, YamlFile

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

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, data: Any, info: ValidationInfo) -> Any:
        known = keys(cls)
        names = cls.model_fields if cls.model_config.get("populate_by_name") and info.context is None else ()
        for key in data if isinstance(data, dict) else ():
            if key not in known and key not in names:
                raise wrong("unknown key", did_you_mean(str(key), known), key, at_key=True)
        return data


NOT_A_KEY: Final = "not a key"
"""In the annotation of a field: only code gives it, files do not."""


def keys(model: type[BaseModel]) -> list[str]:
    """Return the keys that a model has in a file."""
    fields = model.model_fields.items()
    return [str(info.validation_alias or name) for name, info in fields if NOT_A_KEY not in info.metadata]


def wrong(message: str, advice: str = "", *below: str | int, at_key: bool = False) -> PydanticCustomError:
    """Return the error for a validator to raise; `below`: keys and indexes under the value that it validates.

    `at_key`: the error is about the key, not about its value.
    """
    context = {"message": message, "advice": advice, "below": below, "at_key": at_key}
    return PydanticCustomError("wrong", "{message}", context)


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
        return file.refuse(path, context["message"], context["advice"], at_key=context["at_key"])
    if detail["type"] == "missing":
        return file.refuse(path, "missing", missing.get(path, f"write `{path[-1]}: ...`"))
    if detail["type"] == "literal_error":
        return file.refuse(path, f"{quoted(detail['input'])} is not allowed here", f"write {context['expected']}")
    message, advice = _WORDING.get(detail["type"], (detail["msg"], ""))
    return file.refuse(path, message, advice)
