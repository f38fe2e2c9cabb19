"""The soak's short form: fifteen seconds of real streams, then the live windows are those of the audit, exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.patience import WAIT_S

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.world
@pytest.mark.alone
def test_live_equals_audit_after_a_while(tmp_path: Path) -> None:
    command = [sys.executable, str(SOAK), "--minutes", "0.25", "--tokens-per-s", "2000", "--folder", str(tmp_path)]
    lighter = ["--stream-s", "2", "--window", "2s", "--no-leave"]
    soaked = subprocess.run(
        [*command, *lighter], env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert soaked.returncode == 0, soaked.stdout + soaked.stderr
    assert "verdict: as it must be: live equals audit" in soaked.stdout
