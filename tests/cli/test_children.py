"""A demo's child processes end with the demo, at whatever instant SIGTERM comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.commands import environment
from support.patience import WAIT_S

# SIGTERM comes between the child's start and the moment at which anybody holds the child.
STARTS_A_CHILD = """\
import os, pathlib, signal, subprocess, sys
from otel_llm.demo import children

class Interrupted(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Interrupted
signal.signal(signal.SIGTERM, signal.default_int_handler)
children.Child("sleeper", ["sleep", "60"], {"PATH": os.defpath}, pathlib.Path(sys.argv[1]))
print("not interrupted")
"""


def test_a_child_ends_where_a_signal_comes_in_its_start(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS_A_CHILD, str(tmp_path / "child.log")]
    shown = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=WAIT_S, check=False)
    (pid,) = shown.stdout.split()
    assert shown.returncode != 0
    assert "KeyboardInterrupt" in shown.stderr
    assert not Path("/proc", pid).exists()
