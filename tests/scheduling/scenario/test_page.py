"""The page of a sweep: its figures are the rows, and no name runs as markup."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.scheduling.scenarios import PROFILE, SCENARIO, scenario

from otel_llm.cli.commands.simulate_command import simulate
from otel_llm.scheduling.scenario.page import render
from otel_llm.scheduling.scenario.running import at_objective, run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs

SWEEP = """\
sweep: {workload.arrivals.poisson: [3000000, 1000000], policy.placement: [least_load, random]}
objective: {attainment: 0.5}
"""


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r"<script type='application/json' id='figures'>(.*?)</script>", page, re.DOTALL)
    assert found is not None
    figures: dict[str, Any] = json.loads(found[1])
    return figures


def page_of(path: Path, *settings: str) -> tuple[str, list[dict[str, Any]]]:
    runs = load_runs(path, settings)
    rows = [run_scenario(run.scenario, 0) for run in runs]
    return render("A sweep", runs, rows, at_objective(runs, rows), 0), rows


def test_a_line_for_each_placement_runs_over_the_loads(tmp_path: Path) -> None:
    page, rows = page_of(scenario(tmp_path, SCENARIO + SWEEP))
    figures = figures_of(page)
    assert list(figures) == ["attainment", "goodput", "tiers"]
    lines = {line["name"]: line for line in figures["attainment"]["data"]}
    assert list(lines) == ["policy.placement=least_load", "policy.placement=random"]
    assert lines["policy.placement=random"]["x"] == [1000000, 3000000]
    assert lines["policy.placement=random"]["y"] == [rows[3]["attainment"], rows[1]["attainment"]]
    assert figures["attainment"]["layout"]["shapes"][0]["y0"] == 0.5
    assert figures["goodput"]["data"][0]["y"] == [rows[2]["goodput_req_s"], rows[0]["goodput_req_s"]]
    (mark,) = figures["goodput"]["layout"]["shapes"]
    assert mark["x0"] == mark["x1"] == rows[0]["optimal_req_s"] == figures["attainment"]["layout"]["shapes"][1]["x0"]
    assert "The optimum by the closed form, in requests/s: " in page
    assert [line["x"] for line in figures["tiers"]["data"]] == [["fast", "slow"]] * 4
    assert "The highest load that meets the objective" in page
    assert "4 runs of 50 requests on 2 simulated instances of hand, seed 0" in page


def test_without_a_load_there_are_the_tiers(tmp_path: Path) -> None:
    page, rows = page_of(scenario(tmp_path))
    figures = figures_of(page)
    assert list(figures) == ["tiers"]
    (line,) = figures["tiers"]["data"]
    assert (line["name"], line["y"]) == ("the run", list(rows[0]["attainment_by_tier"].values()))
    assert "a run of 50 requests" in page


def test_no_name_runs_as_markup(tmp_path: Path) -> None:
    (tmp_path / "<b>.yaml").write_text(PROFILE)
    text = SCENARIO.replace("name: slow", "name: '</script><i>'").replace("hand.yaml", '"<b>.yaml"')
    page, _ = page_of(scenario(tmp_path, text))
    assert "<i>" not in page
    assert "<b>" not in page


def run(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(simulate, [str(one) for one in arguments], catch_exceptions=False)
    return result.exit_code, result.output


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    path = scenario(tmp_path, SCENARIO + SWEEP)
    code, reported = run(path, "--jobs", "1", "--html", tmp_path / "out.html")
    assert code == 0, reported
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<h1>Simulation of scenario</h1>" in page
    assert list(figures_of(page)) == ["attainment", "goodput", "tiers"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("page.png", "name a file that ends with .html"),
        ("none/page.html", "does not exist"),
        ("mine.html", "mine.html is one of the inputs"),
        ("trace.html", "trace.html is one of the inputs"),
        ("profile.html", "profile.html is one of the inputs"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "profile.html").write_text(PROFILE)
    trace = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,10,1\n"
    (tmp_path / "trace.html").write_text(trace)
    text = SCENARIO.replace("hand.yaml", "profile.html").replace("{uniform: [1, 50]}", "{trace: trace.html}")
    (tmp_path / "mine.html").write_text(text)
    code, reported = run(tmp_path / "mine.html", "--html", tmp_path / name)
    assert code == 2
    assert words in reported
    assert (tmp_path / "trace.html").read_text() == trace
