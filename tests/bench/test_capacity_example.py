"""`examples/capacity`: which settings differ, by hand; and the page has what the results have."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.patience import WAIT_S

from otel_llm.cli.commands.capacity_command import capacity
from otel_llm.config.durations import parse_duration_ns
from otel_llm.config.yaml_file import load_yaml
from otel_llm.rules.files.slo_file import load_slo

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "capacity"
sys.path[:0] = [str(FOLDER), str(ROOT / "examples" / "sweeping")]  # scripts that find each other as when they are run

from capacity_answers import Interval, compare, comparisons, figures, interval_of, readme_tables  # noqa: E402
from capacity_cases import CASES, INPUT, OUTPUT, load_results, search_command  # noqa: E402
from markdown_tables import inserted  # noqa: E402

RESULTS = load_results(FOLDER)


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        ((16, 32), (4, 8), "a carries more than b: 16 to 32 requests/s against 4 to 8 requests/s."),
        ((4, 8), (16, 32), "a carries less than b: 4 to 8 requests/s against 16 to 32 requests/s."),
        ((16, 32), (8, 20), "No difference is shown between a and b: 16 to 32 requests/s, and 8 to 20 requests/s."),
        ((16, 32), (20, 24), "No difference is shown between a and b: 16 to 32 requests/s, and 20 to 24 requests/s."),
        ((16, 32), (8, 16), "No difference is shown between a and b: 16 to 32 requests/s, and 8 to 16 requests/s."),
        ((16, None), (4, 8), "a carries more than b: at least 16 requests/s against 4 to 8 requests/s."),
        ((None, 2), (4, None), "a carries less than b: below 2 requests/s against at least 4 requests/s."),
        (
            (9, None),
            (5, None),
            "No difference is shown between a and b: at least 9 requests/s, and at least 5 requests/s.",
        ),
        ((None, 8), (None, 2), "No difference is shown between a and b: below 8 requests/s, and below 2 requests/s."),
        ((None, None), (4, 8), "No difference is shown between a and b: nothing known, and 4 to 8 requests/s."),
    ],
)
def test_two_cases_differ_only_where_their_intervals_are_apart(one: Any, other: Any, says: str) -> None:
    assert compare("a", Interval(*one), "b", Interval(*other)) == says


def made_up(low: float | None, high: float | None) -> dict[str, Any]:
    """A result with a probe that holds, one that says nothing, and one that is not valid."""
    probe = {
        "rate": 8.0,
        "requests": 500,
        "valid": True,
        "why": None,
        "verdict": "holds",
        "value": 0.99,
        "low": 0.95,
        "high": 1.0,
        "raw": 0.98,
        "backlog_slope": None,
        "seconds": 60.0,
    }
    empty = dict.fromkeys(("value", "low", "high", "raw"))
    probes = [probe, probe | empty | {"verdict": "undecided"}, probe | {"valid": False, "verdict": "undecided"}]
    answer = {"capacity_low": low, "capacity_high": high, "decided": False, "why": "the budget is spent"}
    return {
        "answer": answer | {"probes": probes, "tokens_per_s_at_low": None},
        "seconds": 90.0,
        "versions": {"otel-llm": "0"},
        "machine": "m",
        "started": "now",
        "load_average": 0.0,
    }


def test_tables_and_pictures_of_an_answer_with_an_open_end() -> None:
    results = {"engine-a-1": made_up(8.0, None), "engine-b": made_up(None, 4.0)}
    assert comparisons(results) == [
        "engine a, first search carries more than engine b: at least 8 requests/s against below 4 requests/s."
    ]
    tables = readme_tables(results)
    assert "| engine b | below 4 requests/s | no: the budget is spent | 3 | 1,500 | 1.5 | - |" in tables["answers"]
    assert "| engine b | not valid | 8 |" in tables["probes"]
    drawn = figures(results)
    bars = [trace for trace in drawn["intervals"][1]["data"] if trace["mode"] == "lines"]
    assert [trace["x"] for trace in bars] == [[8.0, 128], [0.5, 4.0]], "an open end reaches to that of the range"
    assert [trace["x"] for trace in drawn["shares"][1]["data"]] == [[8.0], [8.0]]


def test_the_readme_has_the_tables_and_each_picture_its_place() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert text == inserted(text, readme_tables(RESULTS))
    for name in figures(RESULTS):
        assert f"({name}.png)" in text
        assert not RESULTS or (FOLDER / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", CASES)
def test_the_command_of_a_case_is_one_and_its_result_is_of_it(name: str) -> None:
    words = search_command(CASES[name], "http://127.0.0.1:8000/v1")
    capacity.make_context("capacity", words[2:], parent=click.Context(capacity))
    result = RESULTS.get(name)
    if result is not None:
        url = shlex.split(result["command"])[2]
        assert shlex.split(result["command"]) == search_command(CASES[name], url)
        low, high = interval_of(result)
        assert result["answer"]["decided"] == (low is not None and high is not None and not result["exit_code"])


@pytest.mark.parametrize(("name", "replicas"), [("scenario", 1), ("scenario-relay", 2)])
def test_what_is_simulated_is_what_is_measured(name: str, replicas: int) -> None:
    data: Any = load_yaml(FOLDER / f"{name}.yaml").data
    (tier,) = data["workload"]["tiers"]
    deadline = load_slo(FOLDER / "slo.yaml").choose(None, {})[0].deadline
    assert (deadline.first_ns, deadline.next_ns) == (parse_duration_ns(tier["ttft"]), parse_duration_ns(tier["tpot"]))
    assert data["workload"]["lengths"] == {"input": {"uniform": [*INPUT]}, "output": {"uniform": [*OUTPUT]}}
    assert data["fleet"] == {"instances": replicas}


def test_the_simulated_answer_follows_from_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in RESULTS.keys() & {"simulated"}:
        done = CliRunner().invoke(capacity, search_command(CASES[name], "")[2:], catch_exceptions=False)
        wanted, found = RESULTS[name]["answer"], json.loads(done.stdout)
        assert [found["capacity_low"], found["capacity_high"]] == [wanted["capacity_low"], wanted["capacity_high"]]
        assert [one["verdict"] for one in found["probes"]] == [one["verdict"] for one in wanted["probes"]]


def test_the_help_has_examples() -> None:
    command = [sys.executable, str(FOLDER / "run_capacity.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert "--case engine-b" in done.stdout
