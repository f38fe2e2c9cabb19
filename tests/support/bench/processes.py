"""`bench` and `capacity` as processes of a terminal: Ctrl-C reaches them and their workers, a disk may be full."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from support.commands import environment


def started(*arguments: str | Path, file_bytes: int | None = None, path: Path | None = None) -> subprocess.Popen[str]:
    """Start `otel-llm` in a process group of its own.

    `file_bytes`: no file may be longer, as on a full disk. `path`: a folder that Python looks for modules in.
    """
    paths = [*([] if path is None else [str(path)]), *filter(None, [os.environ.get("PYTHONPATH")])]

    def limited() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    return subprocess.Popen(
        [sys.executable, "-m", "otel_llm.cli.main", *map(str, arguments)],
        env=environment() | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited,  # noqa: PLW1509  one thread starts it
        process_group=0,
    )


def ctrl_c(process: subprocess.Popen[str]) -> None:
    """Interrupt a started process as a terminal does: all of its group."""
    os.killpg(process.pid, signal.SIGINT)


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the numbers of the processes that a process has started."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
    return [int(number) for number in text.split()]


def waits_of(process: subprocess.Popen[str]) -> int:
    """Return how often a process has waited for something: a measure of how far it is, on a machine of any speed."""
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)$", _proc(process, "status").read_text("ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1])


def sockets_of(process: subprocess.Popen[str]) -> int:
    """Return how many sockets a process has open."""
    found = 0
    for name in _proc(process, "fd").iterdir():
        with suppress(FileNotFoundError):
            found += str(name.readlink()).startswith("socket:")
    return found


HOLD = """
import sys, time
from pathlib import Path
if any("otel_llm.bench.client.worker" in word for word in sys.orig_argv):
    while Path({held!r}).exists():
        time.sleep(0.01)
"""


def hold_workers(folder: Path) -> Path:
    """Keep the workers of a command from starting as long as a file is there, which is returned.

    The command is started with this folder as its `path`.
    """
    held = folder / "held"
    held.touch()
    (folder / "sitecustomize.py").write_text(HOLD.format(held=str(held)), encoding="utf-8")
    return held


def _proc(process: subprocess.Popen[str], name: str) -> Path:
    return Path(f"/proc/{process.pid}/{name}")
