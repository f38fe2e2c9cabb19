"""Measured iterations as one complete grid: its axes, what is missing, and how much it may dip.

The axes are decodes, KV, chunk and prior. The KV axis is the context of one decode, KV / B, if every batch size was
measured at the same contexts; else it is KV itself. If large batches were not measured at large KV, which the cache
cannot hold, the grid continues their last cell.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SMALL_DIP: Final = Fraction(1, 10)
"""A length may be this share below a smaller iteration's: kernels are measured, and change with the size."""
COLUMNS: Final = ("decode_batch", "decode_kv_tokens", "prefill_chunk_tokens", "prefill_prior_kv_tokens", "iteration_ms")


class Point(NamedTuple):
    """The size of an iteration: decodes, the KV tokens of them, prefill tokens, and the tokens prefilled before."""

    decodes: int
    kv_tokens: int
    chunk: int
    prior: int

    def __str__(self) -> str:
        return ", ".join(f"{column} {value}" for column, value in zip(COLUMNS, self, strict=False))


class Measured(NamedTuple):
    """How long an iteration lasted (ns), and the line of the file that says so."""

    length_ns: Fraction
    line: int


Points = dict[Point, Measured]


class GridError(Exception):
    """The points make no grid; `line`: the point at fault, or the nearest to a missing one."""

    def __init__(self, line: int, message: str, advice: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Grid:
    """A complete grid: the lengths `values[b][k][c][p]` at `decodes[b]`, `kv[k]`, `chunks[c]`, `priors[p]`."""

    decodes: tuple[int, ...]
    kv: tuple[Fraction, ...]
    per_decode: bool
    """Whether the axis `kv` is KV / B."""
    chunks: tuple[int, ...]
    priors: tuple[int, ...]
    values: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
    unit: int
    """`values` are in 1 / unit ns."""
    smallest_ns: int
    """The smallest measured length, rounded to the ns, half up; at least 1."""
    points: int
    """How many were measured."""


def make_grid(points: Points, small_dip: Fraction = SMALL_DIP) -> Grid:
    """Make a grid of measured iterations.

    Raises:
        GridError: there are none, one is missing, or one is shorter by more than `small_dip` than a smaller iteration.
    """
    _refuse_meaningless(points)
    decodes = sorted({at.decodes for at in points})
    chunks = sorted({at.chunk for at in points})
    priors = sorted({at.prior for at in points if at.chunk} or {0})
    measured_kv = {size: sorted({at.kv_tokens for at in points if at.decodes == size}) for size in decodes}
    kv, per_decode = _kv_axis(points, measured_kv)
    _refuse_dips(points, small_dip, per_decode=per_decode)
    rows = []
    for size in decodes:
        own = [Fraction(tokens, size or 1) if per_decode else Fraction(tokens) for tokens in measured_kv[size]]
        planes = [_plane(points, size, tokens, chunks, priors) for tokens in measured_kv[size]]
        rows.append(_continued(planes, own, kv))
    unit = math.lcm(*(length.denominator for row in rows for plane in row for line in plane for length in line))
    return Grid(
        decodes=tuple(decodes),
        kv=kv,
        per_decode=per_decode,
        chunks=tuple(chunks),
        priors=tuple(priors),
        values=tuple(
            tuple(tuple(tuple(int(length * unit) for length in line) for line in plane) for plane in row)
            for row in rows
        ),
        unit=unit,
        smallest_ns=max(1, math.floor(min(one.length_ns for one in points.values()) + Fraction(1, 2))),
        points=len(points),
    )


def _refuse_meaningless(points: Points) -> None:
    if not points:
        raise GridError(1, "no measured iteration", "write a row for each")
    for at, measured in points.items():
        if not at.decodes and at.kv_tokens:
            raise GridError(measured.line, f"no decodes, and {at.kv_tokens} KV tokens of them", f"write {COLUMNS[1]} 0")
        if not at.chunk and at.prior:
            raise GridError(measured.line, f"no chunk, and {at.prior} tokens before it", f"write {COLUMNS[3]} 0")


def _kv_axis(points: Points, measured_kv: Mapping[int, Sequence[int]]) -> tuple[tuple[Fraction, ...], bool]:
    """Return the KV axis, and whether it is KV / B: of one batch size alone nothing tells, and it is KV."""
    sizes = [size for size in measured_kv if size]
    readings = [({size: [Fraction(tokens) for tokens in measured_kv[size]] for size in sizes}, False)]
    if len(measured_kv) > 1:
        readings.insert(0, ({size: [Fraction(one, size) for one in measured_kv[size]] for size in sizes}, True))
    for axes, per_decode in readings:
        longest = max(axes.values(), key=len, default=[Fraction(0)])
        if all(own == longest[: len(own)] for own in axes.values()):
            for size, own in axes.items():
                if len(own) == 1 < len(longest):
                    line = _line_of(points, size, measured_kv[size][0])
                    raise GridError(line, f"{COLUMNS[0]} {size} has one {COLUMNS[1]}", "measure it at two at least")
            return tuple(longest), per_decode
    raise _gap_in_kv(points, measured_kv)


def _gap_in_kv(points: Points, measured_kv: Mapping[int, Sequence[int]]) -> GridError:
    """Return the error for the first gap: of the two readings of the axis, in the one that lacks fewer points."""
    gaps: dict[bool, list[Point]] = {True: [], False: []}
    for per_decode, found in gaps.items():
        every = {Fraction(one, size if per_decode else 1) for size in measured_kv if size for one in measured_kv[size]}
        for size in filter(None, measured_kv):
            scale = size if per_decode else 1
            expected = sorted(one * scale for one in every if one * scale < measured_kv[size][-1])
            found += [Point(size, math.ceil(one), 0, 0) for one in expected if one not in measured_kv[size]]
    at = min((found for found in gaps.values() if found), key=len)[0]
    line = _line_of(points, at.decodes, min(one for one in measured_kv[at.decodes] if one >= at.kv_tokens))
    return GridError(
        line,
        f"a gap: no row with {COLUMNS[0]} {at.decodes}, {COLUMNS[1]} {at.kv_tokens} before this one",
        "measure every batch at the same KV / B, or at the same KV; the largest may be missing",
    )


def _line_of(points: Points, size: int, tokens: int) -> int:
    return min(one.line for at, one in points.items() if (at.decodes, at.kv_tokens) == (size, tokens))


def _refuse_dips(points: Points, small_dip: Fraction, *, per_decode: bool) -> None:
    for axis, column in enumerate(COLUMNS[:4]):
        lines: dict[tuple[int | Fraction, ...], list[tuple[int | Fraction, Point]]] = defaultdict(list)
        for at in points:
            place: list[int | Fraction] = list(at)
            if per_decode and at.decodes:
                place[1] = Fraction(at.kv_tokens, at.decodes)
            along = place.pop(axis)
            lines[tuple(place)].append((along, at))
        for line in lines.values():
            highest = points[min(line)[1]]
            for _, at in sorted(line):
                measured = points[at]
                if measured.length_ns < highest.length_ns * (1 - small_dip):
                    raise GridError(
                        measured.line,
                        f"{_ms(measured.length_ns)} ms are less than the {_ms(highest.length_ns)} ms of line "
                        f"{highest.line}, with a smaller {column}",
                        f"measure both again; dips of up to {float(100 * small_dip):g} % are accepted",
                    )
                highest = max(highest, measured, key=lambda one: one.length_ns)


def _plane(
    points: Points, size: int, tokens: int, chunks: Sequence[int], priors: Sequence[int]
) -> list[list[Fraction]]:
    """Return the lengths by chunk and prior of one batch; those of no work at all continue the first chunks."""
    plane: dict[int, list[Fraction]] = {}
    for chunk in chunks:
        wanted = [Point(size, tokens, chunk, prior if chunk else 0) for prior in priors]
        missing = next((at for at in wanted if at not in points), None)
        if missing is None:
            plane[chunk] = [points[at].length_ns for at in wanted]
        elif size or chunk:
            line = _line_of(points, size, tokens)
            raise GridError(line, f"a gap: no row with {missing}", "measure every batch at the same chunks and priors")
    if len(plane) < len(chunks):
        first, second = chunks[1], chunks[min(2, len(chunks) - 1)]
        plane[0] = [
            _on_line(0, (first, low), (second, high)) for low, high in zip(plane[first], plane[second], strict=True)
        ]
    return [plane[chunk] for chunk in chunks]


def _continued(
    planes: list[list[list[Fraction]]], own: Sequence[Fraction], kv: Sequence[Fraction]
) -> list[list[list[Fraction]]]:
    """Return the planes at all of `kv`: those beyond `own` continue its last cell, a single one is constant."""
    before, last = planes[max(0, len(own) - 2)], planes[-1]
    beyond = [
        [
            [
                _on_line(at, (own[max(0, len(own) - 2)], low), (own[-1], high))
                for low, high in zip(lows, highs, strict=True)
            ]
            for lows, highs in zip(before, last, strict=True)
        ]
        for at in kv[len(own) :]
    ]
    return planes + beyond


def _on_line(
    at: int | Fraction, first: tuple[int | Fraction, Fraction], second: tuple[int | Fraction, Fraction]
) -> Fraction:
    """Return the value at `at` of the line through two points; of one point, its value."""
    if first[0] == second[0]:
        return first[1]
    return first[1] + (second[1] - first[1]) * Fraction(at - first[0]) / (second[0] - first[0])


def _ms(length_ns: Fraction) -> str:
    return f"{float(length_ns) / 1e6:.6g}"
