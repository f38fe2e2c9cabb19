"""A profile by a formula: exact in decimals, rounded once, half up, and never below its floor."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.profiles import SMALL_ENGINE

from otel_llm.scheduling.profiles.profile import LinearProfile, Terms

NAMES = ("base", "per_decode", "per_kv_token", "per_chunk_token", "per_chunk_kv")


def linear(*factors: str, floor_ns: int = 1) -> LinearProfile:
    return LinearProfile(
        name="formula",
        **SMALL_ENGINE,
        terms=Terms(**dict(zip(NAMES, map(Fraction, factors), strict=False)), floor_ns=floor_ns),
    )


@pytest.mark.parametrize(
    ("at", "length_ns"),
    [
        ((0, 0), 1000),
        ((1, 10), 1003),  # 1000 + 2 + 1
        ((1, 5), 1003),  # 1002.5
        ((1, 4), 1002),  # 1002.4
        ((0, 0, 3), 1001),  # 1000.75
        ((0, 0, 2), 1001),  # 1000.5
        ((0, 0, 1), 1000),
        ((0, 0, 1, 1), 1001),  # 1000 + 0.25 + 0.26
        ((0, 0, 10, 10), 1029),  # 1000 + 2.5 + 26
        ((0, 0, 0, 10), 1000),
        ((2, 15, 10, 10), 1034),  # 1034.0
    ],
)
def test_cases_by_hand(at: tuple[int, ...], length_ns: int) -> None:
    assert linear("1000", "2", "0.1", "0.25", "0.26").iteration_ns(*at) == length_ns


def test_a_tenth_is_a_tenth() -> None:
    """In binary 0.1 x 5 x 3 + 0.7 x 10 would fall short of the half."""
    assert linear("0", "0.1", "0.7", "0", "0").iteration_ns(15, 10) == 9  # 8.5


def test_nothing_is_below_the_floor() -> None:
    profile = linear("10", "1", "0", "0", "0", floor_ns=15)
    assert [profile.iteration_ns(decodes, 0) for decodes in (0, 5, 6)] == [15, 15, 16]
    assert linear("0").iteration_ns(0, 0) == 1


@given(
    st.lists(st.decimals(0, 10**6, places=4), min_size=5, max_size=5),
    st.tuples(*[st.integers(0, 10**6)] * 4),
)
def test_the_sum_is_exact(factors: list[object], at: tuple[int, int, int, int]) -> None:
    base, decode, kv_token, chunk_token, chunk_kv = (Fraction(str(one)) for one in factors)
    decodes, kv, chunk, prior = at
    exact = base + decode * decodes + kv_token * kv + chunk_token * chunk + chunk_kv * chunk * prior
    found = linear(*map(str, factors)).iteration_ns(*at)
    assert found == max(1, math.floor(exact + Fraction(1, 2)))
    assert type(found) is int
