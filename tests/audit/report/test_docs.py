"""The page of the report names every flag, and its commands run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.otlp import T0_NS, export, stream_spans
from support.recordings import journal

from otel_llm.cli.commands.report_command import report
from otel_llm.cli.main import main

FOLDER = Path(__file__).parents[3] / "docs"
PAGE = (FOLDER / "audit-report.md").read_text("utf-8")


def test_the_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "journal").mkdir()
    spans = stream_spans([T0_NS + at * 10**8 for at in range(1, 20)], end_ns=T0_NS + 19 * 10**8)
    (tmp_path / "journal" / "a.otlp").write_bytes(journal([export(*spans)]))
    monkeypatch.chdir(tmp_path)
    (lines,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in lines.splitlines():
        program, *arguments = line.split()
        assert program == "otel-llm"
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output)
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_every_flag_is_named() -> None:
    flags = {option for parameter in report.params for option in parameter.opts}
    assert set(re.findall(r"^\| `(--\w+)", PAGE, flags=re.MULTILINE)) == flags


def test_its_picture_is_there_and_small() -> None:
    (name,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PAGE)
    data = (FOLDER / name).read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert len(data) < 200_000
