"""`otel-llm audit --baseline` and `--tiers`: what is printed, when the gate shuts, and what goes with what."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from support.recordings import bursts, json_lines

from otel_llm.audit.compare.comparison import COLUMNS
from otel_llm.audit.compare.tiers import COLUMNS as TIER_COLUMNS
from otel_llm.cli.commands.audit_command import audit
from otel_llm.slo.figures import FIGURES

S = 10**9


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(audit, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recordings `old` and `same` of readers who wait up to a second, and `slow` of ones who wait a second more."""
    monkeypatch.chdir(tmp_path)
    for name, more in (("old", 0), ("same", 0), ("slow", S)):
        messages = bursts([more + number * 20_000_000 for number in range(1, 51)], S)
        (tmp_path / f"{name}.jsonl").write_bytes(json_lines(messages))
    return tmp_path


@pytest.mark.parametrize("option", ["--requests", "--windows", "--streams", "--html"])
def test_the_baseline_is_not_written_over(folder: Path, option: str) -> None:
    name = {"--streams": "old.parquet", "--html": "old.html"}.get(option, "old.jsonl")
    if name != "old.jsonl":
        (folder / "old.jsonl").rename(folder / name)
    before = (folder / name).read_bytes()
    result = run("same.jsonl", "--baseline", name, option, name)
    assert result.exit_code == 2, result.output
    assert f"{name} is one of the inputs" in result.stderr
    assert (folder / name).read_bytes() == before


@pytest.mark.usefixtures("folder")
def test_the_table_says_what_changed_and_how_sure_that_is() -> None:
    result = run("slow.jsonl", "--baseline", "old.jsonl")

    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if "idle_p50_s" in line)
    assert line.split()[-1] == "worse"
    assert "+1 s" in line
    for words in ("50 requests in old, 50 in new", "too few: 50 of 368 in old", "1,000 resamples", "-100 pt"):
        assert words in " ".join(result.stdout.split()), words
    assert "What the readers felt" not in result.stdout


@pytest.mark.usefixtures("folder")
def test_json_holds_both_summaries_and_csv_a_line_for_each_figure() -> None:
    found = json.loads(run("slow.jsonl", "--baseline", "old.jsonl", "--format", "json", "--seed", "3").stdout)
    lines = list(csv.DictReader(io.StringIO(run("slow.jsonl", "--baseline", "old.jsonl", "--format", "csv").stdout)))

    assert list(found) == ["old", "new", "comparison", "regressions", "gate"]
    assert found["gate"] is None
    assert found["old"]["requests"] == found["new"]["requests"] == 50
    assert found["comparison"]["seed"] == 3
    assert list(found["comparison"]["figures"][0]) == list(lines[0]) == list(COLUMNS)
    assert [line["figure"] for line in lines] == [figure.name for figure in FIGURES]


@pytest.mark.usefixtures("folder")
def test_the_gate_shuts_where_readers_wait_longer() -> None:
    assert run("slow.jsonl", "--baseline", "old.jsonl").exit_code == 0
    assert run("same.jsonl", "--baseline", "old.jsonl", "--fail-on-regression").exit_code == 0
    assert run("old.jsonl", "--baseline", "slow.jsonl", "--fail-on-regression").exit_code == 0
    shut = run("slow.jsonl", "--baseline", "old.jsonl", "--fail-on-regression")

    assert shut.exit_code == 1
    assert "regression: chat, client: idle_p50_s is worse by more than 0.1" in shut.stderr
    assert "not judged: chat, idle_p99_s: too few: 50 of 368" in shut.stderr


