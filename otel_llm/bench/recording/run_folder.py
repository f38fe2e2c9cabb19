"""The folder of a run: its journal, `run.json` beside it, and `warmup/` with the requests that were cut.

`otel-llm audit DIR` reads the journal and passes over the others.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, Final

from otel_llm.bench.recording.run_journal import RequestRecords, RunJournal
from otel_llm.formats.io.journal_format import is_journal
from otel_llm.shared.outputs import OutputError, replacing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_llm.bench.client.observed_request import ObservedRequest

RUN_FILE: Final = "run.json"
WARMUP: Final = "warmup"
_MEASURED: Final = ".measured"


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something already, or cannot be made. Raises OutputError."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"--out {folder} is no folder; name another")
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(f"--out {folder} is not empty; name a folder of its own for each run")
    except OSError as error:
        raise OutputError(f"--out {folder}: {error.strerror or error}") from error
    if not folder.parent.is_dir():
        raise OutputError(f"--out {folder}: the folder {folder.parent} does not exist; make it first")


def make_folder(folder: Path) -> None:
    """Make a folder unless it is there. Raises OutputError if that cannot be done (a full disk, no permission)."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"--out {folder} cannot be made: {error.strerror or error}") from error


def write_run_file(folder: Path, content: dict[str, Any]) -> None:
    """Write `run.json`. Raises OutputError if it cannot be written."""
    with replacing(folder / RUN_FILE) as file:
        file.write((json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def set_warm_up_aside(
    folder: Path, records: RequestRecords, warm_up: Sequence[ObservedRequest], measured: Sequence[ObservedRequest]
) -> None:
    """Move the requests of the warm-up from the closed journal into `warmup/`, so that the audit judges the others.

    The measured ones are written anew; the first journal is deleted only when both are complete.

    Raises:
        StartError, JournalError, OSError: it cannot be written; the journal is as it was.
    """
    written = folder / _MEASURED
    try:
        for place, requests in ((folder / WARMUP, warm_up), (written, measured)):
            with RunJournal(place, records) as journal:
                for request in sorted(requests, key=records.end_unix_ns):
                    journal.write(request)
    except BaseException:
        shutil.rmtree(folder / WARMUP, ignore_errors=True)
        shutil.rmtree(written, ignore_errors=True)
        raise
    for path in folder.iterdir():
        if is_journal(path):
            path.unlink()
    for path in written.iterdir():
        if is_journal(path):
            path.rename(folder / path.name)
    shutil.rmtree(written)
