"""Combinations of several axes in which every pair of values of two axes occurs, in place of their full product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allpairspy import AllPairs


def pairwise(axes: Mapping[str, Iterable[Any]]) -> tuple[tuple[str, ...], list[Sequence[Any]]]:
    """Return the arguments of `pytest.mark.parametrize`: the names of the axes, and values of them."""
    return tuple(axes), [tuple(row) for row in AllPairs([list(values) for values in axes.values()])]
