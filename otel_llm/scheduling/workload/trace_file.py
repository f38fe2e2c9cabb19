"""Read a public request trace: Azure's CSV or Mooncake's JSON lines, arrivals and lengths."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.config.durations import exact
from otel_llm.config.strict_model import quoted
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, utf8_text
from otel_llm.formats.io.open_input import open_input

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MOST_TOKENS: Final = 10**9
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE: Final = ("timestamp", "input_length", "output_length")
_INSTANT: Final = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(?:Z|\+00:00)?", re.ASCII)
_LATEST_NS: Final = 8 * 10**18
_ADVICE: Final = f"a trace is CSV with {', '.join(_AZURE)}, or JSON lines with {', '.join(_MOONCAKE)}"


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace sorted by time: `times_ns` (T,) int64 on any axis, `input` and `output` (T,) int64, tokens; T > 0."""

    times_ns: Ints
    input: Ints
    output: Ints

    def __len__(self) -> int:
        return len(self.times_ns)


def read_trace(path: Path) -> Trace:
    """Read a trace; rows of one time stay in their order.

    Raises:
        ConfigError: no rows, or a row that is refused: file, line, column and remedy.
        UnreadableConfigError: the file cannot be read.
    """
    try:
        with open_input(path) as stream:
            raw = stream.read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableConfigError(str(path), None, None, "", reason, "name a file that can be read") from error
    text = utf8_text(raw, str(path), _ADVICE)
    rows = list(_mooncake(path, text) if text.lstrip()[:1] == "{" else _azure(path, text))
    if not rows:
        raise ConfigError(str(path), 1, None, "", "no rows", _ADVICE)
    columns = np.array(rows, np.int64)
    ordered = columns[np.argsort(columns[:, 0], kind="stable")]
    return Trace(ordered[:, 0].copy(), ordered[:, 1].copy(), ordered[:, 2].copy())


def _azure(path: Path, text: str) -> Iterator[tuple[int, int, int]]:
    reader = csv.DictReader(text.splitlines())
    try:
        yield from _azure_rows(path, reader)
    except csv.Error as error:
        raise ConfigError(str(path), reader.reader.line_num, None, "", f"not CSV: {error}", _ADVICE) from error


def _azure_rows(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[int, int, int]]:
    missing = [name for name in _AZURE if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(str(path), 1, None, missing[0], "no such column", _ADVICE)
    header = reader.fieldnames or ()
    twice = [name for name in _AZURE if header.count(name) > 1]
    if twice:
        raise ConfigError(str(path), 1, None, twice[0], "the column is there twice", "keep one of them")
    for row in reader:
        line = reader.line_num
        if None in row:
            message = f"more cells than the {len(header)} columns of the header"
            raise ConfigError(str(path), line, None, "", message, f"write {','.join(header)}")
        tokens = [_tokens(path, line, name, row[name]) for name in _AZURE[1:]]
        yield _instant(path, line, row[_AZURE[0]]), tokens[0], tokens[1]


def _mooncake(path: Path, text: str) -> Iterator[tuple[int, int, int]]:
    for line, text_line in enumerate(text.splitlines(), 1):
        if not text_line.strip():
            continue
        try:
            row: Any = json.loads(text_line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(str(path), line, None, "", f"not JSON: {error}", _ADVICE) from error
        if not isinstance(row, dict):
            raise ConfigError(str(path), line, None, "", "not an object", _ADVICE)
        tokens = [_tokens(path, line, name, row.get(name)) for name in _MOONCAKE[1:]]
        yield _milliseconds(path, line, row.get(_MOONCAKE[0])), tokens[0], tokens[1]


def _instant(path: Path, line: int, text: str | None) -> int:
    found = _INSTANT.fullmatch(text or "")
    try:
        since = None if found is None else datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError:
        since = None
    if found is None or since is None:
        advice = "write UTC as 2023-11-16 18:15:46.6805900"
        raise ConfigError(str(path), line, None, _AZURE[0], f"{quoted(text)} is no time", advice)
    return _checked(path, line, _AZURE[0], round(since.timestamp()) * 10**9 + int((found[2] or "0").ljust(9, "0")))


def _milliseconds(path: Path, line: int, value: object) -> int:
    number = _number(value)
    if number is None or isinstance(value, str):
        raise ConfigError(str(path), line, None, _MOONCAKE[0], f"{quoted(value)} is no number", "write milliseconds")
    return _checked(path, line, _MOONCAKE[0], round(number * 10**6))


def _number(value: object) -> Fraction | None:
    """Return a number exactly, also one in a string; None for anything else, and for what is not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return Fraction(value) if isinstance(value, int) else exact(float(value))
    except ValueError:
        return None


def _checked(path: Path, line: int, name: str, time_ns: int) -> int:
    if not 0 <= time_ns <= _LATEST_NS:
        raise ConfigError(str(path), line, None, name, "out of range", "times are from 1970 to 2223, or from 0")
    return time_ns


def _tokens(path: Path, line: int, name: str, value: object) -> int:
    number = _number(value)
    if number is None or number.denominator != 1 or not 0 <= number <= MOST_TOKENS:
        advice = f"write a whole number from 0 to {MOST_TOKENS}"
        raise ConfigError(str(path), line, None, name, f"{quoted(value)} is no number of tokens", advice)
    return int(number)
