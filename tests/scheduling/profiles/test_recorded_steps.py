"""Iterations rebuilt from recordings: cases by hand, and every one of a miniature engine's is as it was."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling.engine import run_engine

from otel_llm.scheduling.profiles.recorded_steps import Recorded, Sample, rebuild

MS = 1_000_000
S = 1_000_000_000


def recorded(
    commit_ms: int, tokens: int | None, times_ms: list[int], first_step: int, batch_mean: float, **more: float
) -> Recorded:
    times_ns = [at * MS for at in times_ms]
    return Recorded(commit_ms * MS, times_ns[-1], tokens, times_ns, first_step, batch_mean, **more)


def test_decodes_and_a_prompt_that_joins_them() -> None:
    """The first waits from 0 on; the second's 30 tokens ride with the decode that ends at 25 ms."""
    first = recorded(0, 100, [10, 15, 25, 31], 7, 1.5)
    second = recorded(12, 30, [25, 31], 9, 2.0)
    found = rebuild([first, second], max_batched_tokens=512)
    assert found.samples == (
        Sample(1, 101, 0, 0, 5 * MS),
        Sample(1, 102, 30, 0, 10 * MS),
        Sample(2, 103 + 31, 0, 0, 6 * MS),
    )
    assert (found.steps, found.idle_before, found.doubtful) == (4, 1, 0)


def test_a_prompt_alone_is_measured_from_its_being_scheduled() -> None:
    alone = recorded(0, 100, [10, 15], 0, 1.0, prefill_s=0.008)
    assert rebuild([alone], 512).samples == (Sample(0, 0, 100, 0, 8 * MS), Sample(1, 101, 0, 0, 5 * MS))
    # A prompt beyond the budget took several iterations, which left no trace.
    assert rebuild([alone], 64).samples == (Sample(1, 101, 0, 0, 5 * MS),)


def test_a_prompt_that_does_not_fit_takes_what_is_left_before() -> None:
    """A budget of 65 is 64 beside one decode: 150 tokens are 64, 64 and 22."""
    first = recorded(0, 10, [10, 15, 25, 35, 40, 45], 1, 8 / 6)
    second = recorded(14, 150, [40, 45], 5, 2.0)
    found = rebuild([first, second], max_batched_tokens=65)
    assert found.samples == (
        Sample(1, 11, 0, 0, 5 * MS),
        Sample(1, 12, 64, 0, 10 * MS),
        Sample(1, 13, 64, 64, 10 * MS),
        Sample(1, 14, 22, 128, 5 * MS),
        Sample(2, 15 + 151, 0, 0, 5 * MS),
    )


def test_iterations_beside_requests_without_a_recording_are_left_out() -> None:
    """The plugin says that 1.5 requests had a token on average: one of two was not recorded."""
    assert rebuild([recorded(0, 100, [10, 15], 0, 1.5)], 512).samples == ()
    unknown = Recorded(16 * MS, 26 * MS, None, [20 * MS, 26 * MS])
    found = rebuild([recorded(0, 100, [10, 15, 20, 26, 40], 0, 1.0), unknown], 512)
    assert found.samples == (Sample(1, 101, 0, 0, 5 * MS),)
    assert found.doubtful == 3


def test_a_token_that_was_recorded_late_stays_in_its_iteration() -> None:
    """The second's token of 15 ms was cut to the end of a segment at 17 ms."""
    first = recorded(0, 100, [10, 15, 20, 26], 0, 2.0)
    second = recorded(0, 30, [10, 17, 20, 26], 0, 2.0)
    found = rebuild([first, second], 512)
    assert [one.decodes for one in found.samples] == [2, 2, 2]
    assert sum(one.length_ns for one in found.samples) == 16 * MS


def test_the_overhead_is_between_an_iterations_begin_and_its_end() -> None:
    """Iterations end at 10, 15, 25 and 31 ms.

    The second request is found behind the one of 10 to 15 ms: it was on its way from 11 ms until some time in it. The
    third finds an idle engine at 43 ms.
    """
    first = recorded(0, 100, [10, 15, 25, 31], 0, 1.5, queue_s=0.0, prefill_s=0.009)
    second = recorded(11, 30, [25, 31], 2, 2.0, queue_s=0.0, prefill_s=0.010)
    third = recorded(40, 30, [50], 4, 1.0, queue_s=0.001, prefill_s=0.006)
    assert rebuild([first, second, third], 512).overheads_ns == (MS, MS, 0, 4 * MS, 3 * MS, 3 * MS)


def test_without_queue_times_there_is_no_overhead() -> None:
    assert rebuild([recorded(0, 10, [10], 0, 1.0)], 512).overheads_ns == ()


def formula(decodes: int, kv: int, chunk: int, prior: int) -> int:
    return 2 * MS + 100_000 * decodes + 20 * kv + 30_000 * chunk + 10 * chunk * prior


@given(
    st.lists(st.tuples(st.integers(0, 300 * MS), st.integers(1, 300), st.integers(1, 30)), min_size=1, max_size=12),
    st.sampled_from([40, 100, 1000]),
    st.integers(1, 8),
    st.integers(0, 2**32),
)
def test_rebuilt_iterations_are_those_of_the_engine(
    asked: list[tuple[int, int, int]], budget: int, max_batch: int, seed: int
) -> None:
    run = run_engine(asked, formula, budget, max_batch, Random(seed))
    found = rebuild(run.recorded, budget)
    assert Counter(found.samples) <= Counter(run.samples)


@pytest.mark.parametrize("budget", [128, 2048])
def test_hardly_an_iteration_of_a_busy_engine_is_lost(budget: int) -> None:
    rng = Random(3)
    asked = [(rng.randrange(S), rng.randrange(1, 300), rng.randrange(1, 60)) for _ in range(100)]
    run = run_engine(asked, formula, budget, jitter=rng, overhead_ns=3 * MS)
    found = rebuild(run.recorded, budget)
    assert Counter(found.samples) <= Counter(run.samples)
    assert len(found.samples) > 0.9 * len(run.samples)
    assert median(found.overheads_ns) == pytest.approx(3 * MS, abs=200_000)
