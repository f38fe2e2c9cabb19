"""Read the table of a profile: a CSV file of measured iterations."""

from __future__ import annotations

import csv
import io
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, did_you_mean, utf8_text
from otel_llm.formats.io.open_input import open_input
from otel_llm.scheduling.profiles.grid import COLUMNS, Grid, GridError, Measured, Point, make_grid

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.scheduling.profiles.grid import Points

MAX_BYTES: Final = 16 * 2**20
"""The size of a table of some 500,000 iterations."""
_SIZE: Final = re.compile(r"[0-9]{1,12}")
_LENGTH: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{0,20})?([eE][-+]?[0-9])?")
_NS_PER_MS: Final = 1_000_000


def read_grid(path: Path, max_bytes: int = MAX_BYTES) -> Grid:
    """Read a table.

    Raises:
        ConfigError: it is no such table: the column, the line and the remedy.
        UnreadableConfigError: it cannot be read.
    """
    points = _points(path, _text(path, max_bytes))
    try:
        return make_grid(points)
    except GridError as error:
        raise ConfigError(str(path), error.line, None, "", error.message, error.advice) from error


def _text(path: Path, max_bytes: int) -> str:
    try:
        with open_input(path) as stream:
            raw = stream.read(max_bytes + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableConfigError(str(path), None, None, "", reason, "name a CSV file that can be read") from error
    if len(raw) > max_bytes:
        raise ConfigError(str(path), None, None, "", f"more than {max_bytes:,} bytes", "leave out some of the sizes")
    return utf8_text(raw, str(path))


def _points(path: Path, text: str) -> Points:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    points: Points = {}
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header)
        places = [header.index(column) for column in COLUMNS]
        for cells in reader:
            if not cells:
                continue
            line = reader.line_num
            if len(cells) != len(header):
                columns = f"{len(cells)} cells, where the header has {len(header)}"
                raise ConfigError(str(path), line, None, "", columns, f"write {','.join(header)}")
            row = [cells[place].strip() for place in places]
            at = Point(*(_size(path, line, column, cell) for column, cell in zip(COLUMNS[:4], row, strict=False)))
            if at in points:
                raise ConfigError(
                    str(path), line, None, "", f"{at} is there twice", f"remove it, or line {points[at].line}"
                )
            points[at] = Measured(_length_ns(path, line, row[-1]), line)
    except csv.Error as error:
        raise ConfigError(str(path), reader.line_num, None, "", f"not CSV: {error}", "quote no cell") from error
    return points


def _check_header(path: Path, header: list[str]) -> None:
    advice = f"begin with {','.join(COLUMNS)}"
    for name in header:
        if name not in COLUMNS:
            raise ConfigError(str(path), 1, None, name[:80], "unknown column", did_you_mean(name[:80], COLUMNS))
        if header.count(name) > 1:
            raise ConfigError(str(path), 1, None, name, "the column is there twice", advice)
    missing = next((column for column in COLUMNS if column not in header), None)
    if missing is not None:
        raise ConfigError(str(path), 1, None, missing, "the column is missing", advice)


def _size(path: Path, line: int, column: str, cell: str) -> int:
    if not _SIZE.fullmatch(cell):
        advice = "write a whole number from 0 to 10^12 - 1"
        raise ConfigError(str(path), line, None, column, f"{cell[:40]!r} is no number of {_what(column)}", advice)
    return int(cell)


def _what(column: str) -> str:
    return "requests" if column == COLUMNS[0] else "tokens"


def _length_ns(path: Path, line: int, cell: str) -> Fraction:
    length_ns = Fraction(cell) * _NS_PER_MS if _LENGTH.fullmatch(cell) else Fraction(0)
    if not length_ns:
        advice = "write milliseconds above 0, as 5.81"
        raise ConfigError(str(path), line, None, COLUMNS[-1], f"{cell[:40]!r} is no duration", advice)
    return length_ns
