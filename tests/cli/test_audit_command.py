"""`otel-llm audit`: its flags, what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.otlp import T0_NS, export, stream_spans
from support.patience import WAIT_S
from support.recordings import vector_messages, write_format
from support.vectors import FOLDER

from otel_llm.cli.commands.audit_command import SHIPPED, audit
from otel_llm.cli.main import COMMANDS

ROWS = FOLDER / "rows.jsonl"
SUMMARY_KEYS = [
    *("requests", "tokens", "incomplete", "undetermined", "aborted_share"),
    *("attainment", "throughput_tok_s", "throughput_req_s", "goodput_tok_s", "goodput_req_s", "smooth_goodput_tok_s"),
    *("fluidity_p50", "fluidity_ok_share", "idle_p50_s", "idle_p99_s", "ttfo_p50_s", "ttfo_p99_s"),
    *(f"{name}_{one}_s" for name in ("ttft", "itl", "tpot", "e2e") for one in ("mean", "p50", "p90", "p99")),
    "fluid_token_rate",
]


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(audit, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture
def fine(tmp_path: Path) -> Path:
    """One request that met everything, in a file."""
    path = tmp_path / "fine.pb"
    tokens = [T0_NS + (i + 1) * 10**7 for i in range(50)]
    path.write_bytes(export(*stream_spans(tokens, end_ns=tokens[-1])).SerializeToString())
    return path


def test_the_command_is_in_the_list_of_commands() -> None:
    assert COMMANDS["audit"][:2] == ("otel_llm.cli.commands.audit_command", "audit")


def test_help_has_examples_and_exit_codes() -> None:
    text = run("--help").output

    for word in ("Examples:", "--fail-on-objective", "--window LENGTH", "Exit code:", "PATH is a file, a folder"):
        assert word in text


def test_the_table_says_what_was_found_and_what_could_not_be_judged() -> None:
    result = run(ROWS)

    assert result.exit_code == 0, result.output
    for words in (
        "18 requests",
        "What the readers felt",
        "smooth goodput, tokens/s",
        "4 lack tokens or their start and are counted as incomplete",
        "segments received more than once: 1",
        "Readers who waited longest",
        "objective of chat, client: attainment",
    ):
        assert words in result.stdout, words


def test_requests_that_each_begin_at_a_zero_of_their_own_have_no_span_and_no_rates(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("request,model,t_seconds\na,m,0.2\na,m,0.25\nb,n,0.1\n")
    reported = " ".join(run(path).stdout.split())

    assert "2 requests, 3 tokens in – " in reported
    assert "throughput, tokens/s – goodput, requests/s – throughput, requests/s – " in reported
    assert "The recording does not say when requests were sent" in reported
    assert "m chat client 1 100 % 0 s 0 s 200 ms 200 ms 1 – 0 %" in reported
    assert "The recording does not say" not in run(ROWS).stdout


def test_json_is_one_object_with_the_contracts_keys() -> None:
    result = run(ROWS, "--format", "json")
    found = json.loads(result.stdout)

    assert list(found) == ["requests", "tokens", "span_s", "skipped", "classes"]
    assert (found["requests"], found["skipped"]) == (18, 0)
    assert list(found["classes"]) == ["chat"]
    assert list(found["classes"]["chat"]) == ["client"]
    assert sorted(found["classes"]["chat"]["client"]) == sorted(SUMMARY_KEYS)
    assert found["classes"]["chat"]["client"]["incomplete"] == 4


def test_csv_is_one_line_for_each_class_and_measured_at() -> None:
    (line,) = csv.DictReader(io.StringIO(run(ROWS, "--format", "csv").stdout))

    assert list(line)[:2] == ["slo_class", "measured_at"]
    assert sorted(list(line)[2:]) == sorted(SUMMARY_KEYS)
    assert (line["slo_class"], line["measured_at"], line["incomplete"]) == ("chat", "client", "4")


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_requests_and_windows_are_written(tmp_path: Path, ending: str) -> None:
    requests, windows = tmp_path / f"requests{ending}", tmp_path / f"windows{ending}"
    result = run(ROWS, "--requests", requests, "--windows", windows, "--window", "1")

    assert result.exit_code == 0, result.output
    assert requests.stat().st_size > 0
    assert windows.stat().st_size > 0
    if ending == ".jsonl":
        rows = [json.loads(line) for line in windows.read_text().splitlines()]
        assert {row["window_s"] for row in rows} == {1.0}
        assert sum(row["requests_ended"] for row in rows) == 18


def test_html_is_written(tmp_path: Path) -> None:
    page = tmp_path / "report.html"

    assert run(ROWS, "--html", page).exit_code == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_a_class_and_an_slo_file_can_be_chosen(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text("version: 1\ndefault: slow\nclasses:\n  slow: {reading_speed: 1}\n  fast: {reading_speed: 50}\n")

    found = json.loads(run(ROWS, "--slo", slo, "--class", "fast", "--format", "json").stdout)
    assert list(found["classes"]) == ["fast"]


def test_a_missed_objective_fails_only_where_asked(fine: Path) -> None:
    assert run(ROWS).exit_code == 0
    assert run(ROWS, "--fail-on-objective").exit_code == 1
    assert run(fine, "--fail-on-objective").exit_code == 0


@pytest.mark.parametrize("file_format", ["table", "json", "csv"])
def test_which_objective_is_missed_is_reported_beside_the_output(file_format: str) -> None:
    assert "objective" not in run(ROWS, "--format", file_format).stderr
    result = run(ROWS, "--fail-on-objective", "--format", file_format)
    lines = [line for line in result.stderr.splitlines() if line.startswith("objective of ")]
    assert lines, result.stderr
    assert all(line.endswith(", missed") for line in lines)
    assert all(
        re.fullmatch(r"objective of \w+, \w+: .* for .* %: .* % \([\d,]+ of [\d,]+\), missed", one) for one in lines
    )
    assert result.exit_code == 1


def test_the_slo_file_and_the_files_of_a_folder_are_not_written_over(tmp_path: Path) -> None:
    slo = tmp_path / "slo.jsonl"
    slo.write_text("version: 1\ndefault: a\nclasses: {a: {}}\n")
    (tmp_path / "runs").mkdir()
    recording = tmp_path / "runs" / "rows.jsonl"
    recording.write_bytes(ROWS.read_bytes())
    before = recording.read_bytes()
    for output in (slo, recording):
        for option in ("--requests", "--windows"):
            result = run(tmp_path / "runs", "--slo", slo, option, output)
            assert result.exit_code == 2, result.output
            assert f"{output} is one of the inputs" in result.stderr
    assert slo.read_text().startswith("version: 1")
    assert recording.read_bytes() == before


def test_token_times_in_the_folder_that_is_read_are_an_input_too(fine: Path) -> None:
    streams = fine.parent / "streams.parquet"
    assert run(fine, "--streams", streams).exit_code == 0
    result = run(fine.parent, "--streams", streams)
    assert result.exit_code == 2
    assert f"{streams} is one of the inputs" in result.stderr


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl"])
def test_outputs_in_the_folder_that_is_read_can_be_written_again(fine: Path, ending: str) -> None:
    for _ in range(2):
        result = run(fine.parent, "--requests", fine.parent / f"r{ending}", "--windows", fine.parent / f"w{ending}")
        assert result.exit_code == 0, result.output


def test_a_class_without_an_objective_cannot_fail(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text("version: 1\ndefault: a\nclasses: {a: {}}\n")
    assert run(ROWS, "--slo", slo, "--fail-on-objective").exit_code == 0


def test_strict_fails_on_a_broken_record_and_not_on_a_torn_tail(tmp_path: Path) -> None:
    path = write_format(tmp_path, "journal.otlp", vector_messages())
    whole = path.read_bytes()

    assert run(path, "--strict").exit_code == 0
    path.write_bytes(whole[:-3])
    torn = run(path, "--strict", "--format", "json")
    assert (torn.exit_code, json.loads(torn.stdout)["skipped"]) == (0, 1)
    path.write_bytes(whole[:100] + b"\xff" + whole[101:])
    broken = run(path, "--strict", "--format", "json", "--requests", tmp_path / "rows.csv")
    assert (broken.exit_code, broken.stdout) == (1, "")
    assert re.search(r"journal\.otlp: .* at byte \d+.*stopped", broken.stderr)
    assert not (tmp_path / "rows.csv").exists()
    assert run(path).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'PATH...'"),
        (("nowhere",), "nowhere: no such file or folder"),
        ((ROWS, "--requests", "out.xlsx"), "use one of .parquet, .csv, .jsonl"),
        ((ROWS, "--html", "out.pdf"), "use one of .html"),
        ((ROWS, "--windows", "no/such/folder.csv"), "make it first"),
        ((ROWS, "--requests", ROWS), "is one of the inputs"),
        ((ROWS, "--window", "soon"), "'soon' is no duration"),
        ((ROWS, "--window", "1ns"), "--window: '1ns' is no duration; write 500us, 300ms, 1s, 2m, 1h"),
        ((ROWS, "--window", "nan"), "--window: nan is not a finite number; write 500us"),
        ((ROWS, "--window", "0"), "above zero"),
        ((ROWS, "--window", "-1"), "not negative"),
        ((ROWS, "--class", "nobody"), "no SLO class 'nobody'"),
        ((ROWS, "--slo", "nowhere.yaml"), "nowhere.yaml"),
        ((ROWS, "--format", "xml"), "'xml' is not one of"),
        ((Path(__file__),), "not a recording"),
        ((Path(__file__).parent,), "nothing in this folder can be read"),
    ],
)
def test_bad_usage_is_two_and_names_the_remedy(arguments: tuple[str | Path, ...], message: str) -> None:
    result = run(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_bad_slo_file_is_named_with_its_line(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text("version: 1\ndefault: a\nclasses:\n  a: {reading_sped: 5}\n")
    result = run(ROWS, "--slo", slo)

    assert result.exit_code == 2
    assert f"{slo}:4:" in result.stderr


def test_an_output_named_twice_is_refused(tmp_path: Path) -> None:
    result = run(ROWS, "--requests", tmp_path / "a.csv", "--windows", tmp_path / "a.csv")

    assert result.exit_code == 2
    assert "written twice" in result.stderr


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    arguments = ["audit", str(ROWS), "--requests", str(tmp_path / "r.parquet")]
    code = f"import sys; sys.modules['pyarrow'] = None; from otel_llm.cli.main import main; main({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert "pyarrow" in done.stderr
    assert "pip install 'otel-llm[collector]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_telemetry_without_a_stream_is_fine_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "other.pb"
    (span,) = stream_spans([], end_ns=T0_NS)[:1]
    span.name = "GET /"
    path.write_bytes(export(span).SerializeToString())
    result = run(path)

    assert result.exit_code == 0
    assert "0 requests" in result.stdout
    assert "spans that are no inference of a known kind: 1" in result.stdout


@pytest.fixture
def none(tmp_path: Path) -> Path:
    """A recording without a request."""
    path = tmp_path / "none.json"
    path.write_text('{"resourceSpans":[]}\n')
    return path


def test_a_recording_without_a_request_is_reported_in_one_line(none: Path) -> None:
    for arguments in ((), ("--tiers",)):
        result = run(none, *arguments)
        reported = "0 requests: no request was found in the input\n  files of a known format that hold no request: 1\n"
        assert (result.exit_code, result.stdout) == (0, reported)
        assert f"{none}: no request in it: it is of a known format, and empty" in result.stderr
    assert json.loads(run(none, "--format", "json").stdout)["requests"] == 0
    assert run(none, "--format", "csv").stdout.splitlines() == ["slo_class,measured_at"]


@pytest.mark.parametrize("file_format", ["table", "json", "csv"])
def test_a_gate_without_a_request_to_look_at_does_not_pass(none: Path, file_format: str) -> None:
    result = run(none, "--fail-on-objective", "--format", file_format)

    assert result.exit_code == 2
    assert "--fail-on-objective: there is no request in the input, so nothing was shown" in result.stderr
    assert result.stdout == run(none, "--format", file_format).stdout


def test_a_gate_without_a_judged_request_does_not_pass(tmp_path: Path) -> None:
    path = tmp_path / "lost.pb"
    tokens = [T0_NS + (i + 1) * 10**7 for i in range(50)]
    first, *segments = stream_spans(tokens, end_ns=tokens[-1], segment_tokens=10)
    path.write_bytes(export(first, *segments[1:]).SerializeToString())
    result = run(path, "--fail-on-objective")

    assert result.exit_code == 2
    assert "no judged request among 1 request of the input" in " ".join(result.stderr.split())


def test_the_table_says_whose_classes_judged(tmp_path: Path) -> None:
    slo = tmp_path / "slo.yaml"
    slo.write_text("version: 1\ndefault: a\nclasses: {a: {}}\n")

    for arguments in ((), ("--class", "code"), ("--tiers",), ("--baseline", ROWS)):
        assert run(ROWS, *arguments).stdout.splitlines()[-1] == SHIPPED
    assert SHIPPED not in run(ROWS, "--slo", slo).stdout
    for file_format in ("json", "csv"):
        assert SHIPPED not in run(ROWS, "--format", file_format).output


def test_a_hostile_model_name_does_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "hostile.pb"
    identity = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "\x1b]0;owned\x07[red]x[/red]\u202e"}
    tokens = [T0_NS + 5 * 10**9]
    path.write_bytes(export(*stream_spans(tokens, end_ns=tokens[0], identity=identity)).SerializeToString())
    result = run(path)

    assert result.exit_code == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(result.stdout)
    assert "\\u{1b}" in result.stdout
