"""The keys of a settings file, from its model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from otel_llm.config.strict_model import NOT_A_KEY, StrictModel


def models_in(annotation: Any) -> list[type[StrictModel]]:
    """Return the models in a type, such as `dict[str, Engine]`."""
    if isinstance(annotation, type) and issubclass(annotation, StrictModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def keys_of(model: type[StrictModel], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield the path of each key below a model, names of sections left out, and its field."""
    for name, info in model.model_fields.items():
        if NOT_A_KEY in info.metadata:
            continue
        path = (*above, str(info.validation_alias or name))
        yield path, info
        for inner in models_in(info.annotation):
            yield from keys_of(inner, path)
