"""The names of journal files: monotonic in time, also if the clock is set back.

`20260921T141320.000000000Z-000000.otlp`: an instant (UTC) and a number. A file's instant is not before the receipt of
any record in earlier files, so the next file's instant bounds the receipt times in a file.
"""

from __future__ import annotations

import os
import re
import time
from calendar import timegm
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.formats.io.journal_format import CLOSED_SUFFIX, JOURNAL_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NS_PER_S: Final = 1_000_000_000
_NAME: Final = re.compile(r"(\d{8}T\d{6})\.(\d{9})Z-(\d{6,})\.otlp(?:\.zst)?", re.ASCII)
_TIME_FORMAT: Final = "%Y%m%dT%H%M%S"


class JournalFile(NamedTuple):
    """A file with a journal's name; files sort in order of writing."""

    named_ns: int
    """The instant in its name (unix ns): no record of an earlier file was received after it."""
    number: int
    path: Path

    @property
    def compressed(self) -> bool:
        """Return whether it is compressed."""
        return self.path.name.endswith(CLOSED_SUFFIX)

    @property
    def compressed_path(self) -> Path:
        """Return its path in compressed form."""
        return self.path if self.compressed else self.path.with_name(self.path.name + ".zst")


def file_name(named_ns: int, number: int) -> str:
    """Return the name of a new file."""
    seconds, nanos = divmod(named_ns, NS_PER_S)
    instant = time.strftime(_TIME_FORMAT, time.gmtime(seconds))
    return f"{instant}.{nanos:09d}Z-{number:06d}{JOURNAL_SUFFIX}"


def parse_name(path: Path) -> JournalFile | None:
    """Return the file of a path; None if its name is not a journal's."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    try:
        seconds = timegm(time.strptime(match[1], _TIME_FORMAT))
    except ValueError:  # the digits are no instant
        return None
    return JournalFile(seconds * NS_PER_S + int(match[2]), int(match[3]), path)


def list_files(folder: Path) -> tuple[list[JournalFile], list[JournalFile]]:
    """Return the journal's files in order of writing, and the unfinished ones: `.zst` beside their `.otlp`.

    Raises:
        OSError: the folder cannot be listed.
    """
    with os.scandir(folder) as entries:  # listed once: a `.zst` may replace its `.otlp` in between
        files = [file for entry in entries if entry.is_file() and (file := parse_name(folder / entry.name)) is not None]
    plain = {file.path.name for file in files if not file.compressed}
    unfinished = [file for file in files if file.compressed and file.path.name.removesuffix(".zst") in plain]
    return sorted(set(files).difference(unfinished)), unfinished


def newest_possible(files: Sequence[JournalFile], last_ns: int | None) -> list[int | None]:
    """Return for each of consecutive files an upper bound of its receipt times (unix ns).

    `last_ns`: the bound of the last file, which is the next file's instant or the latest receipt time; None: unknown.
    """
    return [*(file.named_ns for file in files[1:]), last_ns][: len(files)]
