"""Standard output that fails is no verdict: a line and exit code 2; a closed pipe ends every command alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.patience import WAIT_S
from support.vectors import FOLDER

ROWS = str(FOLDER / "rows.jsonl")
COMMANDS = {
    "table": ("audit", ROWS),
    "json": ("audit", ROWS, "--format", "json"),
    "csv": ("audit", ROWS, "--format", "csv"),
    "sweep": ("sweep", ROWS, "--alpha", "1"),
    "profile": ("profile", "show", "h200-paper-era"),
    "prometheus": ("rules", "prometheus"),
    "help": ("--help",),
    "help of a command": ("audit", "--help"),
    "version": ("--version",),
}
EVERY = pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())


def run(arguments: tuple[str, ...], out: int, *, unbuffered: bool = False) -> tuple[int, str]:
    """Return the exit code and what was reported on stderr, with standard output on a file descriptor."""
    env = environment()
    if not unbuffered:
        del env["PYTHONUNBUFFERED"]
    command = [sys.executable, "-m", "otel_llm.cli.main", *arguments]
    done = subprocess.run(command, env=env, stdout=out, stderr=subprocess.PIPE, text=True, timeout=WAIT_S, check=False)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@EVERY
def test_a_full_disk_is_one_line_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    out = os.open("/dev/full", os.O_WRONLY)
    try:
        code, reported = run(arguments, out)
    finally:
        os.close(out)
    lines = [line for line in reported.splitlines() if not line.startswith(("note:", "warning:"))]
    assert (code, lines[-1:]) == (2, ["Error: cannot write to standard output: No space left on device"]), reported
    assert "Traceback" not in reported
    assert "Exception ignored" not in reported


@EVERY
def test_a_pipe_that_nobody_reads_any_more_is_quietly_141(arguments: tuple[str, ...]) -> None:
    closed_pipe_is_141(arguments, unbuffered=False)


@pytest.mark.parametrize("command", ["table", "csv", "help", "version"])
def test_a_closed_pipe_is_the_same_where_nothing_is_buffered(command: str) -> None:
    """Try each way of writing once: rich, a text that is echoed, click's own help and version."""
    closed_pipe_is_141(COMMANDS[command], unbuffered=True)


def closed_pipe_is_141(arguments: tuple[str, ...], *, unbuffered: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        code, reported = run(arguments, writing, unbuffered=unbuffered)
    finally:
        os.close(writing)
    assert code == 141, reported
    assert "Error" not in reported
    assert "Traceback" not in reported
    assert "Exception ignored" not in reported


def test_what_is_left_in_the_buffer_fails_the_command_too(tmp_path: Path) -> None:
    script = tmp_path / "printing.py"
    script.write_text(
        "from otel_llm.cli.output.standard_output import watched_output\n"
        "with watched_output():\n    print('kept until the end')\n    raise SystemExit(0)\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    env = environment()
    del env["PYTHONUNBUFFERED"]
    done = subprocess.run([sys.executable, script], env=env, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(("code", "raised"), [(1, "SystemExit(1)"), (1, "OSError(28, 'of another file')")])
def test_other_ends_of_a_command_stay_what_they_are(tmp_path: Path, code: int, raised: str) -> None:
    script = tmp_path / "ending.py"
    script.write_text(
        f"from otel_llm.cli.output.standard_output import watched_output\nwith watched_output():\n    print('words')\n"
        f"    raise {raised}\n"
    )
    done = subprocess.run([sys.executable, script], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, "words\n")
    assert ("of another file" in done.stderr) == raised.startswith("OSError")
