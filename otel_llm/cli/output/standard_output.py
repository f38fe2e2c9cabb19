"""Exit codes for a failing standard output: 2 with a line on stderr, or 141 without a message for a closed pipe."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED: Final = 2
PIPE_CLOSED: Final = 141
"""128 + SIGPIPE, the status of `cat` and `grep`: neither success nor a verdict, since the output was not read."""


@contextlib.contextmanager
def watched_output() -> Iterator[None]:
    """Run a command; a failure of standard output decides its exit code, even if a library has caught the error.

    Libraries exit with 1 on a closed pipe, which here means a missed objective. A standard output that is not the
    process's own (of a test, a notebook) is left alone.

    Raises:
        SystemExit: standard output failed; FAILED after a line on stderr, or PIPE_CLOSED.
    """
    plain = sys.stdout
    raw = _file_of(plain)
    if raw is None:
        yield
        return
    number = raw.fileno()
    watched = _Watched(number)
    sys.stdout = text = _text(watched, plain)
    try:
        with _flushed(text):
            yield
    except (SystemExit, OSError) as ended:
        if watched.failure is None or (isinstance(ended, OSError) and ended.errno != watched.failure.errno):
            raise
    finally:
        sys.stdout = plain
        if watched.failure is not None:
            _redirect_to_null(number)
    if watched.failure is not None:
        raise SystemExit(_exit_code(watched.failure))


class _Watched(io.FileIO):
    """A file that remembers its first write error."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise


@contextlib.contextmanager
def _flushed(out: Any) -> Iterator[None]:
    """Flush at the end; `_Watched.failure` has its error."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            out.flush()


def _file_of(out: Any) -> io.FileIO | None:
    """Return the file under the process's own standard output; None if it is replaced."""
    if out is None or out is not sys.__stdout__ or not isinstance(out, io.TextIOWrapper):
        return None
    raw = getattr(out.buffer, "raw", out.buffer)
    return raw if isinstance(raw, io.FileIO) else None


def _text(raw: _Watched, plain: Any) -> io.TextIOWrapper:
    """Return a text stream over `raw`, buffered as `plain` is (not at all with PYTHONUNBUFFERED)."""
    plain.flush()
    buffer: Any = raw if isinstance(plain.buffer, io.FileIO) else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer, plain.encoding, plain.errors, line_buffering=plain.line_buffering, write_through=plain.write_through
    )


def _redirect_to_null(number: int) -> None:
    """Redirect a descriptor to the null device: the interpreter flushes once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def _exit_code(failure: OSError) -> int:
    if failure.errno == errno.EPIPE:
        return PIPE_CLOSED
    with contextlib.suppress(OSError):
        click.echo(f"Error: cannot write to standard output: {failure.strerror}", err=True)
    return FAILED
