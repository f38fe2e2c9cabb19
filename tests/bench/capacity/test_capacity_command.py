"""`otel-llm capacity`: simulated searches, a real server, the page, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.bench.fleets import FLEET, fleet
from support.bench.loads import MODEL, After, counted
from support.sse_server import Cut, Reply, SseServer, words

from otel_llm.audit.load import load
from otel_llm.bench.client.learning import OUTPUT_TOKENS
from otel_llm.cli.commands.capacity_command import capacity
from otel_llm.cli.main import COMMANDS

SIMULATED = ("--between", "2..32", "--precision", "1.0", "--budget", "8000")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(capacity, [str(argument) for argument in arguments], catch_exceptions=False)


def found_by(*arguments: str | Path, status: int = 0) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == status, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_command_is_in_the_list_of_commands() -> None:
    assert COMMANDS["capacity"][:2] == ("otel_llm.cli.commands.capacity_command", "capacity")


def test_a_simulated_search_is_a_function_of_its_seed_and_draws_its_probes(tmp_path: Path) -> None:
    path = fleet(tmp_path)
    page = tmp_path / "page.html"
    first = found_by("--simulate", path, *SIMULATED, "--seed", "3", "--html", page)
    assert first == found_by("--simulate", path, *SIMULATED, "--seed", "3")
    assert first["decided"]
    assert first["capacity_high"] / first["capacity_low"] <= 2
    assert first["objective"] == "attainment >= 0.9"
    assert {"rate", "requests", "valid", "verdict", "value", "low", "high", "raw", "backlog_slope", "seconds"} <= set(
        first["probes"][0]
    )
    assert first["tokens_per_s_at_low"] > 0
    written = page.read_text("utf-8")
    assert "between" in written
    assert "The probes" in written


def test_a_range_beyond_the_capacity_is_reported_and_exits_1(tmp_path: Path) -> None:
    path = fleet(tmp_path)
    below = found_by("--simulate", path, "--between", "100..200", "--precision", "1.0", status=1)
    assert below["capacity_low"] is None
    assert below["capacity_high"] == 100.0
    assert "below the range" in below["why"]
    shown = run("--simulate", path, "--between", "1..2", "--precision", "2.0", "--budget", "5000")
    assert shown.exit_code == 1
    assert "above the range" in " ".join(shown.output.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "name a URL"),
        (["http://127.0.0.1:9"], "--model"),
        (["http://127.0.0.1:9", "--simulate", "SCENARIO"], "exclude each other"),
        (["--simulate", "SCENARIO", "--budget", "15m"], "number of requests"),
        (["--simulate", "SCENARIO", "--between", "4"], "0.5..64"),
        (["--simulate", "SCENARIO", "--between", "8..4"], "0.5..64"),
        (["--simulate", "SCENARIO", "--between", "0..4"], "0.5..64"),
        (["--simulate", "SCENARIO", "--between", "nan..4"], "0.5..64"),
        (["--simulate", "SCENARIO", "--between", "1..inf"], "0.5..64"),
        (["--simulate", "SCENARIO", "--budget", "0"], "nothing"),
        (["--simulate", "SCENARIO", "--rate", "4"], "No such option"),
        (["--simulate", "SCENARIO", "--objective", "attainment >= 2"], "^"),
        (["--simulate", "SCENARIO", "--objective", ""], "^"),
        (["--simulate", "SCENARIO", "--precision", "nan"], "no number"),
        (["--simulate", "SCENARIO", "--confidence", "nan"], "no number"),
        (["--simulate", "SCENARIO", "--budget", "10000001"], "at most 10,000,000 requests"),
        (["--simulate", "SCENARIO", "--out", "x"], "--out"),
        (["--simulate", "SCENARIO", "--arrivals", "constant"], "--arrivals"),
        (["--simulate", "SCENARIO", "--html", "x.txt"], ".html"),
        (["--simulate", "missing.yaml"], "missing.yaml"),
        (["http://127.0.0.1:9", "--model", "m"], "127.0.0.1:9"),
    ],
)
def test_what_is_refused_exits_2_and_says_why(tmp_path: Path, arguments: list[str], says: str) -> None:
    path = fleet(tmp_path)
    result = run(*[str(path) if one == "SCENARIO" else one for one in arguments])
    assert result.exit_code == 2, result.output
    assert says in result.output


def test_a_sweep_and_an_objective_of_each_tier_are_refused(tmp_path: Path) -> None:
    sweep = fleet(tmp_path, FLEET + "sweep: {fleet.instances: [1, 2]}\n")
    assert "leave the sweep out" in run("--simulate", sweep).output
    tiers = fleet(tmp_path, FLEET.replace("{attainment: 0.9}", "{attainment: 0.9, every_tier: true}"))
    assert "every_tier" in run("--simulate", tiers).output


@pytest.mark.system
def test_a_server_is_probed_and_each_probe_is_recorded(tmp_path: Path) -> None:
    out = tmp_path / "probes"
    with SseServer({MODEL: counted(3)}) as server:
        found = found_by(
            server.url, "--model", MODEL, "--between", "30..60", "--budget", "200", "--objective", "attainment >= 0.5",
            "--output", "3", "--out", out, status=1,
        )  # fmt: skip
    assert {probe["verdict"] for probe in found["probes"]} == {"undecided"}, "the warm-up of 5 s is longer"
    assert found["why"].startswith("the budget is spent; no probe was longer than its warm-up")
    assert found["probes"][0]["errors"] == {}
    folders = sorted(out.iterdir())
    assert folders[0].name == "probe-01-42.4"
    assert len(folders) == len(found["probes"])
    assert load(folders[0]).summary()["requests"] == found["probes"][0]["requests"]
    kept = json.loads((folders[0] / "run.json").read_text())
    assert kept["rate"] == pytest.approx(found["probes"][0]["rate"])
    of_search = {"between": "30..60", "budget": "200", "precision": 0.1, "confidence": 0.95, "slo": None}
    assert {name: kept["settings"][name] for name in of_search} == of_search
    assert (kept["settings"]["rate"], kept["settings"]["duration_s"]) == (None, None), "the search sets them"


@pytest.mark.system
def test_a_probe_that_no_plan_can_hold_ends_the_search_with_the_interval_so_far() -> None:
    with SseServer({MODEL: counted(3)}) as server:
        found = found_by(
            server.url, "--model", MODEL, "--between", "500000..1000000", "--budget", "1h", "--output", "3", status=1
        )
    assert (found["probes"], found["capacity_low"], found["capacity_high"]) == ([], None, None)
    assert "shorten the load" in found["why"]


@pytest.mark.system
def test_requests_that_fail_are_counted_by_kind() -> None:
    cut = Reply([*words(2), Cut()])
    with SseServer({MODEL: After(counted(OUTPUT_TOKENS), cut)}) as server:
        shown = run(server.url, "--model", MODEL, "--between", "30..60", "--budget", "80", "--output", "3")
    assert shown.exit_code == 1
    assert "80 of 80 requests failed: closed_early 80" in " ".join(shown.output.split())
