"""A service whose output pipe is closed reloads and stops as any other."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commands import environment
from support.patience import WAIT_S

ANYWHERE = {
    "collect": ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0"],
    "relay": ["--backend", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0"],
}


@pytest.mark.parametrize("command", ANYWHERE)
def test_it_reloads_and_stops_on_signals(tmp_path: Path, command: str) -> None:
    (tmp_path / "rules.yaml").write_text("version: 1\ngroups: []\n")
    arguments = [*ANYWHERE[command], "--rules", str(tmp_path / "rules.yaml")]
    arguments += ["--journal", str(tmp_path / "journal")] if command == "collect" else []
    service = subprocess.Popen(
        [sys.executable, "-m", "otel_llm.cli.main", command, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert service.stdout is not None
    try:
        while "rules: 0" not in service.stdout.readline():
            assert service.poll() is None
        service.stdout.close()
        limit = time.monotonic() + WAIT_S
        while not _catches(service.pid, signal.SIGHUP):
            assert time.monotonic() < limit
            time.sleep(0.02)
        service.send_signal(signal.SIGHUP)
        service.terminate()
        assert service.wait(WAIT_S) == 141
    finally:
        service.kill()
        service.wait()


def _catches(pid: int, signum: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    (mask,) = [line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line]
    return bool(int(mask, 16) >> (signum - 1) & 1)
