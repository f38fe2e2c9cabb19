"""Policies that a scenario names: the searched budget, the split of the fleet, orders, and the optimum of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.scheduling.scenarios import SCENARIO, scenario

from otel_llm.scheduling.closed_form import Served, ServingCosts, best_split
from otel_llm.scheduling.scenario.running import (
    common_optimum,
    load_cells,
    mean_cost,
    optimum_text,
    run_scenario,
    static_budgets,
)
from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.scheduling.workload.workload import draw_workload


def row_of(path: Path, *settings: str, seed: int = 0) -> dict[str, Any]:
    (run,) = load_runs(path, settings)
    row = run_scenario(run.scenario, seed)
    del row["wall_s"], row["decisions_per_s"]
    return row


TIERS = "workload.tiers=[{name: a, tpot: 1us, ttft: 10us, share: 0.5}, {name: b, tpot: 20us, ttft: 20us, share: 0.5}]"


def engine(folder: Path, text: str, **sizes: int | str) -> Path:
    """Write a scenario whose profile has other sizes."""
    path = scenario(folder, text)
    lines = (folder / "hand.yaml").read_text().splitlines()
    changed = [f"{key}: {sizes.get(key, value.strip())}" for key, _, value in (line.partition(":") for line in lines)]
    (folder / "hand.yaml").write_text("\n".join(changed))
    return path


def wide(folder: Path) -> Path:
    """Write the scenario with 2,048 tokens a batch, and prompts that fill some of it."""
    return engine(folder, SCENARIO.replace("[1, 50]", "[1, 1500]"), kv_tokens=50000, max_batched_tokens=2048)


def test_the_budgets_that_are_searched() -> None:
    assert static_budgets(8192) == [8192, 4096, 2048, 1024, 512, 256]
    assert static_budgets(3000) == [3000, 2048, 1024, 512, 256]
    assert static_budgets(256) == [256]
    assert static_budgets(100) == [100]


@pytest.mark.parametrize(("load", "best"), [(200000, 256), (300000, 2048)])
def test_chunk_is_least_load_with_the_budget_that_most_requests_meet(tmp_path: Path, load: int, best: int) -> None:
    path, settings = wide(tmp_path), (TIERS, f"workload.arrivals.poisson={load}")
    rows = {budget: row_of(path, *settings, f"policy.budget={budget}") for budget in static_budgets(2048)}
    shares = {budget: row["attainment"] for budget, row in rows.items()}
    assert [budget for budget, share in shares.items() if share == max(shares.values())] == [best]
    found = row_of(path, *settings, "policy.placement=chunk")
    assert found == rows[best]
    assert found["budget"] == best
    # A budget of the scenario is not searched.
    assert row_of(path, *settings, "policy.placement=chunk", "policy.budget=512") == rows[512]


def test_of_equal_budgets_the_largest_is_kept(tmp_path: Path) -> None:
    row = row_of(wide(tmp_path), "policy.placement=chunk", "workload.tiers=[]")
    assert (row["attainment"], row["budget"]) == (1.0, 2048)


def test_progress_of_a_search_counts_every_budget(tmp_path: Path) -> None:
    (run,) = load_runs(wide(tmp_path), ["policy.placement=chunk", "workload.requests=1000", "workload.tiers=[]"])
    seen: list[tuple[int, int]] = []
    run_scenario(run.scenario, 0, lambda done, of: seen.append((done, of)))
    assert seen == [(1000, 4000), (2000, 4000), (3000, 4000), (4000, 4000)]


@pytest.mark.parametrize("placement", ["chunk", "random", "minimal"])
def test_a_budget_bounds_every_batch_with_prefill(tmp_path: Path, placement: str) -> None:
    # Alone, 100 tokens of a prompt take four iterations of 25: 2 x 100 of the chunks, and 4 x 105.
    path = scenario(tmp_path, SCENARIO.replace("[1, 50]", "[100, 100]").replace("requests: 50", "requests: 1"))
    row = row_of(path, f"policy.placement={placement}", "policy.budget=25")
    assert row["ttft_p50_s"] == (7 + 2 * 100 + 4 * 105) / 1e9
    assert row["budget"] == 25
    # A budget above `max_batched_tokens` changes nothing.
    assert row_of(path, f"policy.placement={placement}", "policy.budget=1000")["ttft_p50_s"] == (7 + 200 + 105) / 1e9


def test_an_automatic_split_is_that_of_the_closed_form(tmp_path: Path) -> None:
    text = SCENARIO.replace("{instances: 2}", "{instances: 8, mode: disaggregated, prefill: auto}")
    path = scenario(tmp_path, text.replace("[1, 50]", "[1, 400]"))
    (run,) = load_runs(path)
    cost = mean_cost(run.scenario, draw_workload(run.scenario.workload, run.scenario.profile, 0))
    assert cost is not None
    split = best_split(8, cost)
    row = row_of(path)
    assert row["prefill_instances"] == split > 1
    assert row == row_of(path, f"fleet.prefill={split}")


def test_the_optimum_is_that_of_all_requests_at_any_load(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO.replace("  arrivals", "  warmup: 10us\n  arrivals"))
    rows = [row_of(path, f"workload.arrivals.poisson={load}") for load in (1000000, 3000000)]
    assert rows[0]["requests"] != rows[1]["requests"]
    (run,) = load_runs(path)
    workload = draw_workload(run.scenario.workload, run.scenario.profile, 0)
    costs = ServingCosts(run.scenario.profile)
    total_ns = 0.0
    for tokens, output, tier in zip(workload.input, workload.output, workload.class_index, strict=True):
        cost = costs.of(Served(int(tokens), int(output), workload.classes[tier].slo.deadline.next_ns))
        assert cost is not None
        total_ns += sum(cost)
    assert rows[0]["optimal_req_s"] == pytest.approx(2 / (total_ns / 50 / 1e9))
    assert common_optimum(rows) == rows[0]["optimal_req_s"]


def test_without_tiers_only_the_kv_bounds_a_batch(tmp_path: Path) -> None:
    # A batch of two takes longer than the 200 ms a token of the class `chat`, at which one reads.
    path = engine(tmp_path, SCENARIO, linear="{base: 100ms, per_decode: 100ms}")
    (run,) = load_runs(path, ["workload.tiers=[]"])
    workload = draw_workload(run.scenario.workload, run.scenario.profile, 0)
    lengths = zip(workload.input.tolist(), workload.output.tolist(), strict=True)
    assert mean_cost(run.scenario, workload) == ServingCosts(run.scenario.profile).mean(Served(*one) for one in lengths)


def test_an_optimum_that_differs_between_runs_is_reported_so() -> None:
    rows = [{"optimal_req_s": 20.0}, {"optimal_req_s": 30.0}, {"optimal_req_s": 20.0}]
    assert common_optimum(rows) is None
    assert optimum_text(rows) == "The optimum by the closed form, in requests/s: 20 to 30, by the settings."
    assert optimum_text(rows[:1]) == "The optimum by the closed form, in requests/s: 20."
    nothing = [{"optimal_req_s": None}]
    assert common_optimum(nothing) is None
    assert "no request fits" in optimum_text(nothing)


def test_requests_that_fit_nowhere_have_no_optimum(tmp_path: Path) -> None:
    lengths = "workload.lengths={input: {percentiles: {0: 1, 1: 2000, 99: 2000}}, output: {fixed: 5}}"
    row = row_of(scenario(tmp_path), lengths, "workload.requests=5")
    assert (row["dropped"], row["optimal_req_s"], row["e2e_mean_s"], row["g_per_s"]) == (5, None, None, None)
    json.dumps(row, allow_nan=False)


def test_the_load_at_the_objective_is_also_a_share_of_the_optimum(tmp_path: Path) -> None:
    sweep = "sweep: {workload.arrivals.poisson: [10, 20], fleet.instances: [2, 4]}\n"
    runs = load_runs(scenario(tmp_path, SCENARIO + sweep + "objective: {attainment: 0.5}\n"))
    rows = [{"optimal_req_s": optimum} for optimum in (30.0, 60.0, 30.0, 60.0)]
    loads = {"fleet.instances=2": 15.0, "fleet.instances=4": None}
    assert load_cells(runs, rows, loads) == [
        ("fleet.instances=2", "15", "50 %"),
        ("fleet.instances=4", "below the lowest", "–"),
    ]


def test_every_order_serves_a_scenario_by_its_seed(tmp_path: Path) -> None:
    path = engine(tmp_path, SCENARIO.replace("poisson: 1000000", "poisson: 3000000"), max_batch=2)
    orders = ("fcfs", "edf", "sjf", "anneal")
    rows = {order: row_of(path, f"policy.order={order}") for order in orders}
    assert len({row["e2e_mean_s"] for row in rows.values()}) == len(orders), "each order is one of its own"
    for order, row in rows.items():
        assert row == row_of(path, f"policy.order={order}")
    # The true lengths are worth something to those that predict, and what they know is a setting of theirs.
    for order in ("sjf", "anneal"):
        known = row_of(path, f"policy.order={order}", "policy.output_lengths={error: 0}")
        assert known["e2e_mean_s"] < rows["fcfs"]["e2e_mean_s"]
        assert known != rows[order]
    assert row_of(path, "policy.order=anneal", "policy.annealing.window=2") != rows["anneal"]
    assert row_of(path, "policy.order=anneal", "policy.annealing.max_batch=1") != rows["anneal"]
