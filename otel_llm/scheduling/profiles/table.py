"""A profile by a table of measured iterations: linear in each axis, and beyond its ends from the last cell.

Look-ups are exact. In one cell of the grid, at one number of decodes, the length is a polynomial in KV, chunk and prior
with at most one factor of each. Its coefficients are brought to integers over one divisor when the cell is first asked
for, and kept.
"""

from __future__ import annotations

import csv
import io
import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError, did_you_mean, utf8_text
from otel_llm.formats.io.open_input import open_input
from otel_llm.scheduling.profiles.grid import COLUMNS, Grid, GridError, Measured, Point, make_grid
from otel_llm.scheduling.profiles.profile import Profile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_llm.scheduling.profiles.grid import Grid, Points


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
        positions = [header.index(column) for column in COLUMNS]
        for cells in reader:
            if not cells:
                continue
            line = reader.line_num
            if len(cells) != len(header):
                columns = f"{len(cells)} cells, where the header has {len(header)}"
                raise ConfigError(str(path), line, None, "", columns, f"write {','.join(header)}")
            row = [cells[position].strip() for position in positions]
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


MOST_CELLS: Final = 32_768
"""Polynomials with a chunk that are kept, 500 bytes each; beyond it all are made anew."""

Lengths = tuple[tuple[tuple[int, ...], ...], ...]
"""By KV, chunk and prior."""
Polynomial = tuple[int, ...]
"""The coefficients of 1, prior, chunk, chunk x prior, KV, KV x prior, KV x chunk, KV x chunk x prior; the divisor."""


