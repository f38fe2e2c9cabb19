"""Recordings of simulated runs: the audit says the attainment, the figures and the times of the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from click.testing import CliRunner
from support.scheduling.scenarios import SCENARIO, scenario

from otel_llm.audit import load
from otel_llm.cli.commands.simulate_command import simulate
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs
from otel_llm.slo.classes import Deadline

SWEEP = "sweep: {policy.placement: [least_load, random, polyserve]}\n"
CROWDED = SCENARIO.replace("{uniform: [1, 50]}", "{uniform: [1, 1100]}").replace("poisson: 1000000", "poisson: 100000")


def simulated(path: Path, *arguments: str | Path) -> list[dict[str, Any]]:
    given = [str(one) for one in (path, "--format", "json", *arguments)]
    result = CliRunner().invoke(simulate, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    runs: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
    return runs


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.system)])
@pytest.mark.parametrize("warmup", ["0s", "100us"])
def test_the_audit_says_the_attainment_of_the_simulator(tmp_path: Path, jobs: str, warmup: str) -> None:
    path = scenario(tmp_path, CROWDED.replace("requests: 50", f"requests: 80\n  warmup: {warmup}") + SWEEP)
    rows = simulated(path, "--streams", tmp_path / "out", "--jobs", jobs, "--seed", "3")
    for index, row in enumerate(rows):
        found = load(tmp_path / "out" / f"run-{index}.parquet", slo=tmp_path / "out" / "slo.yaml").requests
        assert len(found) == row["requests"] > 0
        assert (found["outcome"] == "error").sum() == row["dropped"]
        assert found["met"].mean() == row["attainment"]
        for tier, share in row["attainment_by_tier"].items():
            assert found[found["slo_class"].str.startswith(tier)]["met"].mean() == share
        span_s = (found["start_unix_nano"].max() - found["start_unix_nano"].min()) / 1e9
        assert found["tokens"].sum() / span_s == row["tokens_s"]
        assert found["ttft_s"].quantile(0.5, interpolation="lower") == row["ttft_p50_s"]
    assert any(row["dropped"] for row in rows)
    assert all(0 < row["attainment"] < 1 for row in rows)


def test_rows_stand_by_number_with_the_times_of_the_engine(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    simulated(path, "--streams", tmp_path / "out")
    table = pyarrow.parquet.read_table(tmp_path / "out" / "run-0.parquet").to_pydict()
    seen = []
    run_scenario(load_runs(path)[0].scenario, 0, observe=lambda run, workload: seen.append((run, workload)))
    ((run, workload),) = seen
    assert table["times_ns"] == [run.token_times(one).tolist() for one in run.requests]
    assert table["commit_ns"] == workload.arrivals_ns.tolist()
    assert table["declared_class"] == [workload.classes[one.tier].slo.name for one in run.requests]
    assert table["input_tokens"] == workload.input.tolist()
    assert set(table["instance"]) == {"0", "1"}
    assert len(set(table["trace_id"])) == len(table["trace_id"]) == 50


def test_the_same_bytes_twice(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    for name in ("one", "two"):
        simulated(path, "--streams", tmp_path / name)
    for file in ("run-0.parquet", "slo.yaml"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_classes_are_those_of_the_tiers_to_the_nanosecond(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO.replace("ttft: 2us", "ttft: 2001ns"))
    simulated(path, "--streams", tmp_path / "out")
    classes = load_slo(tmp_path / "out" / "slo.yaml")
    assert {one.name: one.deadline for one in classes.classes} == {
        "fast-500ns": Deadline("dslo", 500, 200),
        "fast-1us": Deadline("dslo", 1000, 200),
        "slow": Deadline("dslo", 2001, 1000),
    }


def test_without_tiers_the_class_is_that_of_the_simulator(tmp_path: Path) -> None:
    begin, end = SCENARIO.index("  tiers:"), SCENARIO.index("policy:")
    path = scenario(tmp_path, SCENARIO[:begin] + SCENARIO[end:])
    (row,) = simulated(path, "--streams", tmp_path / "out")
    assert load_slo(tmp_path / "out" / "slo.yaml").get("chat").deadline == Deadline("reading", 10**9)
    found = load(tmp_path / "out" / "run-0.parquet", slo=tmp_path / "out" / "slo.yaml")
    assert found.requests["met"].mean() == row["attainment"] == 1


def test_files_of_something_else_are_not_written_over(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "slo.yaml").write_text("mine")
    result = CliRunner().invoke(simulate, [str(path), "--streams", str(out)])
    assert result.exit_code == 2
    assert "slo.yaml is not of a simulation and would be overwritten; name another folder" in result.stderr
    assert (out / "slo.yaml").read_text() == "mine"
    (out / "slo.yaml").unlink()
    simulated(path, "--streams", out)
    simulated(path, "--streams", out, "--set", "workload.requests=20")  # its own are


@pytest.mark.parametrize("name", ["scenario.yaml", "nothere/out"])
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, name: str) -> None:
    path = scenario(tmp_path)
    result = CliRunner().invoke(simulate, [str(path), "--streams", str(tmp_path / name)])
    assert result.exit_code == 2
    assert name in result.stderr
    assert "name a folder, or one to make" in result.stderr


def test_runs_whose_classes_differ_are_refused(tmp_path: Path) -> None:
    tiers = "[[{name: t, tpot: 1us, ttft: 1us, share: 1}], [{name: t, tpot: 2us, ttft: 1us, share: 1}]]"
    path = scenario(tmp_path, SCENARIO + f"sweep: {{workload.tiers: {tiers}}}\n")
    result = CliRunner().invoke(simulate, [str(path), "--streams", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "the runs differ in the class 't'" in result.stderr
