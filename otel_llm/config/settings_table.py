"""The tables of settings in the docs: a row for each key of a model.

`python -m otel_llm.config.settings_table otel_llm.relay.settings:RelaySettings` prints one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from otel_llm.config.file_defaults import PRIVATE
from otel_llm.config.otlp_target import Headers
from otel_llm.config.settings_model import KeptBytes, SettingsModel, is_duration
from otel_llm.config.strict_model import NOT_A_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

Row = tuple[str, str, str, str]
HEAD: Final = "| key | default | values | meaning |\n|---|---|---|---|\n"

_KINDS: Final[dict[Any, str]] = {
    bool: "`true`, `false`",
    dict: "a mapping",
    str: "text",
    tuple: "a list",
    Path: "a file",
    Headers: "a file",
}


def settings_table(model: type[SettingsModel], base: type[SettingsModel] | None = None) -> str:
    """Return the table of a model; of `base`, which another table describes, only what this model changes."""
    fields = {} if base is None else base.model_fields
    sections = {name: _section(info.annotation) for name, info in fields.items()}
    shown = {section: f"`{name}` of the collector" for name, section in sections.items() if section is not None}
    rows = [row for name, info in _changed(model, base) for row in _rows(name, info, "", shown)]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _changed(model: type[SettingsModel], base: type[SettingsModel] | None) -> Iterator[tuple[str, FieldInfo]]:
    same = {} if base is None else base.model_fields
    for name, info in model.model_fields.items():
        if name not in same or (info.annotation, info.default) != (same[name].annotation, same[name].default):
            yield name, info


def _rows(
    name: str, info: FieldInfo, above: str, shown: dict[type[SettingsModel], str], section: object = None
) -> Iterator[Row]:
    if NOT_A_KEY in info.metadata or name == "version":
        return
    key = f"{above}{info.validation_alias or name}"
    inner = _section(info.annotation)
    if inner is None:
        yield (
            f"`{key}`",
            _default(info, getattr(section, name, None)),
            _values(info),
            " ".join((info.description or "").split()),
        )
        return
    base = next((one for one in inner.__mro__[:-1] if one in shown and one.model_fields), None)
    if base is not None:
        yield f"`{key}`", "", f"keys as {shown[base]}", " ".join((info.description or "").split())
    shown.setdefault(inner, f"`{key}`")
    below = f"{key}.NAME." if get_origin(info.annotation) is dict else f"{key}."
    for one, field in _changed(inner, base):
        yield from _rows(one, field, below, shown, info.default)


def _section(annotation: Any) -> type[SettingsModel] | None:
    """Return the model of a section: the type, one of its alternatives, or that of the values of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, SettingsModel):
        return annotation
    found = (_section(part) for part in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _metadata(annotation: Any, more: list[Any]) -> list[Any]:
    """Return all annotations of a type and its alternatives."""
    if isinstance(annotation, FieldInfo):
        return annotation.metadata
    if get_origin(annotation) is Annotated:
        of_fields = [one for field in annotation.__metadata__ for one in _metadata(field, [field])]
        return _metadata(annotation.__origin__, [*more, *of_fields])
    return [*more, *(one for part in get_args(annotation) for one in _metadata(part, []))]


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield the types of a field without annotations and None."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(annotation.__origin__)
    elif get_origin(annotation) in (Literal, tuple, dict) or not get_args(annotation):
        yield from () if annotation is type(None) else (annotation,)
    else:
        for part in get_args(annotation):
            yield from _alternatives(part)


def _default(info: FieldInfo, of_section: object) -> str:
    """Return the default: that of the whole section if there is one, since a section may be absent."""
    if info.is_required():
        return "required"
    value: Any = of_section or info.get_default(call_default_factory=True, validated_data={})
    if value is None or value in ((), {}, Headers(), -1):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if value == PRIVATE:
        return f"{PRIVATE:04o}"
    if is_duration(_metadata(info.annotation, info.metadata)):
        return f"{value:g}s" if value >= 1 else f"{value * 1000:g}ms"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _values(info: FieldInfo) -> str:
    metadata = _metadata(info.annotation, info.metadata)
    (kind, *_) = _alternatives(info.annotation)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{word}`" for word in get_args(kind))
    if is_duration(metadata):
        return "a duration"
    if KeptBytes in metadata:
        return "bytes from 4096, or `none`"
    if kind in (int, float):
        bounds = {name: getattr(one, name) for one in metadata for name in ("ge", "gt", "le") if hasattr(one, name)}
        least = f"from {bounds['ge']}" if "ge" in bounds else f"above {bounds['gt']}" if "gt" in bounds else ""
        return least + (f" to {bounds['le']}" if "le" in bounds else "")
    return _KINDS.get(get_origin(kind) or kind, "a name, or a file")


if __name__ == "__main__":
    where, _, which = sys.argv[1].partition(":")
    sys.stdout.write(settings_table(getattr(import_module(where), which)))
