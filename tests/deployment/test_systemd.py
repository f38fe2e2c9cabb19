"""The systemd unit: systemd's own checks of it, and the settings file beside it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from support.commands import run
from support.requirements import found_program

from otel_llm.collector.settings import load_settings

FOLDER = Path(__file__).parents[2] / "collector" / "systemd"
UNIT = FOLDER / "otel-llm-collect.service"
MOST_EXPOSED = 15
"""Tenths: of 1.4, what systemd counts against the unit is that it has the network, and loads compiled code."""


@pytest.fixture
def analyze() -> str:
    return found_program("systemd", "systemd-analyze")


def test_systemd_reads_the_unit(analyze: str, tmp_path: Path) -> None:
    program = tmp_path / "otel-llm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/otel-llm/bin/otel-llm", str(program)))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_hardened(analyze: str) -> None:
    command = [analyze, "security", "--offline=yes", "--no-pager", f"--threshold={MOST_EXPOSED}", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_command_is_one_of_ours() -> None:
    (command,) = re.findall(r"^ExecStart=\S+ (.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    name, *options = command.split()
    shown = run(name, "--help").stdout
    assert all(re.search(rf"^ +{option} ", shown, re.MULTILINE) for option in options if option.startswith("--"))
    assert "0.0.0.0" not in command, "it listens on this machine only"


def test_the_settings_are_accepted_and_bound_the_instances() -> None:
    settings = load_settings(FOLDER / "collector.yaml")
    assert settings.metrics.instance_label
    assert settings.metrics.instances
    assert settings.journal.retain_bytes is not None
