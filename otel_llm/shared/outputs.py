"""What a command writes: never over what it reads, whole or not at all; the one check of every command that does.

Nothing is opened for writing before `refuse_clashes` has passed, and so a slip of the hand costs no recording.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from otel_llm.rules.decisions.output_file import is_passed_on, open_output, refuse_device

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_TOKEN_TIMES: Final = frozenset({"t_seconds", "times_ns"})
"""Columns of Parquet with the times of tokens: docs/audit-forms.md."""


class OutputError(ValueError):
    """Say that an output cannot be written as asked; the message names it and what to do."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a command reads, as its command line names it; listed only where an output could be one of them.

    `recordings`: files, folders and patterns of anything that is judged; `rules`: files, folders and globs of rules;
    `decisions`: decision files, each with those closed before it; `journals`: folders of a journal, whatever else lies
    there; `files`: any other file, None one that was not given.
    """

    recordings: Sequence[Path] = ()
    rules: Sequence[str | Path] = ()
    decisions: Sequence[Path] = ()
    journals: Sequence[Path] = ()
    files: Sequence[Path | None] = ()

    def listed(self) -> Iterator[Path]:
        """Yield each file that is read. What cannot be listed is left out: whoever reads it says why."""
        from otel_llm.readers.input_paths import input_files
        from otel_llm.readers.io.journal_format import is_journal
        from otel_llm.readers.io.skipped import Skipped
        from otel_llm.readers.records import InputError
        from otel_llm.rules.decisions.files import decision_files
        from otel_llm.rules.files.load import rule_files
        from otel_llm.rules.files.yamlfile import ConfigError

        yield from (path for path in self.files if path is not None)
        yield from self.recordings
        for recording in self.recordings:
            with contextlib.suppress(InputError, OSError):
                yield from input_files([recording], Skipped())
        for rules in self.rules:
            with contextlib.suppress(ConfigError, OSError):
                yield from rule_files([rules])
        for decisions in self.decisions:
            with contextlib.suppress(OSError):
                yield from decision_files(decisions)
        for journal in self.journals:
            with contextlib.suppress(OSError):
                yield from (path for path in journal.iterdir() if is_journal(path))


def refuse_clashes(outputs: Sequence[Path], inputs: Inputs) -> None:
    """Refuse outputs that are one of the inputs, or one file, by whatever name; devices and pipes are nobody's.

    Raises OutputError.
    """
    there: dict[tuple[int, int], Path] = {}
    coming: set[str] = set()
    for path in outputs:
        status = _status(path)
        if status is None:
            _refuse_in_journal(path, inputs.journals)
            name = os.path.realpath(path)
            if name in coming:
                raise _twice(path)
            coming.add(name)
        elif stat.S_ISREG(status.st_mode):
            if (status.st_dev, status.st_ino) in there:
                raise _twice(path)
            there[status.st_dev, status.st_ino] = path
    if not there:
        return
    for source in inputs.listed():
        status = _status(source)
        output = None if status is None else there.get((status.st_dev, status.st_ino))
        if output is not None and (source in (*inputs.recordings, *inputs.files) or not _mere_table(source)):
            also = "" if output == source else f" ({source})"
            raise OutputError(f"{output} is one of the inputs{also} and would be overwritten; name another file")


def _refuse_in_journal(path: Path, journals: Sequence[Path]) -> None:
    """Refuse an output that would be taken for a file of a journal as soon as it is there."""
    from otel_llm.readers.io.journal_format import is_journal

    folder = os.path.realpath(path.parent)
    if is_journal(path) and any(folder == os.path.realpath(journal) for journal in journals):
        raise OutputError(f"{path} would be taken for a file of the journal; name another file")


def check_place(path: Path) -> None:
    """Refuse an output that is a folder or a device, or whose folder is not there. Raises OutputError."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist; make it first")
    try:
        refuse_device(path)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file beside `path` that takes its place once it is complete, and goes away on any error.

    What is no file of its own (a pipe, `/dev/stdout`) is written to as it is. Raises OutputError where it cannot be
    written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if is_passed_on(path):
            with io.BufferedWriter(open_output(path).file) as file:
                yield file
            return
        with beside.open("xb") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) not in (str(path), str(beside)):
            raise  # of what was read meanwhile
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _mere_table(path: Path) -> bool:
    """Tell whether a file is Parquet of which nothing can be judged: in a folder that is read, an earlier output."""
    from otel_llm.readers.formats import clickhouse, parquet_files
    from otel_llm.readers.records import InputError

    try:
        with path.open("rb") as file:
            if file.read(len(parquet_files.MAGIC)) != parquet_files.MAGIC:
                return False
        columns = parquet_files.columns(path)
    except (InputError, OSError):
        return False
    return not columns >= clickhouse.COLUMNS and _TOKEN_TIMES.isdisjoint(columns)


def _twice(path: Path) -> OutputError:
    return OutputError(f"{path} would be written twice; name two files")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
