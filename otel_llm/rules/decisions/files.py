"""The file of decision records on disk: appended to, closed by size, read back after a crash."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from otel_llm.config.file_defaults import FILE_BYTES, PRIVATE
from otel_llm.rules.decisions.line_files import lock_file
from otel_llm.rules.decisions.output_file import open_output, own_descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

READ_BACK_BYTES: Final = 64 * 2**20
"""How much of the newest records a restart reads: some hundred thousand decisions."""
_BLOCK_BYTES: Final = 64 * 1024
log = logging.getLogger(__name__)


class DecisionFiles:
    """A file of records, one line each; a full one is closed as `NAME.000001`, `NAME.000002` and so on.

    Numbers only grow, so closed files never change their names; `retain_bytes`: of closed files the oldest are deleted
    beyond so many bytes, None keeps all. A line is written whole or not at all, and stands in the file when `write`
    returns. One thread writes. What is no regular file (a pipe, a device) is only written to; closed files lie beside
    the file that a link leads to. A new file gets `mode`.
    """

    def __init__(
        self, path: Path, max_bytes: int = FILE_BYTES, retain_bytes: int | None = None, mode: int = PRIVATE
    ) -> None:
        """Open the file and cut off a torn last line; raises OSError if that fails, or another process holds it."""
        self.path = path = path if own_descriptor(path) is not None else path.resolve()
        self._mode = mode
        self._max_bytes = max_bytes
        self._retain_bytes = retain_bytes
        self._closing_at = max_bytes
        self._unwell = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._regular = open_output(path, append=True, mode=mode)
        self._size = 0
        try:
            if self._regular:
                lock_file(self._file.fileno(), path)
                size = os.fstat(self._file.fileno()).st_size
                self._size = whole_bytes(path)
                if self._size < size:  # not if a process that shares the file has just appended to it
                    os.ftruncate(self._file.fileno(), self._size)
        except BaseException:
            self._file.close()
            raise

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record; raises OSError, and then nothing of it stands in the file."""
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if self._regular and self._size and self._size + len(line) > self._closing_at:
            self._begin_another()
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:]) or 0
        except OSError:
            if self._regular and written:  # a full disk: half a line would spoil the next one too
                os.ftruncate(self._file.fileno(), os.fstat(self._file.fileno()).st_size - written)
            raise
        self._size += len(line)

    def share(self) -> None:
        """Let another process take the file over: it may open it now, and this one only appends its last lines."""
        if self._regular:
            self._closing_at = sys.maxsize
            with suppress(OSError):
                fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; there is nothing to flush."""
        self._file.close()

    def _begin_another(self) -> None:
        """Close the full file under the next number; if that fails, go on in it: a record matters more than size."""
        closed = self._next_name()
        try:
            self.path.rename(closed)
            try:
                file = open_output(self.path, append=True, mode=self._mode).file
            except OSError:
                closed.rename(self.path)
                raise
        except OSError as problem:
            self._closing_at = self._size + self._max_bytes
            self._warn("cannot be closed and goes on growing", problem)
            return
        with suppress(OSError):
            lock_file(file.fileno(), self.path)
        self._file.close()
        self._file, self._size, self._closing_at = file, 0, self._max_bytes
        self._let_go()

    def _next_name(self) -> Path:
        numbers = [number for number, _ in _closed(self.path)]
        return self.path.with_name(f"{self.path.name}.{max(numbers, default=0) + 1:06d}")

    def _let_go(self) -> None:
        if self._retain_bytes is None:
            return
        kept = 0
        for _, path in reversed(_closed(self.path)):
            try:
                kept += path.stat().st_size
                if kept > self._retain_bytes:
                    path.unlink()
            except OSError as problem:
                self._warn("has old files that cannot be deleted", problem)

    def _warn(self, what: str, problem: OSError) -> None:
        if not self._unwell:
            log.warning("otel-llm: %s %s: %s", self.path, what, problem)
        self._unwell = True


def decision_files(path: Path) -> list[Path]:
    """Return the closed files of a decision file, oldest first, and then itself if it is there."""
    path = path.resolve()
    return [*(closed for _, closed in _closed(path)), *([path] if path.is_file() else [])]


def read_back(path: Path, most_bytes: int | None = None) -> Iterator[str]:
    """Yield the complete lines of a decision file and its closed ones in order of writing, without a torn last line.

    `most_bytes`: only the newest so many bytes. Nothing is changed. Raises OSError if a file cannot be read.
    """
    chosen: list[tuple[Path, int]] = []
    left = most_bytes
    for file in reversed(decision_files(path)):
        size = file.stat().st_size
        chosen.append((file, 0 if left is None else max(0, size - left)))
        if left is not None and (left := left - size) <= 0:
            break
    for file, start in reversed(chosen):
        with file.open("rb") as stream:
            if start:
                stream.seek(start - 1)
                stream.readline()  # the rest of a line that begins before
            for line in stream:
                if line.endswith(b"\n"):
                    yield line.decode("utf-8", "replace")


def whole_bytes(path: Path) -> int:
    """Return the length of a file without a torn last line."""
    with path.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _BLOCK_BYTES)
            stream.seek(begin)
            found = stream.read(end - begin).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
    return 0


def _closed(path: Path) -> list[tuple[int, Path]]:
    """Return the closed files with their numbers, in order."""
    name = re.compile(re.escape(path.name) + r"\.([0-9]{6,})")
    if not path.parent.is_dir():
        return []
    found = [(match, other) for other in path.parent.iterdir() if (match := name.fullmatch(other.name))]
    return sorted((int(match[1]), other) for match, other in found)
