"""Progress bars for long inputs and many runs, on a terminal only."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from otel_llm.cli.output.terminal_console import SafeConsole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

LONG_INPUT_BYTES: Final = 20_000_000
"""Smaller inputs are read too fast for a progress bar."""


@contextlib.contextmanager
def reading(size: int, long_bytes: int = LONG_INPUT_BYTES) -> Iterator[Callable[[int], None] | None]:
    """Give a function that shows how many of `size` bytes are read; None without a terminal, or for a small input."""
    console = SafeConsole(stderr=True)
    if size < long_bytes or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=size)
        yield lambda done: bar.update(task, completed=done)


@contextlib.contextmanager
def counting(word: str, total: int) -> Iterator[Callable[[float], None] | None]:
    """Give a function that shows how many of `total` are done, also in fractions; None without a terminal."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(word), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(word, total=total)
        yield lambda done: bar.update(task, completed=done)


def reading_files(paths: Sequence[Path]) -> contextlib.AbstractContextManager[Callable[[int], None] | None]:
    """Return `reading` for the files of `paths`; an unreadable path counts as empty, and is reported later."""
    # The size opens every file of a folder: computed on a terminal only.
    return reading(_size_of(paths) if SafeConsole(stderr=True).is_terminal else 0)


def _size_of(paths: Sequence[Path]) -> int:
    from otel_llm.formats.input_paths import input_files, size
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.records import InputError

    try:
        return sum(size(path) for path in input_files(paths, Skipped()))
    except InputError:
        return 0
