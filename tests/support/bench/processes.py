"""`bench` and `capacity` as processes of a terminal: Ctrl-C reaches them and their workers, a disk may be full."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
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


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the numbers of the processes that a process has started."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii")
    return [int(number) for number in text.split()]
