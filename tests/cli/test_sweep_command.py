"""`otel-llm sweep`: recordings with and without a load said, what is printed and written, and what is refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.recordings import bursts, json_lines

from otel_llm.audit.compare.sweep import OPTIMA, POINTS
from otel_llm.cli.commands.sweep_command import sweep_command
from otel_llm.cli.main import COMMANDS

S = 10**9


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(sweep_command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recordings q1, q2 and q4 of so many requests a second, each slower than the one before."""
    monkeypatch.chdir(tmp_path)
    for load, idle in ((1, 0), (2, 1), (4, 6)):
        (tmp_path / f"q{load}.jsonl").write_bytes(json_lines(bursts([idle * S] * 30, S // load)))
    return tmp_path


ALL = ("--at", "1=q1.jsonl", "--at", "2=q2.jsonl", "--at", "4=q4.jsonl")


def test_the_command_is_in_the_list_of_commands() -> None:
    assert COMMANDS["sweep"][:2] == ("otel_llm.cli.commands.sweep_command", "sweep_command")


@pytest.mark.parametrize("option", ["--points", "--optima"])
def test_the_slo_file_is_not_written_over(runs: Path, option: str) -> None:
    (runs / "slo.jsonl").write_text("version: 1\ndefault: a\nclasses: {a: {}}\n")
    for name in ("slo.jsonl", "q2.jsonl"):
        before = (runs / name).read_bytes()
        result = run(*ALL, "--slo", "slo.jsonl", option, name)
        assert result.exit_code == 2, result.output
        assert f"{name} is one of the inputs" in result.stderr
        assert (runs / name).read_bytes() == before


@pytest.mark.usefixtures("runs")
def test_the_table_names_the_best_loads() -> None:
    result = run(*ALL, "--alpha", "0,10", "--reading-speed", "5")

    assert result.exit_code == 0, result.output
    assert "Smooth goodput" in result.stdout
    lines = [
        line.split() for line in result.stdout.split("The load of the highest")[1].splitlines() if "client" in line
    ]
    assert [line[:4] for line in lines] == [["client", "5", "0", "4"], ["client", "5", "10", "1"]]
    assert "edge: the lowest or the highest load recorded" in result.stdout


@pytest.mark.usefixtures("runs")
def test_json_and_csv_hold_every_point() -> None:
    found = json.loads(run(*ALL, "--alpha", "0..10", "--reading-speed", "3,5", "--format", "json").stdout)
    lines = list(csv.DictReader(io.StringIO(run(*ALL, "--alpha", "0..10", "--format", "csv").stdout)))

    assert len(found["points"]) == 3 * 11 * 2
    assert len(found["optima"]) == 11 * 2
    assert list(found["points"][0]) == list(lines[0]) == list(POINTS)
    assert list(found["optima"][0]) == list(OPTIMA)
    assert len(lines) == 33


def test_points_best_loads_and_pictures_are_written(runs: Path) -> None:
    result = run("q1.jsonl", "q2.jsonl", "--points", "p.parquet", "--optima", "o.csv", "--html", "s.html")

    assert result.exit_code == 0, result.output
    assert (runs / "p.parquet").stat().st_size > 0
    assert len((runs / "o.csv").read_text().splitlines()) == 12
    assert (runs / "s.html").read_text("utf-8").startswith("<!doctype html>")


@pytest.mark.usefixtures("runs")
def test_a_load_that_nobody_said_is_the_recordings_own() -> None:
    (point,) = json.loads(run("q2.jsonl", "--alpha", "1", "--format", "json").stdout)["points"]
    assert point["load_req_s"] == pytest.approx(30 / (14.5 + 1.2))


@pytest.mark.parametrize("path", ["parts", "parts/*.jsonl"])
def test_several_files_of_one_load_are_one_path(runs: Path, path: str) -> None:
    lines = (runs / "q2.jsonl").read_bytes().splitlines(keepends=True)
    (runs / "parts").mkdir()
    for name, part in (("a", lines[:40]), ("b", lines[40:])):
        (runs / "parts" / f"{name}.jsonl").write_bytes(b"".join(part))
    whole, parts = (
        json.loads(run("--at", f"2={one}", "--alpha", "1", "--format", "json").stdout)["points"]
        for one in ("q2.jsonl", path)
    )
    assert [{**point, "recording": path} for point in whole] == [
        # The intervals are drawn by the recording's name.
        {**point, **{key: whole[0][key] for key in point if key.endswith(("_low", "_high"))}}
        for point in parts
    ]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no recording: name a PATH"),
        (["--at", "q1.jsonl"], "--at 'q1.jsonl': write LOAD=PATH"),
        (["--at", "-1=q1.jsonl"], "write LOAD=PATH"),
        (["q1.jsonl", "--alpha", "x"], "--alpha 'x'"),
        (["q1.jsonl", "--reading-speed", "0"], "write speeds above zero"),
        (["q1.jsonl", "--class", "nobody"], "no SLO class 'nobody'"),
        (["q1.jsonl", "--points", "p.txt"], "cannot tell the format"),
        (["--at", "1=q1.jsonl", "--at", "1=q2.jsonl"], "give each load once; where a load is of several files"),
        (["missing.jsonl"], "missing.jsonl"),
        (["q1.jsonl", "--resamples", "3"], "3 resamples are too few"),
    ],
)
def test_bad_usage_is_exit_2_with_a_remedy(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
