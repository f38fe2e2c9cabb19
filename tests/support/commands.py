"""The command `otel-llm` as a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.patience import WAIT_S


@dataclass(frozen=True)
class Collector:
    """A running `otel-llm collect`: its addresses, and its process."""

    process: subprocess.Popen[str]
    grpc: str
    http: str
    web: str

    def stop(self) -> tuple[int, str]:
        """Ask it to stop; return its exit status and what it still said."""
        self.process.terminate()
        said = self.rest()
        return self.process.returncode, said

    def rest(self) -> str:
        """Wait for its end; return its output until then.

        Not `communicate`, which misses output that arrived together with a line read before.
        """
        assert self.process.stdout is not None
        late = threading.Timer(WAIT_S, self.process.kill)
        late.start()
        try:
            said = self.process.stdout.read()
            self.process.wait()
        finally:
            late.cancel()
        return said


def environment() -> dict[str, str]:
    """Return this process's environment without telemetry settings."""
    ours = ("OTEL_LLM_CORE", "OTEL_LLM_CACHE_DIR", "OTEL_LLM_EXIT_TIMEOUT")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_") or name in ours}
    return kept | {"PYTHONUNBUFFERED": "1"}


def run(*arguments: str | Path, cwd: Path | None = None, timeout_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
    """Run `otel-llm` to its end."""
    command = [sys.executable, "-m", "otel_llm.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, env=environment(), cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@contextmanager
def collector(folder: Path, *arguments: str | Path) -> Iterator[Collector]:
    """Run `otel-llm collect` on free ports with its journal in `folder`."""
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "collect", "--journal", str(folder / "journal")),
        *("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0"),
        *map(str, arguments),
    ]
    # In a session of its own, as a service manager starts it: Linux divides the CPU among sessions first.
    process = subprocess.Popen(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        while (addresses := re.search(r"OTLP/gRPC (\S+), OTLP/HTTP (\S+), web (\S+)", said)) is None:
            line = process.stdout.readline()  # the first is about its kernels, if they are not kept yet
            assert line, said
            said += line
        yield Collector(process, *addresses.groups())
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_until_equal(what: str, find: Callable[[], object], wanted: object) -> None:
    """Poll until `find()` returns what is wanted; fail naming `what` and what it returned last."""
    found: list[object] = []

    def equal() -> bool:
        found[:] = [find()]
        return found == [wanted]

    try:
        wait_until(what, equal)
    except AssertionError:
        assert found == [wanted], what
        raise


def wait_until(what: str, holds: object, every_s: float = 0.02) -> None:
    """Poll until `holds()` is true; fail naming `what` after a generous time."""
    assert callable(holds)
    limit = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < limit, f"not within {WAIT_S} s: {what}"
        time.sleep(every_s)