@pytest.mark.usefixtures("folder")
def test_the_gate_says_which_figures_it_looks_at_and_what_it_decided() -> None:
    gated = ("--baseline", "old.jsonl", "--fail-on-regression")
    shut, passed = run("slow.jsonl", *gated), run("same.jsonl", *gated)
    words = "gate failed: of 8 gated figures 4 are worse beyond their threshold, 2 held, 2 could not be judged"
    assert words in shut.stderr
    assert "gate passed: of 8 gated figures 0 are worse beyond their threshold, 6 held" in passed.stderr
    table = shut.stdout.split("--fail-on-regression")[1]
    line = next(line for line in table.splitlines() if "idle_p50_s" in line)
    assert line.split()[-3:] == ["100", "ms", "worse"]
    assert "not judged: too few: 50 of 368" in " ".join(table.split())
    found = json.loads(run("slow.jsonl", *gated, "--format", "json").stdout)["gate"]
    decided = {one["figure"]: (one["decision"], one["allowed"]) for one in found}
    assert decided["idle_p50_s"] == ("worse", 0.1)
    assert decided["aborted_share"] == ("held", 0.01)


def test_the_report_contains_the_comparison_and_the_gate(folder: Path) -> None:
    gated = ("--baseline", "old.jsonl", "--fail-on-regression")
    run("slow.jsonl", *gated, "--html", "gated.html")
    run("slow.jsonl", "--baseline", "old.jsonl", "--html", "plain.html")
    run("slow.jsonl", "--html", "alone.html")
    with_gate, plain, alone = ((folder / f"{one}.html").read_text() for one in ("gated", "plain", "alone"))

    assert "Compared with the baseline" in with_gate
    assert "<code>old.jsonl</code>" in with_gate
    assert "<td class='words bad'>worse</td>" in with_gate
    assert "Gate failed: of 8 gated figures" in with_gate
    assert "bootstrap interval of the difference" in plain
    assert "Gate failed" not in plain
    assert "Compared with the baseline" not in alone


@pytest.mark.parametrize(("new", "old", "names"), [("none", "old", "PATH"), ("old", "none", "--baseline")])
def test_the_gate_does_not_open_where_a_side_has_no_request(folder: Path, new: str, old: str, names: str) -> None:
    (folder / "none.jsonl").write_text('{"resourceSpans":[]}\n')
    compared = (f"{new}.jsonl", "--baseline", f"{old}.jsonl")
    result = run(*compared, "--fail-on-regression")

    assert run(*compared).exit_code == 0
    assert result.exit_code == 2
    says = f"--fail-on-regression: {names}: there is no request in the input, so nothing was shown"
    assert says in " ".join(result.stderr.split())


@pytest.mark.parametrize(("ttft_s", "exit_code"), [(0.5, 0), (None, 2)])
def test_spans_that_state_their_first_token_alone_can_be_compared(
    folder: Path, ttft_s: float | None, exit_code: int
) -> None:
    table = pa.table(
        {
            "times_ns": pa.array([[]] * 1000, pa.list_(pa.int64())),
            "commit_ns": pa.array(range(S, 1001 * S, S), pa.int64()),
            "end_ns": pa.array(range(2 * S, 1002 * S, S), pa.int64()),
            "foreign": [True] * 1000,
            "complete": [False] * 1000,
            "token_basis": pa.array([None] * 1000, pa.string()),
            "coverage": pa.array([None] * 1000, pa.float64()),
            "foreign_ttft_s": pa.array([ttft_s] * 1000, pa.float64()),
        }
    )
    pq.write_table(table, folder / "foreign.parquet")
    result = run("foreign.parquet", "--baseline", "foreign.parquet", "--fail-on-regression")

    assert result.exit_code == exit_code, result.output
    assert ("no judged request among 1,000 requests" in " ".join(result.stderr.split())) == bool(exit_code)


def test_an_objective_missed_is_one_even_where_the_other_gate_had_nothing_to_compare(folder: Path) -> None:
    (folder / "none.jsonl").write_text('{"resourceSpans":[]}\n')
    result = run("slow.jsonl", "--baseline", "none.jsonl", "--fail-on-regression", "--fail-on-objective")

    assert result.exit_code == 1
    assert "attainment for 99 %: 0 % (0 of 50), missed" in result.stderr
    assert "--fail-on-regression: --baseline: there is no request" in result.stderr


