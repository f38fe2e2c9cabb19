"""Look-ups in a table: cases by hand, an independent interpolation in fractions, and what holds for any table."""

from __future__ import annotations

import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.profiles import interpolated_ns, table

Lengths = dict[tuple[int, int, int, int], int | Fraction]

SMALL: Lengths = {
    # 2 and 4 decodes at contexts of 100 and 200 tokens; a chunk of 64 after 0 or 1,000 tokens.
    (2, 200, 0, 0): 1000,
    (2, 200, 64, 0): 2000,
    (2, 200, 64, 1000): 3000,
    (2, 400, 0, 0): 1200,
    (2, 400, 64, 0): 2200,
    (2, 400, 64, 1000): 3200,
    (4, 400, 0, 0): 1400,
    (4, 400, 64, 0): 2400,
    (4, 400, 64, 1000): 3400,
    (4, 800, 0, 0): 1800,
    (4, 800, 64, 0): 2800,
    (4, 800, 64, 1000): 3800,
}


@pytest.mark.parametrize(
    ("at", "length_ns"),
    [
        ((2, 200, 0, 0), 1000),  # measured
        ((4, 800, 64, 1000), 3800),
        ((2, 300, 0, 0), 1100),  # half way in KV
        ((3, 300, 0, 0), 1200),  # half way in decodes, at a context of 100: (1000 + 1400) / 2
        ((3, 600, 0, 0), 1500),  # at a context of 200: (1200 + 1800) / 2
        ((3, 450, 0, 0), 1350),  # at a context of 150: (1100 + 1600) / 2
        ((2, 200, 32, 0), 1500),  # half way in the chunk
        ((2, 200, 32, 500), 1750),  # of a chunk of 64 after 500: 2500; half way to none: 1000
        ((2, 200, 64, 500), 2500),
        ((2, 200, 128, 0), 3000),  # beyond its end, at the pace of the last cell
        ((2, 200, 64, 2000), 4000),
        ((2, 600, 0, 0), 1400),
        ((4, 1200, 0, 0), 2200),
        ((6, 600, 0, 0), 1800),  # context 100: 1000, 1400, 1800
        ((6, 1200, 0, 0), 2400),  # context 200: 1200, 1800, 2400
        ((1, 200, 0, 0), 1000),  # context 200: 1200 - 300 is below the shortest
        ((2, 200, 0, 4000), 1000),  # nothing is before no chunk
        ((0, 0, 64, 0), 1600),  # context 0: 1800 and 2000 with 2 and 4 decodes
        ((0, 999, 64, 0), 1600),  # no decodes have no KV
    ],
)
def test_cases_by_hand(at: tuple[int, int, int, int], length_ns: int) -> None:
    assert table(SMALL).iteration_ns(*at) == length_ns


def test_without_decodes_kv_does_not_count_and_a_chunk_of_0_continues_the_first_chunks() -> None:
    """As in the tables that ship: no row has neither decodes nor a chunk."""
    profile = table(
        {(0, 0, 64, 0): 1000, (0, 0, 128, 0): 1100, (1, 100, 0, 0): 800, (1, 100, 64, 0): 1000, (1, 100, 128, 0): 1100}
    )
    assert [profile.iteration_ns(0, kv, chunk) for kv, chunk in ((0, 32), (999, 32), (0, 96), (0, 1), (0, 0))] == [
        950, 950, 1050, 902, 900,
    ]  # fmt: skip


def test_an_axis_of_one_value_is_constant() -> None:
    profile = table({(8, 800, 0, 0): 1000})
    assert {profile.iteration_ns(*at) for at in ((8, 800, 0, 0), (1, 1, 1, 1), (500, 10**6, 8192, 10**5))} == {1000}
    profile = table({(0, 0, 64, 512): 1000, (0, 0, 128, 512): 2000})
    assert [profile.iteration_ns(9, 900, chunk, prior) for chunk, prior in ((64, 0), (96, 9999))] == [1000, 1500]


def test_one_batch_size_alone_is_read_by_kv_and_two_by_the_context_where_they_share_it() -> None:
    alone = table({(8, 800, 0, 0): 1000, (8, 1600, 0, 0): 2000})
    assert [alone.iteration_ns(decodes, 1200) for decodes in (4, 8, 16)] == [1500] * 3
    plain = table({(size, kv, 0, 0): 1000 + kv + 10 * size for size in (4, 8) for kv in (800, 1600)})
    assert [plain.iteration_ns(*at) for at in ((4, 800), (6, 1000), (16, 3200))] == [1840, 2060, 4360]
    shared = table(
        {(size, size * context, 0, 0): 1000 + size * context for size in (0, 8) for context in (100, 200)[: size + 1]}
    )
    assert [shared.iteration_ns(*at) for at in ((0, 0), (4, 400), (4, 600), (8, 1200), (16, 1600))] == [
        1000, 1400, 1600, 2200, 2600,
    ]  # fmt: skip


def test_a_large_batch_continues_its_last_cell_where_the_table_was_cut() -> None:
    lengths: Lengths = {(1, kv, 0, 0): 1000 + kv for kv in (100, 200, 400, 800)}
    lengths |= {(4, 4 * kv, 0, 0): 1000 + 5 * kv for kv in (100, 200)}
    profile = table(lengths)
    assert [profile.iteration_ns(4, 4 * context) for context in (150, 200, 300, 800, 1600)] == [
        1750, 2000, 2500, 5000, 9000,
    ]  # fmt: skip
    assert profile.iteration_ns(2, 2 * 800) == 2867  # a third of the way from 1,800 to 5,000: 2,866.7


