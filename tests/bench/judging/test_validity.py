"""The validity test by hand."""

from __future__ import annotations

from otel_llm.bench.judging import busiest_share, judge_validity, late_beyond_bound

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