@pytest.mark.usefixtures("folder")
def test_thresholds_open_and_shut_it() -> None:
    off = [f"--threshold={name}=off" for name in ("attainment", "benefit_mean_tokens", "fluidity_ok_share")]
    gate = ("slow.jsonl", "--baseline", "old.jsonl", "--fail-on-regression", *off)

    assert run(*gate, "--threshold", "idle_p50_s=2s").exit_code == 0
    assert run(*gate, "--threshold", "idle_p50_s=500ms").exit_code == 1
    assert run(*gate, "--threshold", "idle_p50_s=off", "--threshold", "goodput_tok_s=10%").exit_code == 1


@pytest.mark.usefixtures("folder")
def test_several_baselines_are_one_recording() -> None:
    both = ("--baseline", "old.jsonl", "--baseline", "slow.jsonl", "--format", "json")
    assert json.loads(run("same.jsonl", *both).stdout)["old"]["requests"] == 50  # the same ids: received twice


@pytest.mark.usefixtures("folder")
def test_several_runs_are_a_row_each_with_rates_of_their_own() -> None:
    runs = ("--runs", "old.jsonl", "s*.jsonl")
    lines = list(csv.DictReader(io.StringIO(run(*runs, "--format", "csv").stdout)))
    found = json.loads(run(*runs, "--format", "json").stdout)["runs"]
    alone = json.loads(run("slow.jsonl", "--format", "json").stdout)

    assert [line["run"] for line in lines] == ["old.jsonl", "same.jsonl", "slow.jsonl"]
    assert found[2] == {"run": "slow.jsonl", "load_req_s": None, **alone}
    assert float(lines[2]["throughput_req_s"]) == alone["classes"]["chat"]["client"]["throughput_req_s"]
    table = run(*runs).stdout
    assert all(name in table for name in ("old.jsonl", "same.jsonl", "slow.jsonl", "TTFT", "E2E"))
    refused = run(*runs, "--html", "x.html")
    assert (refused.exit_code, "leave out what is about one recording" in refused.stderr) == (2, True)


@pytest.mark.usefixtures("folder")
def test_tiers_are_shown_beside_the_audit() -> None:
    table = run("old.jsonl", "--tiers").stdout
    found = json.loads(run("old.jsonl", "--tiers", "--format", "json").stdout)
    (*_, line) = csv.DictReader(io.StringIO(run("old.jsonl", "--tiers", "--format", "csv").stdout))

    assert "What the readers felt" in table
    row = next(line for line in table.split("Attainment by tier")[1].splitlines() if "client" in line).split()
    assert row[:5] == ["client", "chat", "50", "100", "%"]
    # Under code (20 tokens/s) the first is due after 50 ms: of the 50, 17 wait at most 500 ms from there.
    assert row[5:11] == ["100", "%", "34", "%", "100", "%"]
    (mine,) = found["tiers"]["by_class"]
    assert mine["tiers"]["code"]["attainment"] == 0.34
    assert list(line) == list(TIER_COLUMNS)


def test_the_report_gets_the_tiers(folder: Path) -> None:
    assert run("old.jsonl", "--tiers", "--html", "r.html").exit_code == 0
    assert "The classes as tiers" in (folder / "r.html").read_text("utf-8")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--fail-on-regression"], "--baseline OLD"),
        (["--by", "model"], "--baseline OLD"),
        (["--baseline", "same.jsonl", "--threshold", "attainment=1"], "add --fail-on-regression"),
        (["--baseline", "same.jsonl", "--fail-on-regression", "--threshold", "x=1"], "no threshold"),
        (["--baseline", "same.jsonl", "--tiers"], "one at a time"),
        (["--baseline", "missing.jsonl"], "missing.jsonl"),
        (["--baseline", "same.jsonl", "--resamples", "5"], "'--resamples': 5 is not in the range x>=100"),
        (["--baseline", "same.jsonl", "--confidence", "95"], "a confidence of 95"),
    ],
)
def test_bad_usage_is_exit_2_with_a_remedy(arguments: list[str], says: str) -> None:
    result = run("old.jsonl", *arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
