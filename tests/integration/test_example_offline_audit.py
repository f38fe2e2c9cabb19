"""The offline-audit example as its README runs it: three forms that agree, a comparison, a report, a gate."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.commands import environment
from support.patience import WAIT_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "offline-audit"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("days")
    command = [sys.executable, str(EXAMPLE / "run_audit.py"), str(folder)]
    return folder, subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=2 * WAIT_S, check=False
    )


def test_it_shows_what_the_readme_promises(shown: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = shown
    assert done.returncode == 0, done.stdout + done.stderr
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    promised = re.findall(r"^ {4,}((?:monday\.|attainment|idle_p|ttft_p|regression).*)$", readme, re.MULTILINE)
    assert len(promised) == 10
    printed = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    for line in promised:  # without the intervals, which end each line
        assert any(one.startswith(line) for one in printed), line
    assert "<html" in (folder / "report.html").read_text(encoding="utf-8")[:500].lower()


@pytest.mark.parametrize(("day", "status"), [("monday", 0), ("tuesday", 1)])
def test_the_gate_lets_an_unchanged_version_pass_and_stops_a_worse_one(
    shown: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, day: str, status: int
) -> None:
    folder, _ = shown
    workflow = yaml.safe_load((EXAMPLE / "gate.yml").read_text(encoding="utf-8"))
    (command,) = (step["run"] for step in workflow["jobs"]["gate"]["steps"] if step.get("name") == "gate")
    (tmp_path / "new.jsonl").symlink_to(folder / f"{day}.clickhouse.jsonl")
    (tmp_path / "old.jsonl").symlink_to(folder / "monday.collector.jsonl")
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        env=environment() | {"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("regression" in done.stderr) == bool(status)