def test_a_half_is_rounded_up_and_nothing_is_below_the_smallest() -> None:
    profile = table({(0, 0, 100, 0): Fraction("1000.5"), (0, 0, 300, 0): Fraction("1100.5")})
    assert [profile.iteration_ns(0, 0, chunk) for chunk in (100, 101, 102, 300)] == [1001, 1001, 1002, 1101]
    assert [profile.iteration_ns(0, 0, chunk) for chunk in (99, 50, 1, 0)] == [1001] * 4
    assert table({(1, 1, 0, 0): Fraction(1, 10)}).iteration_ns(1, 1) == 1


@st.composite
def tables(draw: st.DrawFn) -> tuple[Lengths, bool]:
    """Draw the points of a table, ragged in KV, and whether it is read by the context."""
    sizes = sorted(draw(st.sets(st.sampled_from([0, 1, 2, 3, 5, 8, 16]), min_size=1, max_size=4)))
    per_decode = draw(st.booleans())
    axis = sorted(draw(st.sets(st.integers(1, 500), min_size=1, max_size=4)))
    chunks = sorted(draw(st.sets(st.sampled_from([0, 1, 7, 64, 100]), min_size=1, max_size=4)))
    priors = sorted(draw(st.sets(st.sampled_from([0, 10, 512, 1000]), min_size=1, max_size=3)))
    no_work = draw(st.booleans()) or len(chunks) == 1
    lengths: Lengths = {}
    whole = draw(st.sampled_from([size for size in sizes if size] or [0]))
    for size in sizes:
        kept = len(axis) if size == whole else draw(st.integers(min(2, len(axis)), len(axis)))
        for kv in axis[:kept] if size else [0]:
            for chunk in chunks:
                for prior in priors if chunk else [0]:
                    if size or chunk or no_work:
                        length_ns = Fraction(draw(st.integers(1, 10**6)), draw(st.sampled_from([1, 2, 10])))
                        lengths[size, kv * (size if per_decode else 1), chunk, prior] = length_ns
    positive = sum(size > 0 for size in sizes)
    return lengths, len(sizes) > 1 and (per_decode or positive == 1)


AT = st.tuples(
    st.integers(0, 30), st.integers(0, 20_000), st.sampled_from([0, 0, 1, 3, 63, 64, 99, 500]), st.integers(0, 2000)
)
"""The sizes of an iteration, in the table and beyond."""


@given(tables(), st.lists(AT, min_size=1, max_size=8))
def test_look_ups_are_those_of_a_nested_interpolation_in_fractions(
    drawn: tuple[Lengths, bool], asked: list[tuple[int, int, int, int]]
) -> None:
    lengths, per_decode = drawn
    profile = table(lengths, small_dip=Fraction(1))
    for at in [*asked, *lengths]:
        assert profile.iteration_ns(*at) == interpolated_ns(lengths, at, kv_per_decode=per_decode), at


@given(tables(), st.lists(AT, min_size=1, max_size=8))
def test_an_answer_does_not_depend_on_what_was_asked_before(
    drawn: tuple[Lengths, bool], asked: list[tuple[int, int, int, int]]
) -> None:
    lengths, _ = drawn
    fresh = [table(lengths, small_dip=Fraction(1)).iteration_ns(*at) for at in asked]
    few = table(lengths, small_dip=Fraction(1), most_cells=2)
    assert [few.iteration_ns(*at) for at in asked] == fresh
    assert [few.iteration_ns(*at) for at in reversed(asked)] == fresh[::-1]
    copy = pickle.loads(pickle.dumps(few))
    assert copy == few
    assert [copy.iteration_ns(*at) for at in asked] == fresh


def test_no_more_than_so_many_cells_are_kept() -> None:
    lengths: Lengths = {(1, 100, chunk, prior): 1000 for chunk in range(1, 40) for prior in range(40)}
    few, many = table(lengths, most_cells=10), table(lengths)
    for profile in (few, many):
        for chunk in range(1, 40):
            for prior in range(40):
                profile.iteration_ns(1, 100, chunk, prior)
    assert len(pickle.dumps(few)) < 0.5 * len(pickle.dumps(many))


@given(tables())
def test_measured_points_are_given_back_and_no_order_of_rows_matters(drawn: tuple[Lengths, bool]) -> None:
    lengths, _ = drawn
    profile = table(lengths, small_dip=Fraction(1))
    for at, length_ns in lengths.items():
        assert profile.iteration_ns(*at) == max(1, int(length_ns + Fraction(1, 2)))
    backwards = table(dict(reversed(lengths.items())), small_dip=Fraction(1))
    assert backwards == profile


COEFFICIENTS = st.tuples(*[st.integers(0, 1000)] * 5)


@given(COEFFICIENTS, AT)
def test_a_table_of_a_formula_is_the_formula_everywhere(
    factors: tuple[int, int, int, int, int], at: tuple[int, int, int, int]
) -> None:
    """Base, decodes, KV, chunk, and chunk x prior: each is linear in each axis, also between and beyond."""

    def formula(decodes: int, kv: int, chunk: int, prior: int) -> int:
        base, per_decode, per_kv, per_chunk, per_both = factors
        return 1 + base + per_decode * decodes + per_kv * kv + per_chunk * chunk + per_both * chunk * prior

    lengths: Lengths = {
        (size, size * context, chunk, prior): formula(size, size * context, chunk, prior)
        for size in (0, 4, 16)
        for context in ((100, 400, 1600)[: 3 - (size > 8)] if size else (0,))
        for chunk in (0, 64, 512)
        for prior in ((0, 1000) if chunk else (0,))
    }
    kv = at[1] if at[0] else 0
    assert table(lengths).iteration_ns(*at) == formula(at[0], kv, at[2], at[3])
