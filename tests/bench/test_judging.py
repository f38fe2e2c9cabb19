"""The validity test by hand."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench.replies import exchanged, reply
from support.examples import examples

from otel_llm.audit.load import load
from otel_llm.bench.client.target import Target
from otel_llm.bench.judging import (
    BATCH,
    FEWEST_BATCHES,
    busiest_share,
    first_token_targets,
    fluid_rate_of,
    judge_validity,
    late_beyond_bound,
    mser5,
)
from otel_llm.bench.recording.run_journal import RequestRecords, RunJournal
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.classes import CONTENT
from otel_llm.slo.fluid.fluid_rate import fluid_tbt_ns, fluid_token_rate


def _slowly(values: list[int]) -> int | None:
    """Return the answer by the definition, in fractions; the first least wins."""
    batches = len(values) // BATCH
    if batches < FEWEST_BATCHES:
        return 0
    means = [Fraction(sum(values[place * BATCH : (place + 1) * BATCH]), BATCH) for place in range(batches)]
    errors = []
    for cut in range(batches // 2 + 1):
        rest = means[cut:]
        mean = sum(rest) / len(rest)
        errors.append(sum((one - mean) ** 2 for one in rest) / len(rest) ** 2)
    found = errors.index(min(errors))
    return None if found == batches // 2 else found * BATCH


def test_a_slow_start_is_cut() -> None:
    assert mser5([10.0] * 15 + [1.0, 2.0] * 50) == 15


def test_a_steady_run_is_not_cut() -> None:
    assert mser5([1.0, 2.0, 3.0, 2.0, 1.0] * 20) == 0


def test_a_run_that_never_settles() -> None:
    assert mser5([float(place) for place in range(100)]) is None


@pytest.mark.parametrize("count", [0, 1, 5 * FEWEST_BATCHES - 1])
def test_a_short_run_is_not_cut(count: int) -> None:
    assert mser5([9.0] * (count // 2) + [1.0] * (count - count // 2)) == 0


@settings(max_examples=examples(100))
@given(st.lists(st.integers(0, 1000), min_size=50, max_size=120))
def test_as_the_definition_has_it(values: list[int]) -> None:
    wanted = _slowly(values)
    found = mser5([float(value) for value in values])
    if found != wanted:  # two cuts as good as each other, but for the last bit
        assert found is not None
        assert wanted is not None
        assert _error(values, found) == pytest.approx(_error(values, wanted), rel=1e-9, abs=1e-12)


def _error(values: list[int], cut: int) -> float:
    means = [
        Fraction(sum(values[place : place + BATCH]), BATCH) for place in range(cut, len(values) // BATCH * BATCH, BATCH)
    ]
    mean = sum(means) / len(means)
    return float(sum((one - mean) ** 2 for one in means) / len(means) ** 2)


TARGET = Target.read("http://127.0.0.1:8000", model="m")
GAPS = [[100, *[20 + place % 7 for place in range(30)]] for _ in range(40)] + [[100, 30, 900, 30, 30]]


def test_the_rate_is_that_of_the_known_times(tmp_path: Path) -> None:
    requests = [exchanged(reply(gaps), number) for number, gaps in enumerate(GAPS)]
    with RunJournal(tmp_path / "run", RequestRecords(TARGET, None, FakeClock())) as journal:
        for request in requests:
            journal.write(request)
    batches: list[pa.RecordBatch] = []
    classes = load_slo(None)
    load(tmp_path / "run", slo=classes, observe=batches.append)
    found = fluid_rate_of(batches, (CONTENT,))
    targets = [fluid_tbt_ns(request.times_ns) for request in requests]
    assert found == fluid_token_rate(one for one in targets if one is not None)
    assert found is not None
    assert found.tbt_ns == max(one for one in targets if one is not None)  # 99 % of 41 are all 41
    why = first_token_targets(batches, classes)
    assert isinstance(why, str)
    assert "0 requests with a known prompt" in why  # this server counts none


def test_a_run_without_replies_has_none() -> None:
    assert fluid_rate_of([], (CONTENT,)) is None


@pytest.mark.parametrize("gaps", [[100], []])
def test_replies_of_one_token_have_none(gaps: list[int], tmp_path: Path) -> None:
    with RunJournal(tmp_path / "run", RequestRecords(TARGET, None, FakeClock())) as journal:
        journal.write(exchanged(reply(gaps)))
    batches: list[pa.RecordBatch] = []
    load(tmp_path / "run", observe=batches.append)
    assert fluid_rate_of(batches, (CONTENT,)) is None


MS = 1_000_000
SECOND = 1000 * MS


def test_a_run_whose_client_kept_out() -> None:
    found = judge_validity([MS] * 99 + [50 * MS], 0.5, 0, 60 * SECOND, 0)
    assert found.valid
    assert found.why is None
    assert found.send_lag_ms == {"p50": 1.0, "p99": 1.0, "max": 50.0}
    assert found.cpu == 0.5


def test_two_late_of_a_hundred_are_too_many() -> None:
    found = judge_validity([MS] * 98 + [50 * MS] * 2, 0.5, 0, 60 * SECOND, 0)
    assert not found.valid
    assert found.why is not None
    assert "50.0 ms" in found.why


def test_the_bounds_are_inclusive() -> None:
    assert judge_validity([10 * MS], 0.9, 0, SECOND, 0).valid
    assert not judge_validity([10 * MS + 1], 0.9, 0, SECOND, 0).valid
    assert not judge_validity([0], 0.91, 0, SECOND, 0).valid


def test_a_closed_loop_has_no_lag_and_may_still_stand_still() -> None:
    assert judge_validity(None, 0.1, 0, SECOND, 0).send_lag_ms is None
    assert judge_validity(None, 0.1, SECOND, 100 * SECOND, 0).valid
    assert not judge_validity(None, 0.1, SECOND + 1, 100 * SECOND, 0).valid


def test_requests_that_this_machine_failed() -> None:
    assert not judge_validity([0], 0.1, 0, SECOND, 1).valid


def test_a_run_without_requests() -> None:
    assert judge_validity([], 0.0, 0, SECOND, 0).send_lag_ms == {"p50": 0.0, "p99": 0.0, "max": 0.0}


def test_the_busiest_five_seconds() -> None:
    calm = [(at * SECOND, at * SECOND // 10) for at in range(20)]
    busy = [(19 * SECOND + at * SECOND, calm[-1][1] + at * SECOND) for at in range(1, 6)]
    assert busiest_share(calm) == 0.1
    assert busiest_share([*calm, *busy]) == 1.0
    assert busiest_share([*calm, *busy[:2]]) < 0.9


def test_a_run_shorter_than_the_window() -> None:
    assert busiest_share([(0, 0), (SECOND, SECOND // 2)]) == 0.5
    assert busiest_share([(0, 0)]) == busiest_share([]) == 0.0


def test_only_lateness_beyond_the_bound_is_standing_still() -> None:
    assert late_beyond_bound(10 * MS) == 0
    assert late_beyond_bound(11 * MS) == 11 * MS
