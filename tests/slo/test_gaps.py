from __future__ import annotations

from array import array
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from otel_llm.slo.live.gaps import MANY, gap_ranks, sorted_gaps, sorted_gaps_of

steps = st.one_of(st.integers(0, 3), st.integers(0, 2**40))


@st.composite
def arrivals(draw: st.DrawFn) -> array[int]:
    """Times of a request: often of about the length of others, beyond the length where numpy takes over."""
    count = draw(st.one_of(st.integers(0, 4), st.integers(MANY - 2, MANY + 30), st.integers(3 * MANY, 4 * MANY)))
    step, other = draw(steps), draw(steps)
    times = array("q")
    now = 1_790_000_000_000_000_000
    for index in range(count):
        now += step * (index * 7919 % 13) + other
        times.append(now)
    return times


@given(st.lists(arrivals(), max_size=9))
def test_gaps_of_many_requests_are_those_of_each(every: list[array[int]]) -> None:
    plain = [sorted(after - before for before, after in pairwise(times)) for times in every]
    assert [list(map(int, gaps)) for gaps in sorted_gaps_of(every)] == plain
    assert [list(map(int, sorted_gaps(times))) for times in every] == plain
    assert list(map(gap_ranks, sorted_gaps_of(every))) == list(map(gap_ranks, plain))
