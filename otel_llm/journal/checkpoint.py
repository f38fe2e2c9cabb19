"""The checkpoint file beside the journal: numbers for a restart, replaced atomically."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Final

from otel_llm.journal.journal_errors import JournalError
from otel_llm.rules.decisions.output_file import read_inside
from otel_llm.shared.whole_files import reason_of, replace_whole

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RESUME_FILE: Final = "resume.json"
_MAX_BYTES: Final = 2**20
log = logging.getLogger(__name__)


def write_resume(folder: Path, values: Mapping[str, int], *, durable: bool = False) -> None:
    """Replace the checkpoint atomically.

    Args:
        folder: the journal's.
        values: a few numbers by name.
        durable: whether it survives a power cut once this returns (two fsyncs).

    Raises:
        JournalError: it could not be written; the old one stays.
    """
    data = json.dumps(dict(values), separators=(",", ":")).encode() + b"\n"
    try:
        replace_whole(folder / RESUME_FILE, data, durable=durable)
    except OSError as error:
        raise JournalError(reason_of(error)) from error


def read_resume(folder: Path) -> dict[str, int]:
    """Return the checkpoint's numbers; none if it is missing, or (logged) broken."""
    path = folder / RESUME_FILE
    try:
        with io.BufferedReader(read_inside(path)) as file:
            data = file.read(_MAX_BYTES + 1)
        return _numbers(data)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s: no checkpoint: %s; a restart reads the last hour of the journal", path, error)
        return {}


def _numbers(data: bytes) -> dict[str, int]:
    """Return the numbers of a checkpoint file.

    Raises:
        ValueError: it is not an object of integers.
    """
    if len(data) > _MAX_BYTES:
        raise ValueError(f"longer than {_MAX_BYTES} bytes")
    values = json.loads(data)
    if not isinstance(values, dict):
        raise ValueError("not an object")  # noqa: TRY004 - of the file, not of an argument
    for name, value in values.items():
        if type(value) is not int:
            raise ValueError(f"{name!r} is not an integer")
    return values
