"""The pages on comparison and calibration: their examples run, and every column, flag and default is named."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.otlp import IDENTITY, T0_NS, export, request_span, stream_spans
from support.recordings import journal, json_lines

from otel_llm import semconv
from otel_llm.audit.compare import comparison as compare
from otel_llm.audit.compare import gate, sweep, tiers
from otel_llm.cli.main import main

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("audit-compare.md", "calibration.md")
S = 10**9


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), flags=re.DOTALL)


def named(text: str) -> set[str]:
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in rows for name in re.findall(r"`([^`]+)`", cell)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The recordings that the examples name: readers who wait and leave, with prompts of several lengths."""
    monkeypatch.chdir(tmp_path)
    for name, load, wait in (("q1", 1, 0), ("q2", 2, 1), ("q4", 4, 3), ("old", 1, 1), ("new", 1, 1), ("journal", 1, 2)):
        messages = []
        for number in range(1, 61):
            commit = T0_NS + number * 60 * S // load
            first = commit + S // 100 * (1 + number % 3)
            left = number % 2 == 0
            end = commit + 2 * S + round(wait * S * (number % 7) / 3) + number * 1_000_000
            stated = {**IDENTITY, semconv.GEN_AI_USAGE_INPUT_TOKENS: 100 * (1 + number % 3)}
            outcome = "cancelled" if left else "completed"
            spans = stream_spans(
                [first] * 5 + ([] if left else [end]),
                request=number, commit_ns=commit, end_ns=end, outcome=outcome, identity=stated,
            )  # fmt: skip
            messages.append(
                export(request_span(request=number, start_ns=commit, end_ns=end, attributes=stated), *spans)
            )
        if name == "journal":
            (tmp_path / name).mkdir()
            (tmp_path / name / "a.otlp").write_bytes(journal(messages))
        else:
            (tmp_path / f"{name}.jsonl").write_bytes(json_lines(messages))
    ids = "\n".join(f"{number:032x}" for number in range(1, 60, 2))
    (tmp_path / "complaints.csv").write_text(f"trace_id\n{ids}\n")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", PAGES)
def test_the_commands_run(name: str) -> None:
    (lines,) = blocks(name, "sh")
    for line in lines.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "otel-llm"
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output)
        assert result.stdout


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", PAGES)
def test_the_python_runs(name: str) -> None:
    (code,) = blocks(name, "py")
    exec(compile(code, name, "exec"), {})


def test_every_column_of_a_comparison_is_named() -> None:
    text = page("audit-compare.md").split("## Classes as tiers")
    assert named(text[0]) >= set(compare.COLUMNS)
    assert named(text[1]) == set(tiers.COLUMNS)


def test_every_column_of_a_sweep_is_named() -> None:
    text = page("calibration.md").split("A best load (")
    assert named(text[0]) == sweep.POINTS.keys()
    assert named(text[1]) == sweep.OPTIMA.keys()


def test_the_defaults_of_the_gate_are_those_of_the_page() -> None:
    text = page("audit-compare.md").split("### The gate")[1].split("## Classes")[0]
    assert named(text) == set(gate.thresholds(()))
    for line in (line for line in text.splitlines() if line.startswith("| `")):
        words = line.split("|")[2]
        for name in named(line):
            limit = gate.thresholds(())[name]
            by = f"{limit.by * 100:g} %" if limit.relative else f"{limit.by * 1000:g} ms"
            assert words.strip() == by or words.strip() == f"{limit.by:g} (a point)", name
