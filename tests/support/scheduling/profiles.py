"""Profiles for tests: tables of a few points, and an independent, slow interpolation of them."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final

from otel_llm.scheduling.profiles.grid import Measured, Point, Points, make_grid
from otel_llm.scheduling.profiles.table import MOST_CELLS, TableProfile

Line = list[tuple[int | Fraction, Fraction]]
"""Points of a function of one number, by coordinate."""
SMALL_ENGINE: Final[dict[str, Any]] = {
    "model": "m",
    "accelerator": "a",
    "engine": "e",
    "tensor_parallel": 1,
    "source": "a test",
    "kv_tokens": 10_000,
    "max_batch": 64,
    "max_batched_tokens": 512,
    "step_overhead_ns": 0,
    "request_overhead_ns": 0,
}
"""All of a profile but its name and the times of its iterations."""


def measured(lengths_ns: dict[tuple[int, int, int, int], int | Fraction]) -> Points:
    """Return points as a file gives them, in its order from line 2."""
    return {
        Point(*at): Measured(Fraction(length_ns), line)
        for line, (at, length_ns) in enumerate(lengths_ns.items(), start=2)
    }


def table(
    lengths_ns: dict[tuple[int, int, int, int], int | Fraction],
    small_dip: Fraction = Fraction(1, 10),
    most_cells: int = MOST_CELLS,
) -> TableProfile:
    """Return a profile of (decodes, KV, chunk, prior): ns."""
    return TableProfile(
        name="small",
        **SMALL_ENGINE,
        grid=make_grid(measured(lengths_ns), small_dip),
        most_cells=most_cells,
    )


def interpolated_ns(
    lengths_ns: dict[tuple[int, int, int, int], int | Fraction],
    at: tuple[int, int, int, int],
    *,
    kv_per_decode: bool,
) -> int:
    """Return the length of an iteration from the raw points: one axis inside the other, in fractions."""
    decodes, kv_tokens, chunk, prior = at
    kv: int | Fraction = kv_tokens if decodes else 0
    if kv_per_decode and decodes:
        kv = Fraction(kv_tokens, decodes)
    by_batch: Line = []
    for size in sorted({point[0] for point in lengths_ns}):
        by_kv: Line = []
        for tokens in sorted({point[1] for point in lengths_ns if point[0] == size}):
            by_chunk: Line = []
            for part in sorted({point[2] for point in lengths_ns if point[:2] == (size, tokens)}):
                mine = {point: length for point, length in lengths_ns.items() if point[:3] == (size, tokens, part)}
                by_prior: Line = [(point[3], Fraction(mine[point])) for point in sorted(mine)]
                by_chunk.append((part, on_line(by_prior, prior if chunk else 0)))
            by_kv.append((Fraction(tokens, size) if kv_per_decode and size else tokens, on_line(by_chunk, chunk)))
        by_batch.append((size, on_line(by_kv, kv)))
    length_ns = on_line(by_batch, decodes)
    smallest_ns = math.floor(min(map(Fraction, lengths_ns.values())) + Fraction(1, 2))
    return max(1, smallest_ns, math.floor(length_ns + Fraction(1, 2)))


def on_line(line: Line, at: int | Fraction) -> Fraction:
    """Return the value at a coordinate: beyond the ends from the last cell, of one point its value."""
    if len(line) == 1:
        return line[0][1]
    place = 1
    while place < len(line) - 1 and line[place][0] <= at:
        place += 1
    (x0, y0), (x1, y1) = line[place - 1], line[place]
    return y0 + (y1 - y0) * Fraction(at - x0) / (x1 - x0)
