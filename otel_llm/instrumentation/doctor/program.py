"""Run a program under the doctor: with our hooks, its signals passed on, its processes' reports read."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_llm.instrumentation.doctor import inject
from otel_llm.instrumentation.process.doctor_report import FOLDER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PASSED_ON: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a program as a shell has it (128 + signal), and the reports of its processes."""

    exit_status: int
    reports: list[dict[str, Any]]


def run(command: Sequence[str], environ: Mapping[str, str]) -> Ran:
    """Run a program with our standard streams to its end.

    Raises OSError if it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="otel-llm-doctor-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(list(command), env=_environment(environ, folder))  # noqa: S603  what the user asked for
        with _passing_signals(process):
            status = process.wait()
        return Ran(128 - status if status < 0 else status, _reports(Path(folder)))


def _environment(environ: Mapping[str, str], folder: str) -> dict[str, str]:
    [path] = inject.__path__
    others = environ.get("PYTHONPATH")
    return {
        **environ,
        FOLDER_VARIABLE: folder,
        "PYTHONPATH": os.pathsep.join([path, others] if others else [path]),
    }


@contextlib.contextmanager
def _passing_signals(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass on our signals. Ctrl-C reaches the program by the terminal, and must not end us before it."""

    def pass_on(signum: int, frame: object) -> None:  # noqa: ARG001
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signum)

    before = {signum: signal.signal(signum, pass_on) for signum in PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda signum, frame: None)  # noqa: ARG005
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _reports(folder: Path) -> list[dict[str, Any]]:
    reports = []
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(ValueError, OSError):
            reports.append(json.loads(path.read_text(encoding="utf-8")))
    return reports
