"""`otel-llm top` in a terminal: what it shows, which keys it gets."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from support.commands import environment
from support.patience import WAIT_S


@dataclass
class TopTerminal:
    """The program, the two ends of its terminal, and the terminal's settings before it began."""

    program: subprocess.Popen[bytes]
    ours: int
    theirs: int
    before: list[Any]

    @property
    def settings(self) -> list[Any]:
        """Return the settings of the terminal now."""
        return termios.tcgetattr(self.theirs)

    def press(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self.ours, keys)

    def wait_for(self, words: str) -> str:
        """Read until the screen, or an escape sequence, says this; return what was read, with the sequences."""
        limit, reported = time.monotonic() + WAIT_S, ""
        while words not in reported and words not in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", reported):
            assert time.monotonic() < limit, reported[-3000:]
            if select.select([self.ours], [], [], 0.1)[0]:
                reported += os.read(self.ours, 65536).decode("utf-8", "replace")
        return reported


@contextmanager
def top_of(url: str) -> Iterator[TopTerminal]:
    """Run `otel-llm top URL` in a terminal of 150 columns and 40 lines."""
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "otel_llm.cli.main", "top", url]
    env = environment() | {"TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    program = subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    try:
        yield TopTerminal(program, ours, theirs, before)
    finally:
        program.kill()
        program.wait()
        os.close(ours)
        os.close(theirs)
