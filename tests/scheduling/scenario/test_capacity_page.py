"""What `docs/capacity-planning.md` shows is what its files and commands give."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import run

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "capacity-planning"
PAGE = (ROOT / "docs" / "capacity-planning.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SPEEDS = {"decisions_per_s", "wall_s"}


def simulated(command: str, folder: Path) -> dict[str, Any]:
    """Run a command of the page, as JSON, and return what it prints."""
    program, *arguments = shlex.split(command.partition(" > ")[0])
    assert program == "otel-llm"
    if "--format" not in arguments:
        arguments += ["--format", "json"]
    done = run(*arguments, "--jobs", "1", cwd=folder, timeout_s=240)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_the_page_shows_the_scenarios() -> None:
    shown = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert shown == [(FOLDER / name).read_text(encoding="utf-8") for name in ("scenario.yaml", "headroom.yaml")]


def test_its_commands_give_what_it_says(folder: Path) -> None:
    _, fleets, page, headroom, polyserve = COMMANDS
    assert page == "otel-llm simulate examples/capacity-planning/scenario.yaml --html fleets.html"
    committed = json.loads((FOLDER / "fleets.json").read_text(encoding="utf-8"))
    printed = simulated(fleets, folder)
    for one in (*printed["runs"], *committed["runs"]):
        for key in SPEEDS:
            del one[key]
    assert printed == committed
    loads = {key: round(load, 1) for key, load in simulated(headroom, folder)["at_objective"].items()}
    assert f"    {json.dumps(loads)}\n" in PAGE
    (row,) = simulated(polyserve, folder)["runs"]
    assert f"{100 * row['attainment_by_tier']['voice']:.2f} % of `voice`" in PAGE
    (four,) = (one for one in committed["runs"] if one["settings"] == {"fleet.instances": 4})
    assert f"{100 * four['attainment_by_tier']['voice']:.2f} % with `least_load`" in PAGE
    assert f"could carry {four['optimal_req_s']:.0f} requests/s" in PAGE


def test_its_program_prints_what_it_says(folder: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    assert "".join(f"    {line}\n" for line in done.stdout.splitlines()) in PAGE


def test_the_trace_is_the_written_one(tmp_path: Path) -> None:
    (tmp_path / "make_trace.py").write_bytes((FOLDER / "make_trace.py").read_bytes())
    subprocess.run([sys.executable, tmp_path / "make_trace.py"], check=True)
    assert (tmp_path / "trace.csv").read_bytes() == (FOLDER / "trace.csv").read_bytes()
