"""Runs of a scenario: the same row for the same seed, and the load at which the objective is met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.scheduling.scenarios import SCENARIO, scenario

from otel_llm.config.yaml_file import ConfigError
from otel_llm.scheduling.scenario.running import at_objective, run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs

COLUMNS = [
    "requests",
    "dropped",
    "infeasible",
    "attainment",
    "attainment_by_tier",
    "goodput_req_s",
    "throughput_req_s",
    "tokens_s",
    "ttft_p50_s",
    "ttft_p99_s",
    "tbt_p99_s",
    "e2e_mean_s",
    "g_per_s",
    "smooth_goodput_tok_s",
    "instance_seconds",
    "preemptions",
    "prefill_instances",
    "budget",
    "optimal_req_s",
    "decisions_per_s",
    "simulated_s",
    "wall_s",
]


def test_a_row_is_a_function_of_scenario_and_seed(tmp_path: Path) -> None:
    (run,) = load_runs(scenario(tmp_path, SCENARIO.replace("least_load", "random")))
    rows = [run_scenario(run.scenario, seed) for seed in (1, 1, 2)]
    assert list(rows[0]) == COLUMNS
    assert rows[0]["wall_s"] > 0
    assert rows[0]["decisions_per_s"] > 0
    for row in rows:
        del row["wall_s"], row["decisions_per_s"]
    assert rows[0] == rows[1] != rows[2]


def test_a_row_worked_by_hand(tmp_path: Path) -> None:
    # Two requests of 10 and 3 tokens, a microsecond apart: 125 to the first token, 126 and 127 to the others.
    text = SCENARIO.replace("{poisson: 1000000}", "{constant: 1000000}").replace("requests: 50", "requests: 2")
    text = text.replace("{uniform: [1, 50]}", "{fixed: 10}").replace("{uniform: [1, 20]}", "{fixed: 3}")
    (run,) = load_runs(scenario(tmp_path, text))
    seen: list[tuple[int, int]] = []
    row = run_scenario(run.scenario, 0, lambda done, of: seen.append((done, of)))
    assert row["requests"] == 2
    assert row["attainment"] == 1
    assert row["ttft_p50_s"] == 132 / 1e9
    assert row["tbt_p99_s"] == 127 / 1e9
    assert row["goodput_req_s"] == pytest.approx(2e6)
    assert row["tokens_s"] == pytest.approx(6e6)
    assert row["simulated_s"] == 1385 / 1e9
    assert row["instance_seconds"] == 2 * 1385 / 1e9
    assert seen == []  # fewer than a thousand


def test_the_order_is_that_of_the_policy(tmp_path: Path) -> None:
    text = SCENARIO.replace("poisson: 1000000", "poisson: 9000000").replace("ttft: 2us", "ttft: 100us")
    path = scenario(tmp_path, text.replace("[500ns, 1us]", "2us").replace("tpot: 200ns", "tpot: 1us"))
    first, due = (
        run_scenario(load_runs(path, [f"policy.order={order}"])[0].scenario, 0)["attainment_by_tier"]
        for order in ("fcfs", "edf")
    )
    assert due["fast"] > first["fast"], "those due earlier no longer wait behind the others"


def test_progress_counts_arrivals(tmp_path: Path) -> None:
    (run,) = load_runs(scenario(tmp_path), ["workload.requests=2500"])
    seen: list[tuple[int, int]] = []
    run_scenario(run.scenario, 0, lambda done, of: seen.append((done, of)))
    assert seen == [(1000, 2500), (2000, 2500)]


def test_arrivals_that_last_too_long_are_refused(tmp_path: Path) -> None:
    (run,) = load_runs(scenario(tmp_path, SCENARIO.replace("poisson: 1000000", "poisson: 1e-9")))
    with pytest.raises(ConfigError, match=r"yaml:6:13: workload.arrivals: .*31 years .raise the rate"):
        run_scenario(run.scenario, 0)


def row_of(attainment: float | None, *tiers: float | None) -> dict[str, Any]:
    return {"attainment": attainment, "attainment_by_tier": dict(enumerate(tiers))}


SWEEP = "sweep: {workload.arrivals.poisson: [20, 10, 40], policy.placement: [random, minimal]}\n"


def test_the_load_at_the_objective_is_linear_between_levels(tmp_path: Path) -> None:
    runs = load_runs(scenario(tmp_path, SCENARIO + "objective: {attainment: 0.9}\n" + SWEEP))
    rows = [row_of(share, 0.1) for share in (0.95, 0.8, 1.0, 0.85, 0.85, 0.5)]
    # Random: 10 -> 1.0, 20 -> 0.95, 40 -> 0.85; minimal misses at 10 already.
    found = at_objective(runs, rows)
    assert found == {"policy.placement=random": pytest.approx(30), "policy.placement=minimal": None}


def test_the_highest_load_stands_where_it_meets_and_every_tier_may_have_to(tmp_path: Path) -> None:
    objective = "objective: {attainment: 0.9, every_tier: true}\n"
    runs = load_runs(scenario(tmp_path, SCENARIO + objective + SWEEP), ["policy.placement=random"])
    met = [row_of(0.95, 0.92, None), row_of(1.0, 0.99), row_of(0.93, 0.9)]
    assert at_objective(runs, met) == {"": 40}
    missed = [row_of(0.95, 0.92, None), row_of(1.0, 0.99), row_of(0.93, 0.88)]
    assert at_objective(runs, missed) == {"": pytest.approx(30)}


def test_exactly_the_objective_meets_it(tmp_path: Path) -> None:
    runs = load_runs(
        scenario(tmp_path, SCENARIO + "objective: {attainment: 0.9}\n" + SWEEP), ["policy.placement=random"]
    )
    assert at_objective(runs, [row_of(0.5), row_of(27 / 30), row_of(0.4)]) == {"": 10}


def test_without_an_objective_or_a_load_there_is_none(tmp_path: Path) -> None:
    runs = load_runs(scenario(tmp_path, SCENARIO + SWEEP))
    assert at_objective(runs, [row_of(1.0)] * 6) == {}
    runs = load_runs(scenario(tmp_path, SCENARIO + "objective: {attainment: 0.9}\n"))
    assert at_objective(runs, [row_of(1.0)]) == {}
