"""The README's audit example runs as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import run
from support.patience import WAIT_S

ROOT = Path(__file__).parents[2]
SECTION = (
    (ROOT / "README.md").read_text(encoding="utf-8").partition("## Audit what was recorded")[2].partition("\n## ")[0]
)
COMMANDS = re.search(r"```sh\n(.*?)```", SECTION, re.DOTALL)
PROGRAM = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_commands_run(folder: Path) -> None:
    assert COMMANDS is not None
    reported = []
    for line in COMMANDS[1].splitlines():
        program, *arguments = shlex.split(line)
        assert program == "otel-llm"
        done = run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        reported.append(done.stdout)
    audited, compared, swept = reported
    assert "69 requests" in audited
    assert "worse" in compared
    assert "alpha" in swept.lower()
    assert (folder / "report.html").stat().st_size > 100_000
    assert len((folder / "requests.csv").read_text(encoding="utf-8").splitlines()) == 70


def test_its_program_runs(folder: Path) -> None:
    assert PROGRAM is not None
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM[1]], cwd=folder, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "attainment" in done.stdout
    assert "trace_id" in done.stdout
