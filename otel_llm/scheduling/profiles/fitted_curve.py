"""The length of an iteration as a sum of curves, fitted to recorded iterations.

One curve of the decodes and one of the chunk, each linear between its nodes and never falling, a cost of each KV token,
and one of each pair of a chunk's token and a token before it. Engines are not linear in the decodes: a small batch
costs as much as one decode, and kernels change with the size. A table with rows at the nodes says the same exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from otel_llm.scheduling.profiles.grid import COLUMNS, Point

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from otel_llm.scheduling.profiles.recorded_steps import Sample

    Floats = npt.NDArray[np.float64]

ROUNDS: Final = 25
FEWEST_BETWEEN: Final = 20
"""Iterations between two nodes of a curve."""
_DECIMALS: Final = 5
_NS_PER_MS: Final = 1_000_000
_CLOSE: Final = 1e-9


class Nodes(NamedTuple):
    """The sizes between which an iteration's length is linear, from 0 on, in order."""

    decodes: tuple[int, ...]
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """A fitted sum of curves; `values`: its coefficients in ns, none below zero."""

    nodes: Nodes
    values: tuple[float, ...]

    @property
    def per_kv_token_ns(self) -> float:
        """Return the cost of a token of a decode's context."""
        return self.values[-2]

    @property
    def per_chunk_kv_ns(self) -> float:
        """Return the cost of a chunk's token and a token before it."""
        return self.values[-1]

    def stretched(self, share: float) -> Curve:
        """Return the curve of iterations that take a share more."""
        return Curve(self.nodes, tuple(value * (1 + share) for value in self.values))

    def lengths_ns(self, points: Sequence[Point]) -> Floats:
        """Return the lengths of iterations (n,) float64, ns."""
        found: Floats = _columns(points, self.nodes) @ np.array(self.values)
        return found

    def table(self, context: int, prior: int) -> str:
        """Return the curves as a profile's table; `context` and `prior`: its second places on these axes, tokens."""
        points = [
            Point(decodes, decodes * held, chunk, before)
            for decodes in self.nodes.decodes
            for held in ((0, context) if decodes else (0,))
            for chunk in self.nodes.chunks
            for before in ((0, prior) if chunk else (0,))
            if decodes or chunk
        ]
        lines = [",".join(COLUMNS)]
        for at, length_ns in zip(points, self.lengths_ns(points), strict=True):
            length_ms = max(10.0**-_DECIMALS, length_ns / _NS_PER_MS)
            lines.append(",".join(map(str, at)) + f",{length_ms:.{_DECIMALS}f}")
        return "\n".join(lines) + "\n"


def fit_curve(samples: Sequence[Sample], rounds: int = ROUNDS) -> Curve:
    """Fit the curves: the least sum of deviations over the predicted length, with no coefficient below zero.

    Deviations, and not their squares: a pause of the machine only ever adds to an iteration. Over the predicted and not
    the measured length, so that as many iterations are longer as are shorter. The sum is minimised by weighted least
    squares whose weights are the inverse deviations and predictions of the round before.
    """
    points = [Point(*sample[:4]) for sample in samples]
    nodes = Nodes(_nodes([at.decodes for at in points]), _nodes([at.chunk for at in points], 1))
    columns = _columns(points, nodes)
    lengths = np.array([sample.length_ns for sample in samples], float)
    scale = np.maximum(columns.max(axis=0), 1.0)
    scaled = columns / scale
    predicted = np.full(len(lengths), max(1.0, lengths.mean()))
    weights = np.ones(len(lengths))
    values = np.zeros(columns.shape[1])
    for _ in range(rounds):
        factors = weights / predicted
        values = non_negative(scaled * factors[:, None], lengths * factors)
        predicted = np.maximum(scaled @ values, 1.0)
        weights = 1 / np.sqrt(np.maximum(np.abs(lengths / predicted - 1), 1e-4))
    return Curve(nodes, tuple((values / scale).tolist()))


def non_negative(columns: Floats, wanted: Floats) -> Floats:
    """Return the least squares with no coefficient below zero.

    By active sets: Lawson and Hanson, Solving Least Squares Problems, chapter 23.
    """
    square, right = columns.T @ columns, columns.T @ wanted
    values = np.zeros(len(right))
    free = np.zeros(len(right), bool)
    for _ in range(10 * len(right)):
        gain = right - square @ values
        gain[free] = 0
        if gain.max() <= _CLOSE * max(1.0, float(np.abs(right).max())):
            break
        free[int(gain.argmax())] = True
        values = _within(square, right, values, free)
    return values


def _within(square: Floats, right: Floats, values: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """Solve for the free coefficients, and fix at zero (in `free`) those that would fall below it."""
    while free.any():
        wanted = np.zeros(len(right))
        wanted[free] = np.linalg.lstsq(square[np.ix_(free, free)], right[free], rcond=None)[0]
        below = free & (wanted <= 0)
        if not below.any():
            return wanted
        way = float((values[below] / np.maximum(values[below] - wanted[below], 1e-300)).min())
        values = values + way * (wanted - values)
        free &= values > _CLOSE * max(1.0, float(values.max()))
        values[~free] = 0
    return np.zeros(len(right))


def _nodes(sizes: Sequence[int], *first: int) -> tuple[int, ...]:
    """Return 0, powers of two with enough iterations between them, and the largest size."""
    seen = np.array([size for size in sizes if size])
    nodes = [0, *first]
    if not len(seen):
        return tuple(nodes)
    most = int(seen.max())
    for power in range(most.bit_length()):
        if nodes[-1] < 2**power < most and _between(seen, nodes[-1], 2**power) >= FEWEST_BETWEEN:
            nodes.append(2**power)
    return tuple(nodes) if most == nodes[-1] else (*nodes, most)


def _between(seen: npt.NDArray[np.int64], low: int, high: int) -> int:
    return int(((seen > low) & (seen <= high)).sum())


def _columns(points: Sequence[Point], nodes: Nodes) -> Floats:
    """Return the factors of the coefficients: 1, the way in each interval of both curves, KV, chunk x prior."""
    sizes = np.array(points, float).reshape(-1, 4)
    decodes, kv_tokens, chunk, prior = sizes.T
    found: Floats = np.column_stack(
        [np.ones(len(sizes)), *_ways(decodes, nodes.decodes), *_ways(chunk, nodes.chunks), kv_tokens, chunk * prior]
    )
    return found


def _ways(sizes: Floats, nodes: tuple[int, ...]) -> list[Floats]:
    """Return how far each size reaches into each interval between nodes; the last one goes on."""
    ends = [*nodes[1:-1], np.inf] if len(nodes) > 1 else []
    return [np.clip(sizes - low, 0, high - low) for low, high in zip(nodes, ends, strict=False)]
