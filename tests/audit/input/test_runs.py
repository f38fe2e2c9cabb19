"""A result file of several runs: each is a load of its own, by the rate that the file states."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.formats.bench_files import NS, Chunk, Requested, genai_perf_entry, guidellm_entry, sglang_run, vllm_run

from otel_llm.audit import SeveralRunsError, load
from otel_llm.audit.input.runs import load_runs
from otel_llm.cli.commands.audit_command import audit
from otel_llm.cli.commands.sweep_command import sweep_command
from otel_llm.formats.records import InputError

MS = 1_000_000
Requests = Sequence[Requested]


def requests_of(run: int, requests: int) -> list[Requested]:
    return [Requested((10 * run + at) * NS, (Chunk(200 * MS), Chunk((260 + run) * MS))) for at in range(requests)]


def vllm(runs: Sequence[tuple[float | str, Requests]]) -> bytes:
    each = (vllm_run(sent, request_rate=rate, duration=at) for at, (rate, sent) in enumerate(runs))
    return b"".join(json.dumps(run).encode() + b"\n" for run in each)


def sglang(runs: Sequence[tuple[float | str, Requests]]) -> bytes:
    return json.dumps(
        [sglang_run(sent, request_rate=rate, duration=at) for at, (rate, sent) in enumerate(runs)]
    ).encode()


def guidellm(runs: Sequence[tuple[float | str, Requests]]) -> bytes:
    benchmarks = []
    number = 0
    for rate, sent in runs:
        entries = [guidellm_entry(one, number := number + 1) for one in sent]
        strategy = {"type_": "constant", "rate": rate} if isinstance(rate, float) else {"type_": "concurrent"}
        benchmarks.append({"config": {"strategy": strategy}, "requests": {"successful": entries}})
    return json.dumps({"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": benchmarks}).encode()


def genai_perf(runs: Sequence[tuple[float | str, Requests]]) -> bytes:
    experiments = [
        {
            "experiment": {"mode": "request_rate" if isinstance(rate, float) else "concurrency", "value": rate},
            "requests": [genai_perf_entry(one) for one in sent],
        }
        for rate, sent in runs
    ]
    return json.dumps({"experiments": experiments}).encode()


WRITERS: dict[str, Callable[[Sequence[tuple[float | str, Requests]]], bytes]] = {
    "vllm": vllm,
    "sglang": sglang,
    "guidellm": guidellm,
    "genai-perf": genai_perf,
}
RUNS: list[tuple[float | str, Requests]] = [
    (1.0, requests_of(0, 3)),
    (2.5, requests_of(1, 2)),
    ("inf", requests_of(2, 4)),
]


@pytest.mark.parametrize("tool", sorted(WRITERS))
def test_each_run_is_a_recording_at_the_rate_that_the_file_states(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(WRITERS[tool](RUNS))
    found = [(run.name, run.load_req_s, sum(map(len, run.streams))) for run in load_runs(path)]
    assert found == [(f"{path}#1", 1.0, 3), (f"{path}#2", 2.5, 2), (f"{path}#3", None, 4)]


@pytest.mark.parametrize("tool", sorted(WRITERS))
def test_a_file_of_one_run_keeps_its_name_and_states_its_rate(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(WRITERS[tool](RUNS[1:2]))
    for given, stated in ((None, 2.5), (7.0, 7.0)):
        (run,) = load_runs(path, given)
        assert (run.name, run.load_req_s, sum(map(len, run.streams))) == (str(path), stated, 2)
    assert len(load(path).rows) == 2


def test_runs_of_several_rates_take_no_load_of_the_caller(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(vllm(RUNS))
    with pytest.raises(InputError, match=r"3 runs at 1, 2\.5, none requests/s: give the file without a load"):
        list(load_runs(path, 2.0))
    path.write_bytes(vllm([RUNS[0], (1.0, requests_of(3, 2))]))
    (run,) = load_runs(path, 2.0)
    assert (run.load_req_s, sum(map(len, run.streams))) == (2.0, 5)


def test_a_folder_with_a_file_of_several_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(vllm(RUNS[:1]))
    (run,) = load_runs(tmp_path)
    assert (run.name, sum(map(len, run.streams))) == (str(tmp_path), 3)
    (tmp_path / "two").write_bytes(vllm(RUNS[1:]))
    with pytest.raises(InputError, match=r"two: 2 runs of a benchmark, at 2\.5, none requests/s"):
        [list(run.streams) for run in load_runs(tmp_path)]


@pytest.mark.parametrize("tool", sorted(WRITERS))
def test_an_audit_judges_one_run_and_never_several_together(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(WRITERS[tool](RUNS))
    with pytest.raises(SeveralRunsError, match=r"3 runs of a benchmark, at 1, 2\.5, none requests/s") as several:
        load(path)
    assert several.value.loads == (1.0, 2.5, None)
    for number, requests in enumerate((3, 2, 4), 1):
        for run in (number, str(number), f"{path}#{number}"):
            found = load(path, run=run)
            assert (found.inputs, len(found.rows)) == ((f"{path}#{number}",), requests)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (0, "no run 0: it has 3 runs"),
        (4, "no run 4: it has 3 runs"),
        ("-1", "'-1' names no run"),
        ("9" * 5000, "names no run"),
        ("other#1", "run other#1: no such file among the paths"),
    ],
)
def test_a_run_that_is_not_there_is_refused(run: int | str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(vllm(RUNS))
    with pytest.raises(InputError, match=says):
        load(path, run=run)


def test_a_run_of_several_files_is_named_and_of_no_other_format_chosen(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(vllm(RUNS))
    with pytest.raises(InputError, match=r"run 2: 2 files among the paths: name the run as FILE#NUMBER"):
        load(tmp_path, run=2)
    assert len(load(tmp_path, run=f"{tmp_path / 'b'}#3").rows) == 4
    times = tmp_path / "times.csv"
    times.write_text("request,t_seconds\n1,0.1\n1,0.2\n")
    assert audited(tmp_path / "a", "--run", "1", "--streams", str(tmp_path / "times.parquet")).exit_code == 0
    for other in (times, tmp_path / "times.parquet"):
        with pytest.raises(InputError, match="this format has no runs to choose from: leave out the run 1"):
            load(other, run=1)


def audited(path: Path, *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(audit, [str(path), *arguments], input=stdin, catch_exceptions=False)


@pytest.mark.parametrize("tool", sorted(WRITERS))
def test_the_audit_of_a_file_of_several_runs_is_a_row_for_each(tool: str, tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(WRITERS[tool](RUNS))
    found = json.loads(audited(path, "--format", "json").stdout)["runs"]
    assert [(one["run"], one["load_req_s"], one["requests"]) for one in found] == [
        (f"{path}#1", 1.0, 3),
        (f"{path}#2", 2.5, 2),
        (f"{path}#3", None, 4),
    ]
    second = json.loads(audited(path, "--format", "json", "--run", "2").stdout)
    assert found[1] == {"run": f"{path}#2", "load_req_s": 2.5, **second}
    assert audited(path, "--format", "csv").stdout == audited(path, "--format", "csv", "--runs").stdout
    table = audited(path).stdout
    assert "--run NAME|N audits one in full" in table
    assert all(words in table for words in ("Judged as chat, measured at client", "stated", "2.5"))


def test_outputs_and_gates_of_several_runs_want_one(tmp_path: Path) -> None:
    path, page = tmp_path / "result", tmp_path / "page.html"
    path.write_bytes(vllm(RUNS))
    for arguments in (["--html", str(page)], ["--fail-on-objective"], ["--tiers"], ["--baseline", str(path)]):
        refused = audited(path, *arguments)
        assert (refused.exit_code, "choose one, from 1 to 3, with --run" in refused.stderr) == (2, True)
    assert not page.exists()
    refused = audited(path, "--run", "1", "--baseline", str(path))
    assert (refused.exit_code, "from 1 to 3, with --baseline-run" in refused.stderr) == (2, True)
    compared = audited(path, "--run", "1", "--baseline", str(path), "--baseline-run", "3", "--html", str(page))
    assert compared.exit_code == 0
    assert f"<code>{path}#3</code>" in page.read_text("utf-8")


def test_standard_input_of_several_runs_is_read_once() -> None:
    several = vllm(RUNS)
    for arguments in ([], ["--runs"]):
        refused = audited(Path("-"), *arguments, stdin=several)
        assert (refused.exit_code, "3 runs of a benchmark" in refused.stderr) == (2, True)
    chosen = audited(Path("-"), "--run", "3", "--format", "json", stdin=several)
    assert json.loads(chosen.stdout)["requests"] == 4


def test_the_load_of_a_closed_loop_is_what_guidellm_measured(tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads(guidellm(RUNS[2:] * 2))
    for benchmark in report["benchmarks"]:
        benchmark["metrics"] = {"request_totals": {"successful": 4, "total": 6}}
        start_s = 1_700_000_000
        benchmark["scheduler_metrics"] = {"measure_start_time": start_s, "measure_end_time": start_s + 60}
    path = tmp_path / "result"
    path.write_text(json.dumps(report))
    assert [run.load_req_s for run in load_runs(path)] == [0.1, 0.1]


def test_the_sweep_of_a_report_has_a_point_for_each_run(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(vllm(RUNS[:2]))
    result = CliRunner().invoke(sweep_command, [str(path), "--alpha", "1", "--format", "json"], catch_exceptions=False)
    points = json.loads(result.stdout)["points"]
    assert [(one["recording"], one["load_req_s"], one["requests"]) for one in points] == [
        (f"{path}#1", 1.0, 3),
        (f"{path}#2", 2.5, 2),
    ]
