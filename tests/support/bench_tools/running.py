"""Run a benchmark tool in an environment of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.patience import WAIT_S


def ran(command: Sequence[object], folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Run a tool in a folder and to its end, with all processes that it starts; return what it printed."""
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=folder, env=dict(environment), stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(WAIT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    reported = log.read_text()
    assert code == 0, reported[-3000:]
    return reported


def version_of(environment: Path, package: str) -> str:
    """Return the version of a package in an environment."""
    code = f"import importlib.metadata as found; print(found.version({package!r}))"
    done = subprocess.run([environment / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
