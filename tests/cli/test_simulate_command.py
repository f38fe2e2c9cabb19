"""`otel-llm simulate`: the table, JSON that is the same for the same seed and any number of jobs, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.scheduling.scenarios import SCENARIO, scenario

from otel_llm.cli.commands.simulate_command import simulate
from otel_llm.cli.main import COMMANDS

SWEEP = """\
sweep: {workload.arrivals.poisson: [1000000, 3000000], policy.placement: [least_load, random]}
objective: {attainment: 0.5}
"""


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(simulate, [str(argument) for argument in arguments], catch_exceptions=False)


def runs_of(*arguments: str | Path) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    for row in found["runs"]:
        assert row.pop("wall_s") > 0
        assert row.pop("decisions_per_s") > 0
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return scenario(tmp_path, SCENARIO + SWEEP)


def test_the_command_is_in_the_list_of_commands() -> None:
    assert COMMANDS["simulate"][:2] == ("otel_llm.cli.commands.simulate_command", "simulate")


@pytest.mark.system
def test_json_is_a_function_of_scenario_and_seed_and_not_of_jobs(path: Path) -> None:
    first = runs_of(path, "--seed", "7", "--jobs", "1")
    assert [row["settings"] for row in first["runs"]] == [
        {"workload.arrivals.poisson": load, "policy.placement": name}
        for load in (1000000, 3000000)
        for name in ("least_load", "random")
    ]
    assert {row["requests"] for row in first["runs"]} == {50}
    assert list(first["at_objective"]) == ["policy.placement=least_load", "policy.placement=random"]
    assert runs_of(path, "--seed", "7", "--jobs", "2") == first
    assert runs_of(path, "--seed", "8", "--jobs", "1") != first


def test_settings_replace_values_and_levels_of_the_sweep(path: Path) -> None:
    found = runs_of(path, "--set", "policy.placement=minimal", "--set", "workload.requests=20", "--jobs", "1")
    assert [row["settings"] for row in found["runs"]] == [
        {"workload.arrivals.poisson": 1000000},
        {"workload.arrivals.poisson": 3000000},
    ]
    assert {row["requests"] for row in found["runs"]} == {20}


def test_the_table_has_a_row_for_each_run_and_the_load_at_the_objective(path: Path) -> None:
    result = run(path, "--jobs", "1")
    assert result.exit_code == 0, result.output
    runs, loads = result.stdout.split("The highest load that meets the objective")
    lines = [line.split() for line in runs.splitlines()]
    assert [line[:3] for line in lines if line[:1] in (["1000000"], ["3000000"])] == [
        ["1000000", "least_load", "50"],
        ["1000000", "random", "50"],
        ["3000000", "least_load", "50"],
        ["3000000", "random", "50"],
    ]
    assert "policy.placement=least_load" in loads
    assert max(map(len, result.stdout.splitlines())) <= 120


def test_a_load_below_the_lowest_level_is_reported(path: Path) -> None:
    tiers = "workload.tiers=[{name: t, tpot: 1ns, ttft: 1ns, share: 1}]"
    result = run(path, "--jobs", "1", "--set", "policy.placement=random", "--set", tiers)
    assert result.exit_code == 0, result.output
    assert ["all", "runs", "below", "the", "lowest"] in [line.split()[:5] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "workload.requests=none"], "--set: workload.requests: 'none' is not a whole number"),
        (["--set", "fleet"], "no value (write KEY=VALUE"),
        (["--seed", "-1"], "--seed"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_bad_usage_is_refused(path: Path, arguments: list[str], words: str) -> None:
    result = run(path, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_faulty_scenario_is_named(path: Path, jobs: str) -> None:
    path.write_text(path.read_text().replace("share: 0.5", "share: 0.4"))
    result = run(path, "--jobs", jobs)
    assert result.exit_code == 2
    assert f"{path}:9:3: workload.tiers: the shares add up to 0.8 (they must add up to 1)" in result.stderr


@pytest.mark.system
def test_a_run_that_is_refused_in_a_process_is_named(path: Path) -> None:
    path.write_text(path.read_text().replace("[1000000, 3000000]", "[0.000000001, 3000000]"))
    result = run(path, "--jobs", "2")
    assert result.exit_code == 2
    assert "the last request would arrive after more than 31 years" in result.stderr
    assert str(path) in result.stderr


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path / "nothere.yaml")
    assert result.exit_code == 2
    assert "No such file" in result.stderr
