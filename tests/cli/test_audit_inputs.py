"""`otel-llm audit` on standard input, patterns, folders, and Parquet wherever it comes from."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.formats.span_formats import SPAN_FORMATS, jaeger
from support.patience import WAIT_S
from support.recordings import vector_messages

import otel_llm.audit
from otel_llm.cli.main import main
from otel_llm.formats import input_paths
from otel_llm.formats.recordings.format_table import format_of

MESSAGES = vector_messages()[:4]


def run(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["audit", *arguments, "--format", "json"], input=stdin)


def found(*paths: str) -> tuple[int, int]:
    """Return how many requests and tokens are audited."""
    summary = otel_llm.audit.load(*paths).summary()
    return summary["requests"], summary["tokens"]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "in" / "deep").mkdir(parents=True)
    (folder / "in" / "a.json").write_bytes(jaeger(MESSAGES[:2]))
    (folder / "in" / "deep" / "b.json.gz").write_bytes(gzip.compress(jaeger(MESSAGES[2:])))
    (folder / "in" / "notes.txt").write_text("nothing of ours")
    done = run(str(folder / "in"), "--streams", str(folder / "streams.parquet"))
    assert (done.exit_code, json.loads(done.stdout)["requests"]) == (0, 4), done.output
    assert "notes.txt: holds no format that we know" in done.stderr
    (folder / "streams.parquet.gz").write_bytes(gzip.compress((folder / "streams.parquet").read_bytes()))
    return folder


def test_every_way_to_name_the_same_requests_gives_the_same(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recordings)
    expected = found("in")
    assert expected[0] == 4
    for paths in (("in/**/*.json*",), ("in/a.json", "in/d*"), ("streams.parquet",), ("streams.parquet.gz",)):
        assert found(*paths) == expected, paths
    parquet = (recordings / "streams.parquet").read_bytes()
    for data in (
        parquet,
        *(gzip.compress(SPAN_FORMATS[file_format](MESSAGES)) for file_format in ("jaeger.json", "collector.binpb")),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
        assert found("-") == expected


@pytest.mark.parametrize(("terminal", "times"), [(False, 1), (True, 2)])
def test_a_folder_is_measured_only_for_who_sees_the_bar(
    recordings: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, times: int
) -> None:
    opened: list[str] = []

    def opening(path: Path) -> object:
        opened.append(path.name)
        return format_of(path)

    monkeypatch.setattr(input_paths, "format_of", opening)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(str(recordings / "in")).exit_code == 0
    assert opened.count("notes.txt") == times


def test_a_real_pipe_is_read(recordings: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "otel_llm.cli.main", "audit", "-", "--format", "json"],
        input=(recordings / "streams.parquet").read_bytes(),
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["requests"]) == (0, 4), done.stderr


@pytest.mark.parametrize(
    ("path", "stdin", "message"),
    [
        ("-", b"hello", "-: not a recording"),
        ("-", b"", "-: no export request found: it is empty; expected a journal, OTLP"),
        ("none", b"", "none: the folder is empty: expected a journal, OTLP"),
        ("zero.jsonl", b"", "zero.jsonl: no export request found: it is empty; expected a journal, OTLP"),
        ("*.csv", b"", "*.csv: no file matches this pattern"),
        ("in/notes.txt", b"", "notes.txt: not a recording"),
    ],
)
def test_what_is_nothing_is_reported_in_words(
    path: str, stdin: bytes, message: str, recordings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recordings)
    (recordings / "none").mkdir(exist_ok=True)
    (recordings / "zero.jsonl").touch()
    done = run(path, stdin=stdin)
    assert (done.exit_code, message in done.stderr, "Traceback" in done.output) == (2, True, False), done.output


def test_a_file_without_a_good_line_is_refused_with_the_first_bad_one() -> None:
    data = b'{"metadata": {"request_start_ns": "x"}, "responses": []}\n' * 2  # AIPerf's
    done = run("-", stdin=data)
    assert (done.exit_code, "Traceback" in done.output) == (2, False)
    assert "-: not a recording: expected a journal" in done.stderr
    assert "; -:1: request_start_ns is no number" in done.stderr


def test_strict_stops_at_the_first_broken_record_with_its_place() -> None:
    data = b"request,t_seconds\na,1\na,x\na,2\n"
    done = run("-", stdin=data)
    assert (done.exit_code, json.loads(done.stdout)["tokens"]) == (0, 2)
    done = run("-", "--strict", stdin=data)
    assert (done.exit_code, "-:3: t_seconds: expected a number" in done.stderr) == (1, True)
