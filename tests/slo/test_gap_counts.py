"""Gaps between tokens as counts by range: pooled percentiles within 1 % of the exact ones, for any part of requests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.slo.batch.gap_counts import ZERO, GapCounting, GapCounts
from otel_llm.slo.batch.ragged import Ragged
from otel_llm.slo.quantiles import LOG_RATIO, P50, P99, nearest_rank

gaps_ns = st.lists(st.one_of(st.just(0), st.integers(1, 10**12), st.integers(10**6, 10**8)), min_size=0, max_size=30)


def counted(replies: list[list[int]]) -> GapCounts:
    """Return the counts of replies, given by their gaps, in two blocks."""
    counting = GapCounting(len(replies))
    for at in (np.arange(0, len(replies), 2), np.arange(1, len(replies), 2)):
        if len(at):
            times = [np.cumsum([5, *replies[place]]) for place in at.tolist()]
            counting.add(at, Ragged.of(np.concatenate(times), np.array([len(one) for one in times])))
    return counting.counts()


@given(st.lists(gaps_ns, min_size=1, max_size=8), st.data())
def test_percentiles_are_those_of_all_gaps_within_one_per_cent(replies: list[list[int]], data: st.DataObject) -> None:
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(replies), max_size=len(replies))))
    some = [reply for reply, one in zip(replies, chosen.tolist(), strict=True) if one]
    exact = sorted(gap for reply in some for gap in reply)
    pooled = counted(replies).only(chosen).pooled(max(exact, default=0) / 1e9)

    assert pooled.count == len(exact)
    for share in (P50, (9, 10), P99):
        wanted = nearest_rank(exact, share)
        assert pooled.quantile(share) == (None if wanted is None else pytest.approx(wanted / 1e9, rel=0.01))


def test_the_range_of_each_gap_ends_within_one_per_cent_of_it() -> None:
    random = np.random.default_rng(3)
    gaps = np.unique(np.exp(random.uniform(0, np.log(5e9), 50_000)).astype(np.int64))
    found = counted([[gap] for gap in gaps.tolist()])
    assert set(np.diff(found.offsets).tolist()) == set(found.counts.tolist()) == {1}
    ends_ns = np.exp(found.buckets * LOG_RATIO) * 1e9
    assert (ends_ns / gaps).min() >= 0.9999
    assert (ends_ns / gaps).max() <= 1.01


@pytest.mark.parametrize(("requests", "gaps"), [(3, 30_000), (40, 2_000), (3_000, 6), (70_000, 1), (1, 0), (9, 0)])
@pytest.mark.parametrize("zeros", [0.0, 0.4, 1.0])
def test_many_short_and_few_long_replies_are_counted_alike(requests: int, gaps: int, zeros: float) -> None:
    random = np.random.default_rng(requests)
    drawn = np.exp(random.normal(17, 1.5, (requests, gaps))).astype(np.int64)
    drawn[random.random(drawn.shape) < zeros] = 0
    times = np.cumsum(np.concatenate([np.zeros((requests, 1), np.int64), drawn], axis=1), axis=1)
    counting = GapCounting(requests)
    counting.add(np.arange(requests), Ragged.of(times.ravel(), np.full(requests, gaps + 1)))
    found = counting.counts()
    assert [found.counts[a:b].sum() for a, b in pairwise(found.offsets.tolist())] == [gaps] * requests
    for request in (0, requests // 2, requests - 1):
        own = slice(found.offsets[request], found.offsets[request + 1])
        assert (np.diff(found.buckets[own]) > 0).all()
        assert found.counts[own][found.buckets[own] == ZERO].sum() == (drawn[request] == 0).sum()
    for share in (P50, (9, 10), P99) if gaps else ():
        wanted = nearest_rank(np.sort(drawn.ravel()).tolist(), share)
        assert wanted is not None
        assert found.pooled(drawn.max() / 1e9).quantile(share) == pytest.approx(wanted / 1e9, rel=0.01)


def test_a_gap_of_more_than_four_seconds_is_itself() -> None:
    assert counted([[10**7, 60 * 10**9]]).pooled(60.0).quantile(P99) == 60.0
    assert np.diff(counted([[1, 2 * 10**9], []]).offsets).tolist() == [2, 0]
