"""Strict YAML with positions, and the error that names file, line and key."""

from __future__ import annotations

import difflib
import math
import re
from collections import ChainMap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from otel_llm.formats.io.open_input import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 32
VERSION: Final = 1

Scalar = str | int | float | bool | None
KeyPath = tuple[str | int, ...]

# The core schema of YAML 1.2: `no`, `on` and `12:30` are strings, as they look.
_INT: Final = re.compile(r"[-+]?[0-9]{1,400}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_FINITE: Final = "write a number"
_WORDS: Final[Mapping[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class ConfigError(Exception):
    """A configuration file was refused: file, line, column (from 1), key, what is wrong and what to write.

    `UnreadableConfigError` is the one kind that is not about the contents.
    """

    def __init__(
        self,
        file: str,
        line: int | None,
        column: int | None,
        key: str,
        message: str,
        advice: str = "",
    ) -> None:
        self.file = file
        self.line = line
        self.column = column
        self.key = key
        self.message = message
        self.advice = advice
        super().__init__(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # It crosses from one process to another whole; an exception's own form holds its text only.
        return type(self), (self.file, self.line, self.column, self.key, self.message, self.advice), self.__dict__

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        key = f"{self.key}: " if self.key else ""
        return f"{place}: {key}{self.message}" + (f" ({self.advice})" if self.advice else "")


class UnreadableConfigError(ConfigError):
    """A configuration file could not be read at all."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the file, from 1; `style` is the quote of a scalar: None (plain), ', ", | or >."""

    line: int
    column: int
    style: str | None = None


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A file's plain data, and the position of each key and value."""

    file: str
    text: str
    data: dict[str, Any]
    values: dict[KeyPath, Mark] = field(repr=False)
    keys: dict[KeyPath, Mark] = field(repr=False)

    def value_mark(self, path: KeyPath) -> Mark:
        """Return the position of the value at this path; of the nearest enclosing one if there is none."""
        return _nearest(self.values, path)

    def key_mark(self, path: KeyPath) -> Mark:
        """Return the position of the key (or list item) at this path, or of the nearest enclosing one."""
        return _nearest(ChainMap(self.keys, self.values), path)

    def refuse(self, path: KeyPath, message: str, advice: str = "", *, at_key: bool = False) -> ConfigError:
        """Return the error for the value (or the key) at this path."""
        mark = self.key_mark(path) if at_key else self.value_mark(path)
        return ConfigError(self.file, mark.line, mark.column, dotted(path), message, advice)

    def refuse_file(self, path: KeyPath, error: ConfigError) -> ConfigError:
        """Return the error of a missing file as an error at the key that names the file."""
        return self.refuse(path, f"{error.file}: {error.message}", error.advice)


def load_yaml(path: Path | str, *, number_keys: bool = False) -> YamlFile:
    """Read a strict YAML file of version 1: a mapping, at most 64 KiB.

    Tags, anchors, aliases, merge keys, duplicate keys, keys that are no strings, numbers that are not finite and a
    second document are refused with ConfigError; a file that cannot be read with UnreadableConfigError. With
    `number_keys`, a key that is a number is accepted, as a string with its text.
    """
    try:
        with open_input(Path(path)) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableConfigError(str(path), None, None, "", reason, "name a file that can be read") from error
    return parse_yaml(raw, str(path), number_keys=number_keys)


def utf8_text(raw: bytes, file: str, advice: str = "save the file as UTF-8") -> str:
    """Return the text of a file without its byte order mark.

    Raises:
        ConfigError: it is not UTF-8; the error has the line.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(file, line, None, "", "not UTF-8", advice) from error


def parse_yaml(raw: bytes, file: str, *, number_keys: bool = False) -> YamlFile:
    """Parse bytes as `load_yaml` does; `file` is the name in errors."""
    if len(raw) > MAX_BYTES:
        raise ConfigError(file, None, None, "", f"more than {MAX_BYTES // 1024} KiB", "split it into several files")
    text = utf8_text(raw, file)
    builder = _Builder(file, number_keys=number_keys)
    try:
        data = builder.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ConfigError(file, line, column, "", f"not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(file, None, None, "", f"not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict):
        raise ConfigError(file, 1, 1, "", "not a mapping", f"begin with `version: {VERSION}`")
    parsed = YamlFile(file, text, data, builder.values, builder.keys)
    if "version" not in data:
        raise ConfigError(file, 1, 1, "version", "missing", f"begin with `version: {VERSION}`")
    version = data["version"]
    if version != VERSION or not isinstance(version, int) or isinstance(version, bool):
        raise parsed.refuse(("version",), f"{version!r} is not supported", f"write `version: {VERSION}`")
    return parsed


def dotted(path: KeyPath) -> str:
    """Format a path for people: `classes.chat.deadline`, `groups[0].rules[2].for`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return the advice for an unknown word: the nearest known one, or all of them."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def _nearest(marks: Mapping[KeyPath, Mark], path: KeyPath) -> Mark:
    for length in range(len(path), -1, -1):
        if path[:length] in marks:
            return marks[path[:length]]
    return Mark(1, 1)


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


class _Builder:
    """A builder of plain data from parse events, which still show the tags and anchors that we refuse."""

    def __init__(self, file: str, *, number_keys: bool) -> None:
        self.file = file
        self.number_keys = number_keys
        self.values: dict[KeyPath, Mark] = {}
        self.keys: dict[KeyPath, Mark] = {}

    def document(self, events: Iterator[yaml.Event]) -> Any:
        data: Any = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._error(event, (), "a second document", "one file, one document")
                data = self._value(next(events), events, ())
        return data

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], path: KeyPath) -> Any:
        self.values[path] = self._mark(event)
        if isinstance(event, yaml.AliasEvent):
            raise self._error(event, path, f"alias *{event.anchor}", "write the value out")
        if getattr(event, "anchor", None) is not None:
            raise self._error(event, path, f"anchor &{getattr(event, 'anchor', '')}", "leave it out")
        if getattr(event, "tag", None) is not None:
            raise self._error(event, path, f"tag {_short_tag(str(getattr(event, 'tag', '')))}", "leave it out")
        if len(path) > MAX_DEPTH:
            raise self._error(event, path[:3], f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(events, path)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(self._value(item, events, (*path, len(items))))
            return items
        return self._scalar(event, path)

    def _mapping(self, events: Iterator[yaml.Event], path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._value(event, events, (*path, "?")) if isinstance(event, yaml.ScalarEvent) else None
            self.values.pop((*path, "?"), None)
            if self.number_keys and isinstance(key, int | float) and not isinstance(key, bool):
                key = str(getattr(event, "value", ""))
            if not isinstance(key, str):
                shown = getattr(event, "value", "a collection or an alias")
                raise self._error(event, path, f"{shown!r} is no key", "keys are words; put others in quotes")
            inner = (*path, key)
            if key == "<<":
                raise self._error(event, inner, "merge key", "write the values out")
            if key in mapping:
                raise self._error(event, inner, "duplicate key", f"first in line {self.keys[inner].line}")
            self.keys[inner] = self._mark(event)
            mapping[key] = self._value(next(events), events, inner)
        return mapping

    def _scalar(self, event: yaml.Event, path: KeyPath) -> Scalar:
        text = str(getattr(event, "value", ""))
        if getattr(event, "style", None) is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        if _NOT_FINITE.fullmatch(text):
            raise self._error(event, path, f"{text} is not a finite number", _FINITE)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if not math.isfinite(number):
                raise self._error(event, path, f"{text[:20]} is not a finite number", _FINITE)
            return number
        return text

    def _mark(self, event: yaml.Event) -> Mark:
        mark = event.start_mark
        return Mark(mark.line + 1, mark.column + 1, getattr(event, "style", None)) if mark else Mark(1, 1)

    def _error(self, event: yaml.Event, path: KeyPath, message: str, advice: str = "") -> ConfigError:
        mark = self._mark(event)
        return ConfigError(self.file, mark.line, mark.column, dotted(path), message, advice)
