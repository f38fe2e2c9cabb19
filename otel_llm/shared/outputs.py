"""Outputs of commands: never over an input, whole or not at all.

No output is opened before `refuse_clashes` has passed: a mistyped name destroys no recording.
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
"""Columns of Parquet with the times of tokens: docs/audit-formats.md."""


class OutputError(ValueError):
    """An output cannot be written; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a command, as its command line names them.

    `recordings`: files, folders and patterns; `rules`: files, folders and globs; `decisions`: decision files, with
    their closed files; `journals`: folders of a journal; `files`: any other file, None if it is not given.
    """

    recordings: Sequence[Path] = ()
    rules: Sequence[str | Path] = ()
    decisions: Sequence[Path] = ()
    journals: Sequence[Path] = ()
    files: Sequence[Path | None] = ()

    def listed(self) -> Iterator[Path]:
        """Yield each file that is read, except in folders that cannot be listed (reported when they are read)."""
        from otel_llm.config.yaml_file import ConfigError
        from otel_llm.formats.input_paths import input_files
        from otel_llm.formats.io.journal_format import is_journal
        from otel_llm.formats.io.skipped import Skipped
        from otel_llm.formats.records import InputError
        from otel_llm.rules.decisions.files import decision_files
        from otel_llm.rules.files.load import rule_files

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
    """Refuse outputs that are inputs, or one file twice, under any name; devices and pipes pass.

    Raises:
        OutputError: an output is.
    """
    there: dict[tuple[int, int], Path] = {}
    coming: set[str] = set()
    for path in outputs:
        status = _status(path)
        if status is None:
            _refuse_in_journal(path, inputs.journals)
            name = os.path.realpath(path)
            if name in coming:
                raise _named_twice(path)
            coming.add(name)
        elif stat.S_ISREG(status.st_mode):
            if (status.st_dev, status.st_ino) in there:
                raise _named_twice(path)
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
    """Refuse an output with the name of a journal file in a journal's folder.

    Raises:
        OutputError: it has.
    """
    from otel_llm.formats.io.journal_format import is_journal

    folder = os.path.realpath(path.parent)
    if is_journal(path) and any(folder == os.path.realpath(journal) for journal in journals):
        raise OutputError(f"{path} would be taken for a file of the journal; name another file")


def check_output_path(path: Path) -> None:
    """Refuse an output that is a folder or a device, or whose folder is missing.

    Raises:
        OutputError: it is.
    """
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
    """Give a temporary file that replaces `path` at the end of the block, and is removed on any error.

    A pipe or descriptor (`/dev/stdout`) is written directly.

    Raises:
        OutputError: it cannot be written.
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
            raise  # an error of an input
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def _mere_table(path: Path) -> bool:
    """Return whether a file is Parquet without token times: in a folder of inputs, an earlier output."""
    from otel_llm.formats.recordings import clickhouse, parquet_files
    from otel_llm.formats.records import InputError

    try:
        columns = parquet_files.columns(path)
    except InputError:
        return False
    return not columns >= clickhouse.COLUMNS and _TOKEN_TIMES.isdisjoint(columns)


def _named_twice(path: Path) -> OutputError:
    return OutputError(f"{path} would be written twice; name two files")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
