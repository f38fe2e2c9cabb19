"""Tests find their tier: by what they reach, by what they need, and by what they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.requirements import FIRST, REQUIREMENTS, SYSTEM, WORLD, announced_skips
from support.tiers import PROGRAM, RANDOM, TESTS, needs_of_test, tier_of

ROOT = TESTS.parent


@pytest.mark.parametrize(
    ("file", "name", "fixtures", "needs"),
    [
        ("slo/test_exact.py", "test_no_such_test", (), set()),
        ("cli/test_doctor_command.py", "test_no_such_test", (), set()),
        ("integration/test_demo.py", "test_the_demo_shows_what_it_promises", (), {PROGRAM}),
        ("integration/test_wheel.py", "test_the_wheel_from_bare_to_demo", ("installed",), {PROGRAM, "index"}),
        ("integration/test_vllm_served.py", "test_no_such_test", ("recording_vllm",), {PROGRAM, "vllm"}),
        ("integration/test_interop_node.py", "test_no_such_test", ("node",), {"node", "node-exporters"}),
        ("collector/test_journal_read.py", "test_no_such_test", ("server",), set()),
        ("core/test_scan.py", "test_every_mode_finds_the_same", (), {PROGRAM, RANDOM}),
    ],
)
def test_what_a_test_needs_is_read_from_what_it_reaches(
    file: str, name: str, fixtures: tuple[str, ...], needs: set[str]
) -> None:
    assert needs_of_test(TESTS / file, name, frozenset(fixtures)) == needs


@pytest.mark.parametrize(
    ("source", "needs"),
    [
        ("import subprocess\ndef test(): subprocess.run([])", {PROGRAM}),
        ("import subprocess as s\ndef test(): s.run([])", {PROGRAM}),
        ("from subprocess import Popen as start\ndef test(): start([])", {PROGRAM}),
        ("def test():\n    import os\n    os.fork()", {PROGRAM}),
        ("import subprocess\ndef test(said: subprocess.Popen) -> subprocess.Popen: ...", set()),
        ("import subprocess\ndef test(said): said: subprocess.CompletedProcess = f(subprocess.TimeoutExpired)", set()),
        ("from support.commands import run\ndef helper(): run()\nWAYS = [helper]\ndef test(): WAYS[0]()", {PROGRAM}),
        ("from support import commands\ndef test(): commands.run()", {PROGRAM}),
        ("from support import commands\ndef test(): commands.environment()", set()),
        ("from support.requirements import require\ndef test(): require('spark')", {"spark"}),
        ("from otel_llm.collector.service import Service\ndef test(): Service()", {PROGRAM}),
        ("if True:\n    import pty\ntry:\n    def test(): pty.fork()\nfinally: pass", {PROGRAM}),
    ],
)
def test_a_program_is_found_however_it_is_started(source: str, needs: set[str], tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(source)
    assert needs_of_test(path, "test", frozenset()) == needs


def test_the_tier_is_the_last_of_those_of_the_needs_and_the_marks() -> None:
    assert tier_of([], []) == FIRST
    assert tier_of([RANDOM, "grafana-sdk"], ["essential"]) == FIRST
    assert tier_of([PROGRAM], []) == tier_of([], ["alone"]) == tier_of(["chromium"], []) == SYSTEM
    assert tier_of([PROGRAM, "vllm"], ["alone"]) == tier_of([PROGRAM], ["world"]) == WORLD


def pytest_on(path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file with this conftest; `command` stands before it."""
    return subprocess.run(
        [*command, sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", "-p", "conftest", "-n0", path],
        cwd=path.parent, env=environment() | {"PYTHONPATH": str(TESTS)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("start", ["subprocess').run(['true'])", "multiprocessing').Process().start()"])
def test_a_program_that_a_test_of_the_first_tier_starts_fails_it(start: str, tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(f"def test_starts():\n    __import__('{start}\n\n\ndef test_starts_none(): ...\n")
    done = pytest_on(path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "the test started a program" in done.stdout


def test_a_suite_in_the_background_of_a_shell_starts_programs_that_heed_sigint(tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    ends = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(600)"
    path.write_text(
        "import subprocess, sys\nimport pytest\n\n\n@pytest.mark.system\ndef test_it():\n"
        f"    assert subprocess.run([sys.executable, '-c', {ends!r}], capture_output=True).returncode == -2\n"
    )
    done = pytest_on(path, "sh", "-c", "trap '' INT; exec \"$@\"", "sh")
    assert done.returncode == 0, done.stdout + done.stderr


def test_contributing_names_every_requirement() -> None:
    assert {needed.missing for needed in REQUIREMENTS.values()} - {"no Node.js exporters"} <= set(announced_skips())
