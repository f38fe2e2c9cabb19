"""The page of the audit names every column and flag, and its examples run."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.formats.bench_files import NS, Chunk, Requested, vllm_run
from support.otlp import T0_NS, export, stream_spans
from support.recordings import journal

from otel_llm.audit.columns_page import with_tables
from otel_llm.audit.report import caveats
from otel_llm.cli.commands.audit_command import audit
from otel_llm.slo.figures import CLASSES
from otel_llm.slo.metrics import REQUESTS, WINDOWS

PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text("utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a journal and a result of two runs in it, as the examples want it."""
    (tmp_path / "journal").mkdir()
    messages = [
        export(*stream_spans([T0_NS + at * 10**8 for at in range(1, 20)], request=number, end_ns=T0_NS + 19 * 10**8))
        for number in range(1, 4)
    ]
    (tmp_path / "journal" / "a.otlp").write_bytes(journal(messages))
    requested = [Requested(at * NS, (Chunk(NS // 10), Chunk(NS // 5))) for at in range(3)]
    sweep = "\n".join(json.dumps(vllm_run(requested, request_rate=rate)) for rate in (1.0, 2.0))
    (tmp_path / "sweep.json").write_text(sweep)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}", 1)[1].split("\n## ", 1)[0]


def named(text: str) -> set[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


def test_the_python_example_runs(folder: Path) -> None:
    (code,) = blocks("python")
    exec(compile(code, "docs/audit.md", "exec"), {})

    assert (folder / "report.html").is_file()


def test_the_commands_run(folder: Path) -> None:
    for line in "".join(blocks("sh")).splitlines():
        program, command, *arguments = shlex.split(line)
        assert (program, command) == ("otel-llm", "audit")
        result = CliRunner().invoke(audit, arguments, catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output)
    assert {path.name for path in folder.iterdir()} == {
        "journal",
        "report.html",
        "requests.parquet",
        "second.html",
        "streams.parquet",
        "sweep.json",
        "windows.csv",
    }


def test_the_tables_of_columns_and_figures_are_the_tables_of_metrics() -> None:
    assert with_tables(PAGE) == PAGE, "run `python -m otel_llm.audit.columns_page docs/audit.md`"
    assert named(section("A request")) == set(REQUESTS)
    assert named(section("A window")) == set(WINDOWS)


@pytest.mark.usefixtures("folder")
def test_every_figure_of_the_summary_is_named_and_no_other() -> None:
    result = CliRunner().invoke(audit, ["journal", "--format", "json"], catch_exceptions=False)
    figures = json.loads(result.stdout)["classes"]["chat"]["client"]

    assert named(section("The summary")) == set(figures)
    assert list(CLASSES) == ["slo_class", "measured_at", *figures]


def test_every_flag_is_named() -> None:
    flags = {option for parameter in audit.params for option in parameter.opts if option.startswith("--")}
    words = {name.split()[0] for name in named(section("Flags"))}
    assert words == flags


def test_the_report_and_the_page_warn_of_the_same_figures() -> None:
    assert section("What the figures can hide").count("\n| ") - 1 == len(caveats.GAMES)
