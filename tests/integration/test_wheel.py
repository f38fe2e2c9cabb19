"""The wheel, in an empty environment, from another folder: what a user installs does what the checkout does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.integration.uv_command import uv
from support.patience import WAIT_S

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of an environment with the bare wheel in it, and the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    uv("build", "-q", "--wheel", "--python", sys.executable, "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("otel_llm-*.whl")
    uv("venv", "-q", "--python", sys.executable, folder / "venv")
    uv("pip", "install", "-q", "--python", folder / "venv", wheel)
    return folder / "venv", wheel


@pytest.mark.essential
def test_the_wheel_from_bare_to_demo(installed: tuple[Path, Path], tmp_path: Path) -> None:
    venv, wheel = installed
    command = venv / "bin" / "otel-llm"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(command), *arguments],
            cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip

    # What an instrumented application installs: the import works, a command of the service names what is missing.
    python = str(venv / "bin" / "python")
    subprocess.run([python, "-c", "import otel_llm; otel_llm.instrument; otel_llm.track"], check=True, cwd=tmp_path)
    assert run("--help").returncode == 0
    for name in ("collect", "audit", "rules check", "demo", "top"):
        bare = run(*name.split(), "--help")
        assert bare.returncode == 2, name
        assert "otel-llm[collector]" in bare.stderr

    uv("pip", "install", "-q", "--python", venv, f"{wheel}[collector]")
    demo = run("demo", "--out", "shown")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "live and audit agree on all 30 requests" in demo.stdout
    (folder,) = (tmp_path / "shown").glob("run-*")
    audit = run("audit", str(folder / "journal"), "--format", "json", "--requests", "requests.parquet")
    assert audit.returncode == 0, audit.stderr
    assert json.loads(audit.stdout)["requests"] == 30
    assert (tmp_path / "requests.parquet").stat().st_size > 1000
    shipped = next(venv.glob("lib/python*/site-packages/otel_llm/rules/shipped"))
    assert run("rules", "check", str(shipped)).returncode == 0
