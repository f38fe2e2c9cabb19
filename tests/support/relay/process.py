"""`otel-llm relay` as a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.commands import environment
from support.patience import WAIT_S

_URL = re.compile(r"https?://[\w.]+:\d+")


@dataclass(frozen=True)
class Relay:
    """A running relay: the addresses of its ports, and its process."""

    process: subprocess.Popen[str]
    url: str
    web: str


@contextmanager
def relay(
    *arguments: str | Path, more: Mapping[str, str] | None = None, module: str = "otel_llm.cli.main"
) -> Iterator[Relay]:
    """Run a relay on free ports, unless `arguments` say otherwise; they name its backends, rules and files."""
    command = [sys.executable, "-m", module, "relay", "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**environment(), **(more or {})},
    )
    try:
        assert process.stdout is not None
        found = _URL.findall(process.stdout.readline())
        assert len(found) > 2, "the relay said nothing of its ports"  # those of its backends stand between them
        yield Relay(process, found[0], found[-1])
    finally:
        process.terminate()
        try:
            process.wait(WAIT_S)
        finally:
            process.kill()
            if process.stdout is not None:
                process.stdout.close()
