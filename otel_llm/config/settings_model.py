"""The base of settings files: models whose instances are the settings, and the types of their values.

Settings are defined once, in their model: name, key, type, bounds, default, and below the field one line that describes
it. A duration has its unit in the name of the attribute (`first_byte_s`) and not in the key (`first_byte: 60s`).
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, ValidationInfo

from otel_llm.config.durations import DURATION_ADVICE
from otel_llm.config.secret_files import read_bearer, read_signing_secrets, read_tokens
from otel_llm.config.strict_model import NOT_A_KEY, StrictModel, config_errors, duration, wrong
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, load_yaml

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.config.yaml_file import YamlFile

MIB: Final = 2**20
_LONGEST_NAME: Final = 200


class SettingsModel(StrictModel):
    """A section of a settings file. Files use keys, code uses the names of fields.

    Code may give times that a file may not, such as 0.
    """

    model_config = ConfigDict(populate_by_name=True, use_attribute_docstrings=True)


class NamedSection(SettingsModel):
    """A section below a key that is its name."""

    name: Annotated[str, NOT_A_KEY] = ""


Model = TypeVar("Model", bound=SettingsModel)
Named = TypeVar("Named", bound=NamedSection)


def load_model(path: Path, model: type[Model]) -> tuple[YamlFile, Model]:
    """Read a settings file; paths in it are relative to its folder, or absolute.

    Raises:
        ConfigError: it cannot be used, or a file that it names cannot; with file, line, key and advice.
    """
    file = load_yaml(path)
    try:
        return file, model.model_validate(file.data, context=path.parent)
    except ValidationError as error:
        raise config_errors(file, error)[0] from None


def named(sections: dict[str, Named]) -> dict[str, Named]:
    """Give each section its key as its name; for a validator."""
    return {name: one.model_copy(update={"name": name}) for name, one in sections.items()}


def plain_names(value: object) -> object:
    """Refuse names that cannot be written in a rule, or cannot be read; for a validator of a mapping."""
    for name in value if isinstance(value, dict) else ():
        if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
            raise wrong(f"{name!r} is no name", f"write a line of text, at most {_LONGEST_NAME} characters", name)
    return value


def _seconds(value: object, info: ValidationInfo) -> float:
    if info.context is None and isinstance(value, int | float):
        return float(value)
    return duration(value) / 1e9


def _some_seconds(value: object, info: ValidationInfo) -> float:
    length_s = _seconds(value, info)
    if not length_s and info.context is not None:
        raise wrong("must be longer than zero", DURATION_ADVICE)
    return length_s


_DURATIONS: Final = (BeforeValidator(_some_seconds), BeforeValidator(_seconds))
Seconds = Annotated[float, _DURATIONS[0]]
OptionalSeconds = Annotated[float, _DURATIONS[1]]
"""A duration that may be 0, which is for never."""
SecondsNumber = Annotated[float, Field(gt=0, le=10**9)]
"""A number of seconds, for keys that end in `_seconds`."""
Connections = Annotated[int, Field(ge=1, le=100_000)]
Viewers = Annotated[int, Field(ge=0, le=1024)]
MetricsBytes = Annotated[int, Field(ge=MIB, le=2**30)]
FileBytes = Annotated[int, Field(ge=4096, le=2**40)]


def is_duration(metadata: list[Any]) -> bool:
    """Tell whether a field with these annotations is a duration."""
    return any(one in _DURATIONS for one in metadata)


def items(most: int | None = None) -> BeforeValidator:
    """Return a validator of lists, for fields that are tuples."""

    def check(value: object) -> object:
        if isinstance(value, tuple):
            return value
        if not isinstance(value, list):
            raise wrong("not a list", "write [a, b] or `- a` lines below it")
        if most is not None and len(value) > most:
            raise wrong(f"List should have at most {most} items after validation, not {len(value)}")
        return tuple(value)

    return BeforeValidator(check)


LabelValues = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=256)], ...], items(1000)]


def file_name(value: object, info: ValidationInfo) -> Path:
    """Return the path that a file's name stands for; for a validator."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise wrong("not a string", "put it in quotes")
    if not value:
        raise wrong("an empty name", "give it one")
    return (info.context or Path()) / value


def _new_file(value: object, info: ValidationInfo) -> Path:
    path = file_name(value, info)
    if info.context is not None and path.is_dir():
        raise wrong(f"{value} is a folder", "name a file in it")
    return path


def _certificates(path: Path) -> None:
    try:
        ssl.create_default_context(cafile=str(path))
    except ssl.SSLError:
        raise ConfigError(str(path), None, None, "", "no certificates in PEM", "name the file of who signs") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableConfigError(str(path), None, None, "", reason, "name a file that can be read") from None


def of_named_file(error: ConfigError) -> Any:
    """Return the error of a file that cannot be read as one of the key that names it; for a validator to raise."""
    return wrong(f"{error.file}: {error.message}", error.advice)


def _read_once(read: Callable[[Path], object]) -> AfterValidator:
    """Return a validator that reads a file, so that one that cannot be used is refused at the start."""

    def check(path: Path, info: ValidationInfo) -> Path:
        if info.context is not None:
            try:
                read(path)
            except UnreadableConfigError as error:
                raise of_named_file(error) from None
        return path

    return AfterValidator(check)


FilePath = Annotated[Path, BeforeValidator(file_name)]
NewFile = Annotated[Path, BeforeValidator(_new_file)]
TokensFile = Annotated[FilePath, _read_once(read_tokens)]
BearerFile = Annotated[FilePath, _read_once(read_bearer)]
SecretFile = Annotated[FilePath, _read_once(read_signing_secrets)]
CertificatesFile = Annotated[FilePath, _read_once(_certificates)]

NO_LIMIT: Final = "none"
_LEAST_KEPT: Final = 4096


def _kept_bytes(value: object, info: ValidationInfo) -> int | None:
    if value == NO_LIMIT or (value is None and info.context is None):
        return None
    if value is None:
        raise wrong("there is no value", f"write a number of bytes, or {NO_LIMIT} to keep all files")
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong("not a whole number")
    if value < _LEAST_KEPT:
        raise wrong(f"Input should be greater than or equal to {_LEAST_KEPT}")
    return value


KeptBytes = PlainValidator(_kept_bytes)
"""The validator of a number of bytes that are kept; `none`, None in code: all."""