class Axis(NamedTuple):
    """The ticks of an axis, as integers over a scale; there is one cell less than ticks, and at least one."""

    ticks: tuple[int, ...]
    scale: int = 1

    @property
    def edges(self) -> tuple[int, ...]:
        """Return the first whole coordinate of each cell but the first."""
        return tuple(-(-position // self.scale) for position in self.ticks[1:-1])


class Batch(NamedTuple):
    """The cells at one number of decodes."""

    edges: tuple[int, ...]
    """The first KV tokens of each cell but the first."""
    cells: tuple[Polynomial, ...]
    """Those without a chunk: the coefficients of 1 and KV, and the divisor."""
    kv: Axis
    lengths: Lengths
    """In units of 1 / `divisor` ns."""
    divisor: int


@dataclass(frozen=True, kw_only=True)
class TableProfile(Profile):
    """A profile by a table; an iteration lasts at least as long as the shortest measured one."""

    grid: Grid = field(repr=False)
    most_cells: int = field(default=MOST_CELLS, repr=False, compare=False)
    _by_decodes: dict[int, Batch] = field(default_factory=dict, init=False, repr=False, compare=False)
    _cells: dict[tuple[int, int, int, int], Polynomial] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _shortest_ns: int = field(init=False, repr=False, compare=False)
    _chunk_edges: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _prior_edges: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shortest_ns", self.grid.smallest_ns)
        object.__setattr__(self, "_chunk_edges", Axis(self.grid.chunks).edges)
        object.__setattr__(self, "_prior_edges", Axis(self.grid.priors).edges)

    @property
    def batch_edges(self) -> tuple[int, ...]:
        """The measured batches; all of them if the KV axis is not the context, which is no line in between then."""
        return self.grid.decodes if self.grid.per_decode else tuple(range(1, self.max_batch + 1))

    @property
    def chunk_edges(self) -> tuple[int, ...]:
        """The measured chunks."""
        return self.grid.chunks

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:
        """Return how long one iteration lasts, without overhead; `prior` counts only with a chunk, KV with decodes."""
        batch = self._by_decodes.get(decodes)
        if batch is None:
            batch = self._batch(decodes)
        position = bisect_right(batch[0], kv_tokens)
        if not chunk:
            base, slope, divisor = batch[1][position]
            length_ns = (base + slope * kv_tokens) // divisor
        else:
            key = (decodes, position, bisect_right(self._chunk_edges, chunk), bisect_right(self._prior_edges, prior))
            cell = self._cells.get(key)
            if cell is None:
                cell = self._cell(key)
            one, p, c, cp, k, kp, kc, kcp, divisor = cell
            length_ns = (
                one + p * prior + (c + cp * prior) * chunk + (k + kp * prior + (kc + kcp * prior) * chunk) * kv_tokens
            ) // divisor
        if length_ns < self._shortest_ns:
            return self._shortest_ns
        return length_ns

    def _batch(self, decodes: int) -> Batch:
        grid = self.grid
        scale = math.lcm(*(position.denominator for position in grid.kv))
        times = decodes if grid.per_decode and decodes else 1
        kv = Axis(tuple(int(position * scale) * times for position in grid.kv), scale)
        edges = kv.edges if decodes else ()
        lengths, divisor = _between(Axis(grid.decodes), grid.values, decodes)
        batch = Batch(edges, (), kv, lengths, divisor * grid.unit)
        cells = [self._polynomial(batch, decodes, position, 0, 0) for position in range(len(edges) + 1)]
        batch = batch._replace(cells=tuple(_reduced(cell[0], cell[4], cell[8]) for cell in cells))
        self._by_decodes[decodes] = batch
        return batch

    def _cell(self, key: tuple[int, int, int, int]) -> Polynomial:
        if len(self._cells) >= self.most_cells:
            self._cells.clear()
        decodes, k, c, p = key
        cell = self._cells[key] = self._polynomial(self._by_decodes[decodes], decodes, k, c, p)
        return cell

    def _polynomial(self, batch: Batch, decodes: int, k: int, c: int, p: int) -> Polynomial:
        divisor = batch.divisor
        corners = [
            batch.lengths[at][of][before]
            for at in _ends(batch.kv, k)
            for of in _ends(Axis(self.grid.chunks), c)
            for before in _ends(Axis(self.grid.priors), p)
        ]
        # Corners are by KV, chunk and prior; each pass turns the pairs of one axis into coefficients of 1 and of it.
        for axis, position, apart in ((batch.kv, k, 4), (Axis(self.grid.chunks), c, 2), (Axis(self.grid.priors), p, 1)):
            low, high, scale = _span(axis, position)
            divisor *= high - low
            for first in range(8):
                if not first & apart:
                    at_low, at_high = corners[first], corners[first | apart]
                    corners[first] = at_low * high - at_high * low
                    corners[first | apart] = scale * (at_high - at_low)
        if not decodes:
            corners[4:] = [0] * 4  # there is no KV
        halves = [2 * one for one in corners]
        halves[0] += divisor
        return _reduced(*halves, 2 * divisor)


def _between(axis: Axis, values: Sequence[Lengths], coordinate: int) -> tuple[Lengths, int]:
    """Return the lengths at one number of decodes, and how often their unit is divided."""
    position = bisect_right(axis.edges, coordinate)
    first, last = _ends(axis, position)
    low, high, _ = _span(axis, position)
    before, after = high - coordinate, coordinate - low
    if first == last:
        return values[first], 1
    return tuple(
        tuple(
            tuple(before * one + after * other for one, other in zip(ones, others, strict=True))
            for ones, others in zip(plane, following, strict=True)
        )
        for plane, following in zip(values[first], values[last], strict=True)
    ), high - low


def _ends(axis: Axis, position: int) -> tuple[int, int]:
    """Return the ends of a cell; an axis of one tick has one cell, with two equal ends."""
    return (position, position + 1) if len(axis.ticks) > 1 else (0, 0)


def _span(axis: Axis, position: int) -> tuple[int, int, int]:
    """Return the coordinates of the ends of a cell and their scale; any for an axis of one tick, which is constant."""
    return (axis.ticks[position], axis.ticks[position + 1], axis.scale) if len(axis.ticks) > 1 else (0, 1, 1)


def _reduced(*numbers: int) -> tuple[int, ...]:
    common = math.gcd(*numbers)
    return tuple(number // common for number in numbers)
